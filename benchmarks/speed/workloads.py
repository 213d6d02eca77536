"""The traces that the simulators replay, written once in the form that each of them reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from traces.generate import generate
from traces.ragged import Ragged
from traces.recipe import load_recipe
from traces.schema import Trace
from traces.writing import write_trace_as

RATE_RPS = 6.45
HASH_BLOCK_TOKENS = 512


class Files(NamedTuple):
    """One trace: for us, and as the Mooncake file that Dynamo asks for."""

    ours: Path
    mooncake: Path


@dataclass(frozen=True)
class AzureShaped:
    """Lengths like those of the Azure conversation trace of 2023, arrivals of a Poisson process in whole milliseconds.

    Nothing is shared: every prompt has hash ids of its own where a file needs some. `is_hashed`: ours has them, too.
    """

    num_requests: int
    rate_rps: float = RATE_RPS
    all_at_once: bool = False
    is_hashed: bool = False

    def files(self, folder: Path, public: Path) -> Files:
        trace = self._trace()
        hashed = replace(trace, hash_block_tokens=HASH_BLOCK_TOKENS, hash_ids=_unshared_ids(trace))
        name = f"azure_{self.num_requests}_{self.rate_rps:g}_{self.all_at_once:d}"
        files = Files(folder / f"{name}.csv", folder / f"{name}.jsonl")
        for format_name, written, path in (("azure", trace, files.ours), ("mooncake", hashed, files.mooncake)):
            if not path.exists():
                write_trace_as(format_name, written, path)
        return Files(files.mooncake, files.mooncake) if self.is_hashed else files

    def _trace(self) -> Trace:
        recipe, _ = load_recipe("azure_conv_like")
        recipe = {**recipe, "arrivals": {"kind": "poisson", "rate_rps": self.rate_rps}, "time_quantum_s": 0.001}
        trace = generate(recipe, self.num_requests)
        return replace(trace, arrival_ps=np.zeros_like(trace.arrival_ps)) if self.all_at_once else trace


@dataclass(frozen=True)
class Public:
    """A public trace, as it lies in its folder; absent ones leave their cases out."""

    path: str  # below the folder of public traces

    def files(self, folder: Path, public: Path) -> Files | None:
        path = public / self.path
        return Files(path, path) if path.exists() else None


def _unshared_ids(trace: Trace) -> Ragged:
    offsets = np.concatenate(([0], np.cumsum(-(-trace.num_prompt_tokens // HASH_BLOCK_TOKENS))))
    return Ragged(np.arange(offsets[-1]), offsets)
