"""Swapped blocks in host memory: copies that are under way are not looked at, and nobody waits for them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from engine_world import TINY
from torch import Tensor

from engine.host_kv import HostKV
from engine.kv_cache import PagedKV, allocate_kv


@dataclass
class Late:
    """A copy to the host that arrives when it has been asked for often enough; looked at earlier, it is an error."""

    contents: Tensor
    num_asked: int
    copied: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.copied = self.contents.clone()

    def is_here(self) -> bool:
        self.num_asked -= 1
        return self.num_asked < 0

    def wait(self) -> Tensor:
        assert self.num_asked < 0, "the host waits for a copy"
        return self.copied


def late(seed: int = 0, most: int = 3) -> Callable[[Tensor], Late]:
    draw = random.Random(seed)
    return lambda contents: Late(contents, draw.randint(0, most))


def memory(num_blocks: int) -> PagedKV:
    kv = allocate_kv(TINY, num_blocks, 4, torch.float32, "cpu")
    kv.pool.fill_(torch.nan)
    return kv


def test_what_comes_back_is_what_left_last_whether_it_has_arrived_or_not():
    draw = random.Random(3)
    device, host, on_host = memory(8), HostKV(memory(6), late()), {}
    device.pool.zero_()
    for text in range(200):
        device.pool[:, :, draw.sample(range(8), 2)] = float(text)
        num = draw.randint(1, 4)
        blocks, host_blocks = draw.sample(range(8), num), draw.sample(range(6), num)
        if draw.random() < 0.5:
            on_host |= {at: device.pool[:, :, block].clone() for block, at in zip(blocks, host_blocks, strict=True)}
            device.move_blocks(blocks, host, host_blocks)
        elif on_host.keys() >= set(host_blocks):
            host.move_blocks(host_blocks, device, blocks)
            for block, at in zip(blocks, host_blocks, strict=True):
                assert torch.equal(device.pool[:, :, block], on_host[at])
    assert len(on_host) == 6


def test_what_has_arrived_lies_in_its_blocks_and_nowhere_else():
    device, pool = memory(4), memory(3)
    host = HostKV(pool, partial(Late, num_asked=2))
    device.pool.copy_(torch.arange(4.0).view(4, 1, 1, 1).expand(device.pool.shape))
    device.move_blocks([3, 1], host, [0, 2])
    assert pool.pool.isnan().all()
    host.settle()
    host.settle()
    assert torch.equal(pool.pool[:, :, [0, 2]], device.pool[:, :, [3, 1]])
    assert host._leaving == []
