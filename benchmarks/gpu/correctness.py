"""Every kernel against plain torch in fp64, over all combinations of the grid: shared by several processes on a GPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from typing import Any, NamedTuple

import torch

from benchmarks.gpu.checks import CHECKS, NUM_KV_HEADS
from benchmarks.gpu.sizes import Sizes
from benchmarks.gpu.stage import Findings, Setting


class Check(NamedTuple):
    """One call to make: `kernel` names a function of CHECKS, `parameters` are its arguments."""

    kernel: str
    parameters: Mapping[str, Any]


class Outcome(NamedTuple):
    """The largest deviation, as a share of what is tolerated; what is wrong in words, empty where nothing is."""

    check: Check
    share: float
    wrong: str


def run(setting: Setting) -> Findings:
    checks = grid(setting.sizes)
    findings = Findings()
    outcomes = defaultdict(list)
    for outcome in _outcomes(checks, setting):
        outcomes[outcome.check.kernel].append(outcome)
    for kernel, found in outcomes.items():
        wrong = [outcome for outcome in found if outcome.wrong]
        worst = max((outcome.share for outcome in found if not outcome.wrong), default=None)
        findings.rows.append({"kernel": kernel, "num_calls": len(found), "num_wrong": len(wrong), "worst_share": worst})
        findings.failures += [f"{kernel} {_told(outcome.check.parameters)}: {outcome.wrong}" for outcome in wrong]
    return findings


def grid(sizes: Sizes) -> list[Check]:
    """All combinations for each kernel."""
    head_dims, group_sizes, dtypes, block_sizes = sizes.head_dims, sizes.group_sizes, sizes.dtypes, sizes.block_sizes
    shapes = _combined(head_dim=head_dims, group_size=group_sizes, dtype=dtypes)
    paged = _combined(head_dim=head_dims, group_size=group_sizes, dtype=dtypes, block_size=block_sizes)
    windowed = [shape | {"window": window} for shape, window in product(paged, (None, 5))]
    latent = _combined(dims=sizes.latent_dims, num_heads=sizes.latent_heads, dtype=dtypes, block_size=block_sizes)
    widths = sorted({head_dim * group_size * NUM_KV_HEADS for head_dim, group_size in product(head_dims, group_sizes)})
    plain = _combined(width=widths, dtype=dtypes)
    by_kernel = {
        "decode_attention": windowed,
        "prefill_attention": windowed,
        "cascade_decode_attention": paged,
        "mla_decode_attention": latent,
        "mla_prefill_attention": latent,
        "rope_kv_write": shapes,
        "write_kv": paged,
        "write_latents": latent,
        "rms_norm": plain,
        "add_rms_norm": plain,
        "swiglu": plain,
        "expert_product": plain,
        "copies": paged,
    }
    return [Check(kernel, parameters) for kernel, calls in by_kernel.items() for parameters in calls]


def _combined(**choices: Sequence[Any]) -> list[dict[str, Any]]:
    return [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]


def _outcomes(checks: list[Check], setting: Setting) -> Iterable[Outcome]:
    jobs = [(check, str(setting.device)) for check in checks]
    if not setting.sizes.num_processes:
        return list(map(outcome_of, jobs))
    with ProcessPoolExecutor(setting.sizes.num_processes, mp_context=get_context("spawn")) as pool:
        return list(pool.map(outcome_of, jobs, chunksize=4))


def outcome_of(job: tuple[Check, str]) -> Outcome:
    """Makes the call on the device named."""
    check, device = job
    torch.manual_seed(0)
    try:
        share = CHECKS[check.kernel](device=torch.device(device), **check.parameters)
    except Exception as error:  # a kernel that does not compile is a finding, not the end of the check
        return Outcome(check, torch.inf, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
    return Outcome(check, share, "" if share <= 1 else f"{share:.3g} of the tolerance")  # NaN is wrong, too


def _told(parameters: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in parameters.items())
