"""Engine and simulator on one trace: decisions in lockstep with shadow tags, a calibration, and times beside times."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu.stage import CannotRun, Findings, Setting

ASKED_ERROR = 0.05  # of throughput and of the mean time per output token
JUDGED = ("output_tokens_per_s", "tpot_s.mean", "e2e_s.mean")
LIMIT_S = 150
NEEDED = ("hydra", "simpy", "rich", "yaml")


def run(setting: Setting) -> Findings:
    """`kvtwin validate` in a process of its own; raises CannotRun where a package of the simulator is missing."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise CannotRun(f"not installed: {', '.join(missing)} (pip install simpy hydra-core rich)")
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "kvtwin.app", "validate", *setting.sizes.validation, f"out={folder}/run"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            return Findings(failures=[f"kvtwin validate was not done after {LIMIT_S} s"])
        comparison_file = Path(folder, "run", "comparison.json")
        if not comparison_file.exists():
            return Findings(failures=[f"kvtwin validate ended with {done.returncode}: {_last_line(done.stderr)}"])
        comparison = json.loads(comparison_file.read_text())
        checked = json.loads(Path(folder, "run", "engine-1", "summary.json").read_text())["engine"]["shadow_checked"]
    findings = Findings(
        [{"lockstep": comparison["lockstep"], "shadow_checked": checked, "calibration": comparison["calibration"]}]
    )
    findings.rows += [{"metric": name, **figures} for name, figures in comparison["metrics"].items()]
    if not comparison["lockstep"]["identical"]:
        findings.failures.append(f"decisions differ: {comparison['lockstep']}")
    if not sum(checked.values()):
        findings.failures.append("no shadow tag was checked")
    if setting.is_gpu:
        for name in JUDGED:
            error = comparison["metrics"][name]["error_ratio"]
            if error is None or abs(error) > ASKED_ERROR:
                findings.shortfalls.append(f"{name}: simulated with an error of {error}, {ASKED_ERROR} asked")
    return findings


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it said nothing"
