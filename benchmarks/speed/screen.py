"""The results as a table, a row a contender."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from speed.contender import OUR_KINDS, OURS, Result

COLUMNS = ("case", "", "CPU s", "ratio", "process", "RSS MB", "requests/s", "steps", "preempted", "tokens", "hits")
COUNTS = ("num_steps", "num_preemptions", "output_tokens")


def table(cases: dict[str, dict[str, Result]]) -> Table:
    """For a terminal."""
    shown = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        shown.add_column(name, justify="left" if name in ("case", "") else "right", no_wrap=True)
    for row in rows(cases):
        shown.add_row(*row)
    return shown


def markdown(cases: dict[str, dict[str, Result]]) -> str:
    """The same as a table of Markdown."""
    sides = ["---" if name in ("case", "") else "---:" for name in COLUMNS]
    return "".join(f"| {' | '.join(row)} |\n" for row in (COLUMNS, sides, *rows(cases)))


def rows(cases: dict[str, dict[str, Result]]) -> Iterator[list[str]]:
    """`ratio` is our CPU time to the peer's; an empty field is what a contender does not tell."""
    for case, results in cases.items():
        for name, result in results.items():
            ratio = ratio_to_peer(name, results)
            yield [
                case if name == OURS else "",
                name,
                f"{result['cpu_s']:.3f}",
                f"{ratio:.2f}x" if ratio is not None else "",
                f"{result['process_cpu_s']:.2f}",
                f"{result['peak_rss_bytes'] / 1e6:.0f}",
                f"{result['num_requests'] / result['cpu_s']:,.0f}",
                *(_number(result.get(key), ",") for key in COUNTS),
                _number(result["hit_ratio"], ".3f"),
            ]


def ratio_to_peer(name: str, results: dict[str, Result]) -> float | None:
    """The CPU-seconds of one of ours to the peer's; None for the peer, and where there is none."""
    peers = [result for kind, result in results.items() if kind not in OUR_KINDS]
    return float(results[name]["cpu_s"] / peers[0]["cpu_s"]) if peers and name in OUR_KINDS else None


def _number(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"


def phases(result: Result) -> str:
    """Where our own time goes; the start is not part of it."""
    shown = {"startup": "startup_s", "load": "load_s", "run": "run_s", "metrics": "metrics_s"}
    return ", ".join(f"{name} {result[key]:.3f} s" for name, key in shown.items() if key in result)
