"""The inner modules of the simulator as machine code, where `kvtwin compile` has made it from the sources at hand.

The machine code is that of mypyc: the same Python, with the same decisions. It lies in a folder named after the
sources, so code that was changed since is simply read as source again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from hashlib import sha256
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

from engine.cache_dir import default_cache_dir

ROOT = Path(__file__).parent.parent
PACKAGES = ("core", "policies", "sim", "traces")
LIBRARY = "kvtwin_compiled"
LIBRARY_MODULE = f"{LIBRARY}__mypyc"  # what mypyc makes of that name: it holds the code of them all

MODULES = (
    "core.admission",
    "core.async_scheduler",
    "core.attribution",
    "core.batch_eviction",
    "core.batch_index",
    "core.batch_order",
    "core.batch_pool",
    "core.block",
    "core.block_pool",
    "core.block_tables",
    "core.content",
    "core.contiguous",
    "core.decision_digest",
    "core.decision_log",
    "core.decode_batch",
    "core.digest_log",
    "core.growth",
    "core.id_attribution",
    "core.id_index",
    "core.id_line",
    "core.id_pool",
    "core.id_stack",
    "core.id_tables",
    "core.int_column",
    "core.lcm_tables",
    "core.leaf_first",
    "core.least",
    "core.line",
    "core.linked_index",
    "core.numbered_text",
    "core.plan",
    "core.pool",
    "core.prefix_hit",
    "core.prefix_index",
    "core.priority_order",
    "core.progression",
    "core.publication",
    "core.radix_tables",
    "core.recorder",
    "core.request",
    "core.request_log",
    "core.run_index",
    "core.run_pool",
    "core.running",
    "core.scheduler",
    "core.servable",
    "core.source",
    "core.span",
    "core.swap",
    "core.swapping",
    "core.view",
    "core.waiting_queue",
    "policies.admission.reservation",
    "policies.eviction.content_eviction",
    "policies.eviction.gdsf",
    "policies.eviction.gdsf_batches",
    "policies.eviction.ghost_batches",
    "policies.eviction.recompute_cost",
    "policies.eviction.s3fifo",
    "policies.eviction.s3fifo_batches",
    "policies.eviction.shares",
    "policies.eviction.sieve",
    "policies.eviction.sieve_batches",
    "policies.queueing.fcfs",
    "policies.routing.prefix_costs",
    "sim.async_replica",
    "sim.cluster",
    "sim.cost_model",
    "sim.express",
    "sim.fleet_by_replica",
    "sim.fleet_replica",
    "sim.fleet_views",
    "sim.flight",
    "sim.linear_cost",
    "sim.plain_admission",
    "sim.replica_by_itself",
    "sim.span_blocks",
    "sim.turns",
    "sim.watched_cost",
    "traces.key_book",
    "traces.replay",
)
"""What a step, a block or a request passes through. Interfaces and most policies stay as they are; and so do the frozen
dataclasses that processes send each other: mypyc's cannot be unpickled.
"""


def folder() -> Path:
    """Where the machine code of these sources, for this interpreter, lies or would lie."""
    return _all_folders() / f"{_digest()}-{sys.implementation.cache_tag}"


def _all_folders() -> Path:
    return Path(default_cache_dir()) / "compiled"


def _digest() -> str:
    """Of all that the machine code depends on: a module also knows the types of those that it imports."""
    known = sha256(Path(__file__).read_bytes())
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            known.update(path.relative_to(ROOT).as_posix().encode())
            known.update(path.read_bytes())
    return known.hexdigest()[:16]


def is_wanted() -> bool:
    """KVTWIN_COMPILED=0 says no."""
    return os.environ.get("KVTWIN_COMPILED") != "0"


def use() -> None:
    """From here on the modules are imported as machine code, where there is any. Too late if one is already there."""
    if not is_wanted() or is_used() or not _all_folders().is_dir():
        return
    if any(name in sys.modules for name in MODULES):
        return  # the two kinds do not mix
    place = folder()
    if place.is_dir():
        sys.meta_path.insert(0, _Finder(place))


def is_used() -> bool:
    """Do the modules of this process come as machine code?"""
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)


class _Finder(MetaPathFinder):
    """Finds the modules in the folder."""

    def __init__(self, place: Path) -> None:
        self._files = {
            name: place / (name.replace(".", "/") + EXTENSION_SUFFIXES[0]) for name in (*MODULES, LIBRARY_MODULE)
        }

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._files.get(fullname)
        return None if file is None else spec_from_file_location(fullname, file)
