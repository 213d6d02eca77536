"""`generate` of Hugging Face transformers, greedy: `python transformers_peer.py FOLDER NUM_THREADS`."""

from __future__ import annotations

import sys

import torch
import transformers
from turns import Case, Turns


class Step(transformers.StoppingCriteria):
    """Called once a token; never stops."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: object) -> torch.Tensor:
        self._turns.step_done()
        return torch.zeros(len(input_ids), dtype=torch.bool)


def run(case: Case, model: transformers.PreTrainedModel, turns: Turns) -> None:
    ids = torch.randint(0, model.config.vocab_size, (case.batch, case.prompt))
    turns.begin()
    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=1 + case.steps,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        stopping_criteria=transformers.StoppingCriteriaList([Step(turns)]),
    )


def main() -> None:
    turns = Turns()
    torch.set_num_threads(int(sys.argv[2]))
    model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
    for case in turns.cases(f"transformers {transformers.__version__}, torch {torch.__version__}"):
        run(case, model, turns)


if __name__ == "__main__":
    main()
