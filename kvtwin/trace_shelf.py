"""Traces that several jobs of a sweep replay, read once."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from kvtwin.experiment import load_trace
from traces.key_book import KeyBook
from traces.schema import Trace

# What is done to a trace once it is read: cheap, and each job's own.
_AFTER_READING = ("name", "limit", "rate_scale", "length_scale", "arrivals", "concurrency", "max_new_tokens")


class TraceShelf:
    """Keeps the traces that more than one job was announced to read; any other is read, handed over and forgotten.

    Traces are read-only: jobs may share one, and so may processes that are forked when the shelf is filled. With each
    goes a book of the block keys that a process has made of its tokens, of 256 MB at most.
    """

    def __init__(self) -> None:
        self._num_readers: Counter[str] = Counter()
        self._configs: dict[str, DictConfig] = {}
        self._traces: dict[str, Trace] = {}

    def announce(self, config: DictConfig) -> None:
        """A job of this configuration will ask for its trace; where that cannot be named, it will not come to it."""
        try:
            key = _key(config)
        except OmegaConfBaseException:
            return
        self._num_readers[key] += 1
        self._configs.setdefault(key, config)

    def fill(self) -> None:
        """Reads what several jobs will ask for. A trace that cannot be read is left to them, to be told as theirs."""
        for key, config in self._configs.items():
            if self._num_readers[key] > 1:
                try:
                    self.trace(config)
                except Exception:
                    continue

    def trace(self, config: DictConfig) -> Trace:
        """The configured trace, as it is before limits and scales; errors as `load_trace`."""
        key = _key(config)
        if key not in self._traces:
            trace = load_trace(config)
            if self._num_readers[key] < 2:
                return trace
            self._traces[key] = replace(trace, key_book=KeyBook())
        return self._traces[key]


def _key(config: DictConfig) -> str:
    trace = config.trace
    read_by = {str(name): value for name, value in trace.items() if name not in _AFTER_READING}
    if trace.get("recipe"):
        read_by["seed"] = (trace.seed, config.seed)  # generated traces follow either
    return json.dumps(read_by, sort_keys=True, default=str)
