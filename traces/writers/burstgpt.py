"""BurstGPT CSV (version 1): seconds and lengths. The model is told as GPT-4: vLLM's reader keeps no other."""

from __future__ import annotations

from itertools import repeat
from typing import BinaryIO

from traces.schema import Trace
from traces.writers.text import arrivals, csv_lines, write_lines

NAME = "burstgpt"
DESCRIPTION = "CSV: Timestamp (s), Model, Request tokens, Response tokens, …"
CARRIES = frozenset({"lengths", "origin"})
RESOLUTION_PS = 1
_HEADER = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"


def write(trace: Trace, file: BinaryIO) -> None:
    num, prompts, outputs = trace.num_requests, trace.num_prompt_tokens, trace.num_output_tokens
    model, log_type = repeat("GPT-4", num), repeat("Conversation log", num)
    write_lines(file, csv_lines(_HEADER, arrivals(trace), model, prompts, outputs, prompts + outputs, log_type))
