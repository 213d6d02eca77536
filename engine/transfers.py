"""Arrays to the device in one copy, and results back, without waiting for either."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

_PADDING = np.zeros(1, dtype=np.int64)
"""Behind arrays of odd length: kernels are compiled anew for addresses that are no multiples of 16 bytes."""

NOTHING = np.empty(0, dtype=np.int64)


class Sender:
    """Arrays, int64 [any length] each, as tensors: on a CPU where they lie, so they must not change afterwards.

    There, what the sending before had sent, too, keeps its tensor: to make one costs more than small sums do.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._sent: dict[int, tuple[np.ndarray, Tensor]] = {}  # by the array's id

    def send(self, arrays: Sequence[np.ndarray]) -> list[Tensor]:
        """One copy to the device, for which nothing waits."""
        if self.device.type != "cpu":
            return in_one_piece(arrays, self.device)
        before = self._sent
        sent = [before.get(id(array)) or (array, torch.from_numpy(array)) for array in arrays]
        self._sent = {id(array): both for array, both in zip(arrays, sent, strict=True)}
        return [tensor for _, tensor in sent]


def in_one_piece(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """The arrays as tensors of one piece of memory, each from a multiple of 16 bytes on, after one copy.

    To a GPU they go through pinned memory, which torch keeps until the copy is through, and nothing waits.
    """
    parts = [part for array in arrays for part in (array, _PADDING[: len(array) % 2])]
    lengths = list(map(len, parts))
    staged = torch.empty(sum(lengths), dtype=torch.int64, pin_memory=device.type == "cuda")
    np.concatenate(parts, out=staged.numpy())
    return list(staged.to(device, non_blocking=True).split(lengths)[::2])


class Reading:
    """A result on its way to the host: begun at once, waited for by `wait` alone."""

    def __init__(self, result: Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        self._result = result
        if result.is_cuda:
            self._result = torch.empty(result.shape, dtype=result.dtype, pin_memory=True)
            self._result.copy_(result, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    def is_here(self) -> bool:
        """Whether `wait` would return at once."""
        return self._arrived is None or self._arrived.query()

    def wait(self) -> Tensor:
        """The result, once everything that the device was given before it is done."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._result
