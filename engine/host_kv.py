"""Swapped blocks in host memory, beside a device that runs what it is given in order: no copy is waited for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from engine.kv_cache import PagedKV
from engine.transfers import Reading


class Arrival(Protocol):
    """A copy to the host that is under way."""

    def is_here(self) -> bool: ...

    def wait(self) -> Tensor: ...


class _Leaving(NamedTuple):
    """Blocks on their way to the host, whose contents are on the device, too, until they have arrived."""

    blocks: Sequence[int]
    contents: Tensor
    arrival: Arrival


class HostKV:
    """A pool in host memory. What leaves the device lies in a buffer until somebody finds that it has arrived, and only
    then in its blocks; who wants it back earlier gets what the device still has of it.
    """

    def __init__(self, memory: PagedKV, arrive: Callable[[Tensor], Arrival] = Reading) -> None:
        self._memory = memory
        self._arrive = arrive
        self._leaving: list[_Leaving] = []

    def write_blocks(self, blocks: Sequence[int], contents: Tensor) -> None:
        """Takes contents [num_layers, num_blocks, ...] of the device."""
        self._leaving.append(_Leaving(blocks, contents, self._arrive(contents)))
        self.settle()

    def move_blocks(self, blocks: Sequence[int], other: PagedKV, other_blocks: Sequence[int]) -> None:
        """Copies whole blocks back into a pool of the device."""
        self.settle()
        newest = {block: part for part in self._leaving for block in part.blocks}
        found = defaultdict(list)  # by what they come from: the memory itself, or one that is leaving
        for block, target in zip(blocks, other_blocks, strict=True):
            found[id(newest.get(block))].append((block, target))
        for part in (None, *self._leaving):
            if pairs := found.get(id(part)):
                own, targets = zip(*pairs, strict=True)
                other.write_blocks(targets, self._sent(own, other.device) if part is None else _of(part, own))

    def settle(self) -> None:
        """Puts into its blocks what has arrived, the oldest first. Waits for nothing."""
        while self._leaving and self._leaving[0].arrival.is_here():
            part = self._leaving.pop(0)
            self._memory.write_blocks(part.blocks, part.arrival.wait())

    def _sent(self, blocks: Sequence[int], device: torch.device) -> Tensor:
        """Their contents on the device; to a GPU through pinned memory, which torch keeps until the copy is through."""
        contents = self._memory.read_blocks(blocks, is_pinned=device.type == "cuda")
        return contents.to(device, non_blocking=True)


def _of(part: _Leaving, blocks: Sequence[int]) -> Tensor:
    columns = torch.tensor([part.blocks.index(block) for block in blocks], pin_memory=part.contents.is_cuda)
    return part.contents.index_select(1, columns.to(part.contents.device, non_blocking=True))
