"""Load driven until the pool is full, in the simulator: what happens to throughput, latency and memory at 100 %."""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from collections.abc import Mapping
from typing import Any

from core.errors import InputError
from kvtwin.api import simulate
from kvtwin.arguments import Arguments, count
from kvtwin.demonstrations.demonstration import Curve, Demonstration
from kvtwin.formatting import count_text, metric_text, ratio_text, seconds_text

_RATES = "0.25,0.5,1,1.5,2,3,4,8"


def add_options(parser: Arguments) -> None:
    parser.add_argument("--trace", default="chat_sample", metavar="NAME", help="a bundled trace; default chat_sample")
    parser.add_argument("--num-blocks", type=count, default=2500, metavar="N", help="of 16 tokens; default 2500")
    parser.add_argument(
        "--rates", type=_rates, default=_rates(_RATES), metavar="A,B", help=f"times the trace's own; default {_RATES}"
    )
    parser.add_argument("--limit", type=count, default=400, metavar="N", help="requests; default 400")


def _rates(text: str) -> list[float]:
    try:
        rates = sorted({float(word) for word in text.split(",")})
    except ValueError:
        rates = []
    if not rates or not 0 < rates[0] <= rates[-1] < 1e6:
        raise ArgumentTypeError(f"{text}; expected positive numbers with commas between them")
    return rates


def measure(options: Namespace) -> Demonstration:
    """Raises InputError for a single request, which has no rate, and for what cannot be simulated."""
    if options.limit < 2:
        raise InputError(f"--limit {options.limit}: one request has no rate; expected at least 2")
    found = [_simulated(options, rate) for rate in options.rates]
    rows = [_row(each) for each in found]
    return Demonstration(
        f"{options.trace}: {count_text(options.limit)} requests, ever faster; {count_text(options.num_blocks)} blocks",
        _findings(found),
        ("req/s offered", "served", "tok/s", "TTFT p50", "TTFT p99", "TPOT p50", "KV use", "peak", "preemptions"),
        rows,
        [
            Curve("TTFT p99 (s)", _column(found, "offered_rps"), _column(found, "ttft_p99_s")),
            Curve("KV use, mean (ratio)", _column(found, "offered_rps"), _column(found, "kv_use_ratio")),
            Curve("requests served (req/s)", _column(found, "offered_rps"), _column(found, "requests_per_s")),
        ],
        "requests offered (req/s)",
        "s, ratio, req/s",
        {"trace": options.trace, "num_blocks": options.num_blocks, "by_rate": found},
        is_logarithmic=True,
    )


def _simulated(options: Namespace, rate: float) -> dict[str, Any]:
    run = simulate(
        options.trace,
        pool={"num_blocks": options.num_blocks},
        overrides=[f"trace.rate_scale={rate}", f"trace.limit={options.limit}", "decisions=off"],
    )
    metrics = run.summary["metrics"]
    arrival_s = run.requests["arrival_s"]
    return {
        "rate_scale": rate,
        "offered_rps": float((len(arrival_s) - 1) / (arrival_s.max() - arrival_s.min())),
        "requests_per_s": metrics["requests_per_s"],
        "output_tokens_per_s": metrics["output_tokens_per_s"],
        "ttft_p50_s": metrics["ttft_s"]["p50"],
        "ttft_p99_s": metrics["ttft_s"]["p99"],
        "tpot_p50_s": metrics["tpot_s"]["p50"],
        "kv_use_ratio": metrics["kv_utilization_ratio"]["time_mean"],
        "kv_peak_ratio": metrics["kv_utilization_ratio"]["peak"],
        "num_preemptions": metrics["num_preemptions"],
        "num_rejected": metrics["outcomes"]["rejected"],
    }


def _column(found: list[dict[str, Any]], name: str) -> list[float]:
    return [each[name] for each in found]


def _row(each: Mapping[str, Any]) -> list[str]:
    return [
        f"{each['offered_rps']:.2f}",
        f"{each['requests_per_s']:.2f}",
        metric_text("output_tokens_per_s", each["output_tokens_per_s"]),
        seconds_text(each["ttft_p50_s"]),
        seconds_text(each["ttft_p99_s"]),
        seconds_text(each["tpot_p50_s"]),
        ratio_text(each["kv_use_ratio"]),
        ratio_text(each["kv_peak_ratio"]),
        count_text(each["num_preemptions"]),
    ]


def _findings(found: list[dict[str, Any]]) -> list[str]:
    first = next((each for each in found if each["num_preemptions"]), None)
    full = next((each for each in found if each["kv_peak_ratio"] >= 0.99), None)
    most = max(found, key=lambda each: float(each["requests_per_s"]))
    sentences = [f"At most {most['requests_per_s']:.2f} requests a second are served, however many are offered."]
    if full is not None:
        sentences.append(f"The pool is full at some time from {full['offered_rps']:.2f} requests a second on.")
    if first is not None:
        sentences.append(
            f"Then requests wait or are preempted (from {first['offered_rps']:.2f} a second on), {_rejected(found)}: "
            f"TTFT p99 grows from {seconds_text(found[0]['ttft_p99_s'])} to {seconds_text(found[-1]['ttft_p99_s'])}."
        )
    return sentences


def _rejected(found: list[dict[str, Any]]) -> str:
    num_rejected = max(int(each["num_rejected"]) for each in found)
    return f"up to {count_text(num_rejected)} are rejected" if num_rejected else "none is rejected"
