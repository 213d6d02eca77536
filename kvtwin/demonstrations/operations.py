"""What the four operations on a KV cache cost: allocate, write, read, free."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

import torch

from core.block_pool import BlockPool
from core.decision_log import NoLog
from core.errors import InputError
from core.interfaces import Block, PolicyEnv
from core.model_shape import ModelShape
from core.prefix_index import HashIndex
from kernels.reference import decode_attention, write_kv
from kvtwin.arguments import Arguments, count
from kvtwin.demonstrations.demonstration import Curve, Demonstration
from kvtwin.demonstrations.shapes import model_shape
from kvtwin.demonstrations.timing import timed_in_turns
from kvtwin.formatting import bytes_text, count_text, seconds_text
from policies.eviction.lru import LRU

_CONTEXTS = (256, 512, 1024, 2048, 4096)
_OPERATIONS = ("allocate", "write", "read", "free")
BLOCK_SIZE = 16


def add_options(parser: Arguments) -> None:
    parser.add_argument("--model", default="smollm2_135m", metavar="NAME", help="a shape; default smollm2_135m")
    parser.add_argument("--longest", type=count, default=_CONTEXTS[-1], metavar="N", help="tokens; default 4096")
    parser.add_argument("--rounds", type=count, default=15, metavar="N", help="of each operation; default 15")


def measure(options: Namespace) -> Demonstration:
    """Raises InputError for models that cache latents or a window: the operations here are on whole keys and values."""
    torch.set_num_threads(1)
    model = model_shape(options.model)
    if model.latent_dim or model.num_window_layers:
        raise InputError(f"--model {options.model}: caches latents or windows; expected a model of full attention")
    contexts = [context for context in _CONTEXTS if context < options.longest] + [options.longest]
    spent = {context: timed_in_turns(Cache(model, context).operations(), options.rounds) for context in contexts}
    moved = {context: operation_bytes(model, context) for context in contexts}
    rows = [
        [
            count_text(context),
            *(seconds_text(spent[context][name]) for name in _OPERATIONS),
            *(bytes_text(moved[context][name]) for name in ("allocate", "write", "read")),
            f"{bytes_text(moved[context]['read'] / spent[context]['read'])}/s",
        ]
        for context in contexts
    ]
    header = ("context", *_OPERATIONS, "allocated", "written", "read from", "reads at")
    return Demonstration(
        f"Four operations on the KV cache of {model.name}: blocks of {BLOCK_SIZE}, bf16, all {model.num_layers} layers",
        _findings(contexts, spent, moved),
        header,
        rows,
        [Curve(name, contexts, [spent[context][name] for context in contexts]) for name in _OPERATIONS],
        "context (tokens)",
        "CPU time (s)",
        {
            "model": model.name,
            "block_size_tokens": BLOCK_SIZE,
            "by_context": [{"context_tokens": c, "cpu_s": spent[c], "bytes": moved[c]} for c in contexts],
        },
        is_logarithmic=True,
    )


def operation_bytes(model: ModelShape, context: int) -> dict[str, int]:
    """Bytes of blocks taken and given back for a request, written for a token, read for a token."""
    num_blocks = -(-context // BLOCK_SIZE)
    held = num_blocks * model.block_bytes(BLOCK_SIZE)
    return {"allocate": held, "write": model.kv_bytes_per_token(), "read": model.kv_bytes(context), "free": held}


class Cache:
    """The KV of one request of `context` tokens: its blocks in the pool of the control plane, its keys and values in
    tensors.
    """

    def __init__(self, model: ModelShape, context: int) -> None:
        self._num_blocks = -(-context // BLOCK_SIZE)
        self._layers = range(model.num_kv_layers)
        self._scale = model.head_dim**-0.5
        env = PolicyEnv(lambda: 0, 2 * self._num_blocks, BLOCK_SIZE, 0)
        self._pool = BlockPool(2 * self._num_blocks, LRU(env), NoLog(), HashIndex())
        self._held: list[Block] = []
        size = (model.num_kv_layers, self._num_blocks, BLOCK_SIZE, model.num_kv_heads, model.head_dim)
        generator = torch.Generator().manual_seed(0)
        self._keys, self._values = (torch.randn(size, generator=generator).bfloat16() for _ in range(2))
        self._new = torch.ones((1, model.num_kv_heads, model.head_dim), dtype=torch.bfloat16)
        self._query = torch.ones((1, model.num_heads, model.head_dim), dtype=torch.bfloat16)
        self._table = torch.randperm(self._num_blocks, generator=generator)[None]
        self._slot = self._table[0, -1:] * BLOCK_SIZE + (context - 1) % BLOCK_SIZE
        self._num_tokens = torch.tensor([context])

    def operations(self) -> dict[str, Callable[[], object]]:
        """By name, in the order in which a request meets them: each call can be followed by the next round's."""
        return {"allocate": self.allocate, "write": self.write, "read": self.read, "free": self.free}

    def allocate(self) -> None:
        self._held = self._pool.take(self._num_blocks, 0)

    def write(self) -> None:
        """One token's keys and values, in every layer."""
        for layer in self._layers:
            write_kv(self._new, self._new, self._keys[layer], self._values[layer], self._slot)

    def read(self) -> None:
        """One token's attention over the whole context, in every layer."""
        for layer in self._layers:
            decode_attention(
                self._query, self._keys[layer], self._values[layer], self._table, self._num_tokens, self._scale
            )

    def free(self) -> None:
        self._pool.release(self._held[::-1], 0)


def _findings(contexts: list[int], spent: dict[int, dict[str, float]], moved: dict[int, dict[str, int]]) -> list[str]:
    last = contexts[-1]
    return [
        f"At {count_text(last)} tokens a write is {bytes_text(moved[last]['write'])} "
        f"({seconds_text(spent[last]['write'])}) and does not depend on the context; a read is all of it, "
        f"{bytes_text(moved[last]['read'])} ({seconds_text(spent[last]['read'])}), in every step.",
        f"Allocating and freeing all {count_text(-(-last // BLOCK_SIZE))} blocks touches none of their bytes: "
        f"{seconds_text(spent[last]['allocate'])} and {seconds_text(spent[last]['free'])}, once.",
    ]
