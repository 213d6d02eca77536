"""kvtwin: replay a trace under any KV-cache policy, in a simulator and on a real engine, and see where they agree.

Users and plugins import from here only. `simulate`, `run_engine`, `compare` and `check_policy` load what they need when
asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvtwin import compiled

compiled.use()  # before the first of its modules is imported

from core.errors import InputError
from core.interfaces import (
    Admission,
    AdmissionPolicy,
    AllocationPolicy,
    BatchPolicy,
    BatchRules,
    Block,
    BlockKey,
    Change,
    EvictionPolicy,
    Leaf,
    LeafRanking,
    Policy,
    PolicyEnv,
    Preemption,
    PreemptionPolicy,
    PreemptMode,
    PriorityEviction,
    QueuePolicy,
    Running,
    SchedulerView,
    Shortage,
)
from core.request import Request
from core.routing import Replicas, ReplicaView, RoutingPolicy, StaticRouting

if TYPE_CHECKING:
    from kvtwin.api import compare, run_engine, simulate
    from kvtwin.conformance import check_policy

__all__ = [
    "Admission",
    "AdmissionPolicy",
    "AllocationPolicy",
    "BatchPolicy",
    "BatchRules",
    "Block",
    "BlockKey",
    "Change",
    "EvictionPolicy",
    "InputError",
    "Leaf",
    "LeafRanking",
    "Policy",
    "PolicyEnv",
    "PreemptMode",
    "Preemption",
    "PreemptionPolicy",
    "PriorityEviction",
    "QueuePolicy",
    "ReplicaView",
    "Replicas",
    "Request",
    "RoutingPolicy",
    "Running",
    "SchedulerView",
    "Shortage",
    "StaticRouting",
    "check_policy",
    "compare",
    "run_engine",
    "simulate",
]


def __getattr__(name: str) -> Any:
    if name in ("simulate", "run_engine", "compare"):
        from kvtwin import api

        return getattr(api, name)
    if name == "check_policy":
        from kvtwin.conformance import check_policy

        return check_policy
    raise AttributeError(f"module 'kvtwin' has no attribute {name!r}")
