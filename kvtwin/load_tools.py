"""Load tools that replay a trace against a server: the file each takes, and the command line that reads it rightly.

aiperf 0.13 (docs/benchmark-modes/trace-replay.md), vLLM 0.33 (`vllm bench serve`, `TimedTrace`), guidellm main of 2026
(docs/guides/trace_replay.md), inference-perf 0.7 (docs/config.md, utils/trace_reader.py).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from core.errors import InputError
from core.whole_file import can_be_written
from kvtwin.naming import near_or_all
from kvtwin.store import write_atomically
from traces.hashing import with_hash_ids, with_private_ids
from traces.schema import Trace
from traces.writers.mooncake import HASH_BLOCK_TOKENS
from traces.writing import write_trace_as

MODEL, URL = "MODEL", "http://HOST:PORT"


@dataclass(frozen=True)
class Exported:
    """The file that was written, its format, the command (a line an option), and what to know."""

    file: Path
    format_name: str
    command: str
    remarks: tuple[str, ...] = ()


def require_exportable(tool: str, folder: Path) -> None:
    """Raises InputError, before the work, for an unknown tool, and where `export` could not write into `folder`."""
    if tool not in TOOLS:
        raise InputError(f"--for {tool}: no such load tool{near_or_all(tool, TOOLS)}")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file; expected a folder, --out DIR")
    if not can_be_written(folder / tool):
        raise InputError(f"{folder}: cannot be written to; expected a folder, --out DIR, that can")
    if tool == "guidellm" and "," in str(folder):
        raise InputError(f"{folder}: guidellm takes no comma in a path; expected another --out")


def export(trace: Trace, tool: str, folder: Path) -> Exported:
    """Write what `tool` takes into `folder` (made if need be). Prompts given as text are told by 512-token blocks."""
    return TOOLS[tool](trace, folder)


def _aiperf(trace: Trace, folder: Path) -> Exported:
    hashed = _hashed(trace)
    file = folder / "aiperf.jsonl"
    write_trace_as("mooncake", hashed, file)
    block = [] if hashed.hash_block_tokens is None else [f"--isl-block-size {hashed.hash_block_tokens}"]
    command = _lines(
        "aiperf profile",
        f"--model {MODEL}",
        f"--url {URL}",
        "--endpoint-type completions",
        "--streaming",
        f"--input-file {_quoted(file)}",
        "--custom-dataset-type mooncake_trace",
        *block,
        "--fixed-schedule",
        "--fixed-schedule-auto-offset",
        "--extra-inputs ignore_eos:true",
    )
    return Exported(file, "mooncake", command, ("aiperf keeps times to the millisecond",))


def _vllm_bench(trace: Trace, folder: Path) -> Exported:
    remarks: tuple[str, ...] = ()
    if not trace.has_prefix_information:
        trace = with_private_ids(trace, HASH_BLOCK_TOKENS)
        remarks = ("the trace says nothing on prefixes: every prompt is made up and shares nothing",)
    hashed = _hashed(trace)
    file = folder / "vllm-bench.jsonl"
    write_trace_as("mooncake", hashed, file)
    command = _lines(
        "PYTHONHASHSEED=0 vllm bench serve",  # the prompts follow from hash() of the ids
        "--backend openai",
        "--endpoint /v1/completions",
        f"--model {MODEL}",
        f"--base-url {URL}",
        "--dataset-name timed_trace",
        f"--dataset-path {_quoted(file)}",
        f"--num-prompts {trace.num_requests}",
        "--timed-trace-sec-multiplier 0.001",
        f"--timed-trace-chunk-hash-size {hashed.hash_block_tokens}",
        "--self-timed",
        "--ignore-eos",
        "--save-result",
        "--save-detailed",
    )
    return Exported(file, "mooncake", command, remarks)


def _guidellm(trace: Trace, folder: Path) -> Exported:
    file = folder / "guidellm.jsonl"
    hashed = _hashed(trace)
    write_trace_as("mooncake", hashed, file)
    if hashed.hash_ids is None:
        data = f"kind=trace_synthetic,source.kind=json_file,source.path={file},time_scale=0.001"
    else:
        block = f"hash_id_block_size={hashed.hash_block_tokens}"
        data = f"kind=mooncake,source.kind=json_file,source.path={file},time_scale=0.001,{block}"
    command = _lines(
        "guidellm run",
        f"--backend kind=openai_http,target={URL}",
        "--profile kind=replay",
        f"--data {shlex.quote(data)}",
    )
    remark = f"compare the number of requests it records with {trace.num_requests}"
    return Exported(file, "mooncake", command, (remark,))


def _inference_perf(trace: Trace, folder: Path) -> Exported:
    file, config = folder / "inference-perf.csv", folder / "inference-perf.yml"
    write_trace_as("azure", trace, file)
    write_atomically(config, _INFERENCE_PERF_CONFIG.format(file=_yaml_text(str(file))).encode())
    command = f"inference-perf --config_file {_quoted(config)}"
    return Exported(file, "azure", command, (f"fill in model and address in {config}",))


TOOLS: dict[str, Callable[[Trace, Path], Exported]] = {
    "aiperf": _aiperf,
    "vllm-bench": _vllm_bench,
    "guidellm": _guidellm,
    "inference-perf": _inference_perf,
}

_INFERENCE_PERF_CONFIG = f"""\
load:
  type: trace_replay
  trace:
    file: {{file}}
    format: AzurePublicDataset
api:
  type: completion
  streaming: true
server:
  type: vllm
  model_name: {MODEL}
  base_url: {URL}
  ignore_eos: true
tokenizer:
  pretrained_model_name_or_path: {MODEL}
data:
  type: random
  trace:
    file: {{file}}
    format: AzurePublicDataset
"""


def _hashed(trace: Trace) -> Trace:
    """The trace with hash ids, as it is written: where prompts are given as text, by blocks of the usual size."""
    return trace if trace.prompt_segments is None else with_hash_ids(trace, HASH_BLOCK_TOKENS)


def _lines(program: str, *options: str) -> str:
    return " \\\n  ".join((program, *options))


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


def _yaml_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
