"""Arrays of a run that are made when somebody first reads them: a row a step is a lot for a run that nobody keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]


class LazyArrays(Mapping[str, NDArray[Any]]):
    """What `make` returns, all columns at once. Another process is sent the columns."""

    def __init__(self, make: Callable[[], Arrays]) -> None:
        self._make = make

    @cached_property
    def _arrays(self) -> Arrays:
        return self._make()

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self._arrays),)
