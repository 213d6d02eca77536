"""What it costs to append a token's keys and values: torch.cat, a preallocated slab, blocks."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

import torch
from torch import Tensor

from core.errors import InputError
from kernels.reference import write_kv
from kvtwin.arguments import Arguments, count
from kvtwin.demonstrations.demonstration import Curve, Demonstration
from kvtwin.demonstrations.shapes import model_shape
from kvtwin.demonstrations.timing import timed_in_turns
from kvtwin.formatting import bytes_text, count_text, seconds_text

_LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)
_KINDS = ("torch.cat", "preallocated", "paged")
BLOCK_SIZE = 16


def add_options(parser: Arguments) -> None:
    parser.add_argument("--model", default="llama3_8b", metavar="NAME", help="one of its layers; default llama3_8b")
    parser.add_argument("--longest", type=count, default=_LENGTHS[-1], metavar="N", help="tokens; default 16384")
    parser.add_argument("--rounds", type=count, default=15, metavar="N", help="appends a length; default 15")


def measure(options: Namespace) -> Demonstration:
    """Raises InputError for models that cache latents instead of keys and values."""
    torch.set_num_threads(1)
    model = model_shape(options.model)
    if model.latent_dim:
        raise InputError(f"--model {options.model}: caches latents; expected a model with keys and values")
    lengths = [length for length in _LENGTHS if length < options.longest] + [options.longest]
    row_bytes = model.kv_elements_per_layer_token * 2
    heads = model.num_kv_heads, model.head_dim
    spent = {
        length: timed_in_turns(_appends(length, options.longest, heads), options.rounds, num_warm_calls=1)
        for length in lengths
    }
    moved = {length: moved_bytes(length, row_bytes) for length in lengths}
    held = {length: allocated_bytes(length, options.longest, row_bytes) for length in lengths}
    rows = [
        [
            count_text(length),
            *(seconds_text(spent[length][kind]) for kind in _KINDS),
            *(bytes_text(moved[length][kind]) for kind in ("torch.cat", "paged")),
            *(bytes_text(held[length][kind]) for kind in _KINDS),
        ]
        for length in lengths
    ]
    header = ("length", *_KINDS, "moved by cat", "by the others", *(f"held, {kind}" for kind in _KINDS))
    return Demonstration(
        f"Appending a token to one layer of {model.name}, room for {count_text(options.longest)}",
        _findings(lengths, spent, moved, held),
        header,
        rows,
        [Curve(kind, lengths, [spent[length][kind] for length in lengths]) for kind in _KINDS],
        "length (tokens)",
        "CPU time of an append (s)",
        {
            "model": model.name,
            "layer_token_bytes": row_bytes,
            "by_length": [
                {"length_tokens": n, "append_s": spent[n], "moved_bytes": moved[n], "allocated_bytes": held[n]}
                for n in lengths
            ],
        },
        is_logarithmic=True,
    )


def moved_bytes(length: int, row_bytes: int) -> dict[str, int]:
    """Bytes read and written to append a token to `length` tokens: `cat` reads and writes all of them."""
    own = 2 * row_bytes
    return {"torch.cat": (2 * length) * row_bytes + own, "preallocated": own, "paged": own}


def allocated_bytes(length: int, longest: int, row_bytes: int) -> dict[str, int]:
    """Bytes held while a token is appended to `length` tokens: `cat` has the old cache and the new one."""
    num_blocks = -(-(length + 1) // BLOCK_SIZE)
    return {
        "torch.cat": (2 * length + 1) * row_bytes,
        "preallocated": (longest + 1) * row_bytes,
        "paged": num_blocks * BLOCK_SIZE * row_bytes,
    }


def _appends(length: int, longest: int, heads: tuple[int, int]) -> dict[str, Callable[[], object]]:
    """Each appends the same token to `length` tokens; done again, it does the same again."""
    new = torch.ones((1, *heads), dtype=torch.bfloat16)
    grown = torch.zeros((2, length, *heads), dtype=torch.bfloat16)
    slab = torch.zeros((2, longest + 1, *heads), dtype=torch.bfloat16)
    num_blocks = -(-(length + 1) // BLOCK_SIZE)
    pool = torch.zeros((2, num_blocks, BLOCK_SIZE, *heads), dtype=torch.bfloat16)
    block = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(0))[length // BLOCK_SIZE]
    slot = (block * BLOCK_SIZE + length % BLOCK_SIZE).reshape(1)

    def cat() -> tuple[Tensor, Tensor]:
        return torch.cat([grown[0], new]), torch.cat([grown[1], new])

    def preallocated() -> None:
        slab[0, length] = new[0]
        slab[1, length] = new[0]

    def paged() -> None:
        write_kv(new, new, pool[0], pool[1], slot)

    return {"torch.cat": cat, "preallocated": preallocated, "paged": paged}


def _findings(
    lengths: list[int],
    spent: dict[int, dict[str, float]],
    moved: dict[int, dict[str, int]],
    held: dict[int, dict[str, int]],
) -> list[str]:
    first, last = lengths[0], lengths[-1]
    return [
        f"At {count_text(last)} tokens torch.cat moves {bytes_text(moved[last]['torch.cat'])} for one token, the "
        f"others {bytes_text(moved[last]['paged'])}: {seconds_text(spent[last]['torch.cat'])} against "
        f"{seconds_text(spent[last]['preallocated'])} and {seconds_text(spent[last]['paged'])}.",
        f"At {count_text(first)} tokens the preallocated slab holds {bytes_text(held[first]['preallocated'])}, blocks "
        f"{bytes_text(held[first]['paged'])}.",
    ]
