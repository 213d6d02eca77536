"""`kvtwin validate`: the same trace on engine and simulator, compared."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from omegaconf import DictConfig

from kvtwin.store import read_run
from kvtwin.sweep import INTERRUPTED, JobOutcome, run_app
from kvtwin.tables import comparison_table, print_tables


def run(args: Sequence[str]) -> int:
    return run_app("validate", list(args), _job)


def _job(config: DictConfig) -> JobOutcome:
    from kvtwin.validating import validate_config

    found = validate_config(config)
    for notice in found.notices:
        print(f"note: {notice}", file=sys.stderr)
    if found.comparison is None:
        print(f"interrupted; what ran is in {found.folder}", file=sys.stderr)
        return JobOutcome(None, exit_status=INTERRUPTED)
    print_tables(comparison_table(found.comparison))
    lockstep = found.comparison["lockstep"]
    if lockstep["identical"]:
        print(f"decisions: identical ({lockstep['num_decisions']:,} compared, block ids included)")
    else:
        print(f"decisions: NOT identical; first difference: {found.comparison['first_difference']}")
    print(found.folder / "report.html" if config.report else found.folder)
    summary = read_run(found.folder / "sim").summary
    return JobOutcome(summary, exit_status=0 if lockstep["identical"] else 1)
