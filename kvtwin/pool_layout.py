"""What the blocks of a run's pool are: of which layers, and how many the configured memory holds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from core.errors import InputError
from core.interfaces import AllocationPolicy, PolicyEnv
from core.kv_group import KVGroup, merged
from core.large_pages import Carving, LargePageAllocation
from core.model_shape import ModelShape
from kvtwin.binding import class_of


class PoolLayout(NamedTuple):
    """The KV groups of a run, and its pool: `num_blocks` of them (None: without end), of `block_layers` layers each."""

    groups: tuple[KVGroup, ...]
    num_blocks: int | None
    block_layers: int


def has_large_pages(allocation: Callable[[PolicyEnv], AllocationPolicy]) -> bool:
    """Whether the policies of a checked factory give every KV group blocks of its own size."""
    assert isinstance(allocation, partial)
    return issubclass(class_of(allocation), LargePageAllocation)


def pool_layout(
    model: ModelShape, allocation: Callable[[PolicyEnv], AllocationPolicy], num_blocks: int | None
) -> PoolLayout:
    """`num_blocks` as configured: blocks with the layers of the largest group of equal size, whatever the allocation,
    so that the same number is the same memory (rounded down to large pages where there are such).

    Raises InputError for a pool that has no room for one large page.
    """
    groups = model.kv_groups()
    block_layers = max(group.num_layers for group in groups)
    if not has_large_pages(allocation):
        return PoolLayout(groups, num_blocks, block_layers)
    groups = merged(groups)
    large = Carving.of(groups).large
    if num_blocks is None:
        return PoolLayout(groups, None, 1)
    num_pages = num_blocks * block_layers // large
    if num_pages < 1:
        raise InputError(
            f"pool.num_blocks={num_blocks}: blocks of {block_layers} layers, a large page of {model.name} has {large};"
            f" expected at least {-(-large // block_layers)}"
        )
    return PoolLayout(groups, num_pages * large, 1)
