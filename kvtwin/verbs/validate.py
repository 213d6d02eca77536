"""`kvtwin validate`: the same trace on engine and simulator, compared."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from omegaconf import DictConfig

from kvtwin.failures import require, tell
from kvtwin.ranking import RANKING_FILE, Validated, rankings_of, read_validated, why_no_ranking, write_ranking
from kvtwin.ranking_tables import print_rankings
from kvtwin.store import read_run
from kvtwin.sweep import INTERRUPTED, JobOutcome, in_sweep, run_app
from kvtwin.tables import comparison_table, print_tables
from kvtwin.verbs.finishing import note, tell_notes

SWEEP_HEADING = "\nSimulated (what was measured stands beside it in each configuration's own table, above):"


def run(args: Sequence[str]) -> int:
    """0 if the decisions are identical, 1 if they are not. A sweep ends with the ranking of what it validated."""
    folders: list[Path] = []
    status = run_app("validate", args, partial(_job, folders), heading=SWEEP_HEADING)
    if folders:
        _print_ranking([read_validated(folder) for folder in folders])
    return status


def _print_ranking(validated: Sequence[Validated]) -> None:
    rankings = rankings_of(validated)
    print_rankings(rankings)
    for ranking in rankings:
        print(write_ranking(Path("runs"), ranking) / RANKING_FILE)
    if not rankings:
        note(why_no_ranking(len(validated)))


def _job(swept: list[Path], config: DictConfig) -> JobOutcome:
    """Validates one configuration; one of a sweep adds its folder to `swept`."""
    if config.report:
        require("plotly")
    from kvtwin.validating import validate_config

    found = validate_config(config)
    for notice in found.notices:
        note(notice)
    if found.comparison is None:
        tell(f"what ran is in {found.folder}" if found.folder.exists() else "nothing ran to its end")
        return JobOutcome(None, INTERRUPTED)
    simulated = read_run(found.folder / "sim").summary
    tell_notes(simulated)
    print_tables(comparison_table(found.comparison))
    lockstep = found.comparison["lockstep"]
    if lockstep["identical"]:
        print(f"decisions: identical ({lockstep['num_decisions']:,} compared, block ids included)")
    else:
        print(f"decisions: NOT identical; first difference: {found.comparison['first_difference']}")
    print(found.folder / "report.html" if config.report else found.folder)
    if in_sweep():
        swept.append(found.folder)
    return JobOutcome(simulated, 0 if lockstep["identical"] else 1)
