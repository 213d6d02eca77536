"""What the KV pool gets of a device's memory, and where the rest goes."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from omegaconf import DictConfig

from core.errors import InputError
from core.model_shape import ModelShape
from engine.activations import activation_bytes
from engine.model import Decoder
from engine.projection import is_copied
from kvtwin.formatting import bytes_text
from kvtwin.memory_plan import GIB

CPU_POOL_BYTES = GIB


def drawn_weights_bytes(shape: ModelShape, dtype: torch.dtype) -> int:
    """What random weights take in this machine's memory, with the copy in the layout that its CPU reads best.

    Raises InputError where that is more than there is: drawing them would bring the machine down.
    """
    weight_bytes: int = shape.num_parameters() * dtype.itemsize
    num_bytes = weight_bytes
    again = ""
    if is_copied("cpu", dtype) and not shape.num_experts:
        num_bytes, again = 2 * weight_bytes, " (and as much again in the layout that its CPU reads best)"
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if num_bytes > memory_bytes:
        raise InputError(
            f"model={shape.name}: its weights take {bytes_text(weight_bytes)}{again}, this machine has "
            f"{bytes_text(memory_bytes)} of memory; expected a smaller model, or kvtwin sim, which needs no weights"
        )
    return num_bytes


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """A GPU's memory in bytes. The pool has what `memory_fraction` of it leaves, each other term counted once.

    `other_bytes` were in use when the weights had been loaded: the driver's context, and whoever else runs there.
    """

    memory_bytes: int
    memory_fraction: float
    weight_bytes: int
    other_bytes: int
    activation_bytes: int
    graph_bytes: int

    @property
    def pool_bytes(self) -> int:
        """Negative where the rest alone does not fit."""
        used_bytes = self.weight_bytes + self.other_bytes + self.activation_bytes + self.graph_bytes
        return int(self.memory_bytes * self.memory_fraction) - used_bytes

    def __str__(self) -> str:
        terms = {
            "weights": self.weight_bytes,
            "activations": self.activation_bytes,
            "graphs": self.graph_bytes,
            "others": self.other_bytes,
        }
        listed = ", ".join(f"{name} {num_bytes / GIB:.2f}" for name, num_bytes in terms.items())
        memory = f"{self.memory_fraction:g} x {self.memory_bytes / GIB:.2f} GiB"
        return f"{memory}, less {listed}: {self.pool_bytes / GIB:.2f} GiB for KV"


def auto_pool_bytes(config: DictConfig, budget: MemoryBudget | None) -> int:
    """Bytes of KV that `pool.num_blocks=auto` fills; `budget` is the GPU's. Raises InputError where nothing is left."""
    if config.engine.pool_bytes != "auto":
        return int(config.engine.pool_bytes)
    if budget is None:
        return CPU_POOL_BYTES
    if budget.pool_bytes <= 0:
        raise InputError(f"engine.memory_fraction={budget.memory_fraction}: {budget}; expected a smaller model or more")
    return budget.pool_bytes


def memory_budget(config: DictConfig, decoder: Decoder) -> MemoryBudget | None:
    """What becomes of the memory of the GPU that the decoder lies on; None on a CPU."""
    if decoder.device.type != "cuda":
        return None
    free_bytes, memory_bytes = torch.cuda.mem_get_info(decoder.device)
    weight_bytes = torch.cuda.memory_allocated(decoder.device)
    num_tokens, num_seqs = config.scheduler.max_batch_tokens, config.scheduler.max_num_seqs
    return MemoryBudget(
        memory_bytes,
        config.engine.memory_fraction,
        weight_bytes,
        memory_bytes - free_bytes - weight_bytes,
        activation_bytes(decoder.shape, num_tokens, num_seqs, decoder.dtype.itemsize),
        config.engine.graph_bytes if config.engine.cuda_graphs else 0,
    )
