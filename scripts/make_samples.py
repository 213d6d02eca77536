"""Make the bundled traces, byte for byte the same on every machine.

python scripts/make_samples.py [FOLDER]       (default: traces/samples)
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from traces.samples import corpus_path
from traces.schema import Trace
from traces.synthetic import agent_sessions, chat, long_documents
from traces.writing import write_trace

SEED = 20231116  # the day of the trace that `chat` is fitted to
# Of AzureLLMInferenceTrace_conv.csv, 19,366 rows; a test compares them with the file.
AZURE_CONV_PERCENTILES = {
    "num_prompt_tokens": {"p50": 1020.0, "p90": 2734.5, "p99": 4142.0},
    "num_output_tokens": {"p50": 129.0, "p90": 424.0, "p99": 601.0},
    "inter_arrival_s": {"p50": 0.118424, "p90": 0.420656, "p99": 0.889671},
}
CREDIT = (
    "Azure LLM inference trace 2023, conversation (AzureLLMInferenceTrace_conv.csv), Microsoft Azure Public Dataset,"
    " CC-BY-4.0; Splitwise, ISCA 2024. Lengths and gaps are drawn from its quantiles; no row is copied."
)


def percentiles(trace: Trace) -> dict[str, dict[str, float]]:
    """p50, p90 and p99 of prompt tokens, output tokens and seconds between arrivals."""
    columns: dict[str, npt.NDArray[Any]] = {
        "num_prompt_tokens": trace.num_prompt_tokens,
        "num_output_tokens": trace.num_output_tokens,
        "inter_arrival_s": np.diff(trace.arrival_ps) / 1e12,
    }
    return {
        name: {f"p{percent}": round(float(np.percentile(column, percent)), 6) for percent in (50, 90, 99)}
        for name, column in columns.items()
    }


def make_samples(folder: Path) -> None:
    """Write the three traces into `folder`."""
    origin = {"made_by": "scripts/make_samples.py", "seed": SEED, "text": "corpus.txt"}
    chat_trace = chat(num_requests=1000, seed=SEED)
    fit = {"trace": AZURE_CONV_PERCENTILES, "sample": percentiles(chat_trace), "credit": CREDIT}
    write_trace(chat_trace, folder / "chat.jsonl", notes=origin | {"fit": fit})
    write_trace(agent_sessions(num_sessions=60, seed=SEED), folder / "agent_sessions.jsonl", notes=origin)
    documents = long_documents(num_documents=12, num_questions=150, seed=SEED)
    write_trace(documents, folder / "long_documents.jsonl", notes=origin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=corpus_path().parent)
    make_samples(parser.parse_args().folder)


if __name__ == "__main__":
    main()
