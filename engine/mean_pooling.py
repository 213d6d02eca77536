"""A checkpoint with fewer KV heads: each new key and value head is the mean of those whose place it takes.

Source: GQA (Ainslie et al., arXiv 2305.13245), section 2.1, where the model is trained on for a while afterwards;
without that, what it says is worse. Folders are read and written as Hugging Face keeps them.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from core.errors import InputError
from engine.hf_config import CONFIG_FILE, architecture_of, read_config, shape_of

_COPIED_SUFFIXES = (".json", ".txt", ".model")  # configuration and tokenizers
_KEYS_AND_VALUES = re.compile(r"\.self_attn\.[kv]_proj\.(weight|bias)$")


def mean_pooled(rows: Tensor, num_heads: int, num_pooled: int) -> Tensor:
    """Projection rows (or biases) of `num_heads` heads [num_heads head_dim, ...] as those of `num_pooled`: means of
    neighbours, taken in fp32. A query head keeps the group it would have had in a model made with `num_pooled`.
    """
    heads = rows.float().unflatten(0, (num_pooled, num_heads // num_pooled, -1))
    return heads.mean(dim=1).flatten(0, 1).to(rows.dtype)


def convert_folder(source: Path, target: Path, num_kv_heads: int) -> None:
    """Writes the model of `source` with so many KV heads to `target`, which appears whole or not at all.

    Raises InputError where the target exists, the model has no KV heads to pool, or these cannot be pooled so.
    """
    config = read_config(source)
    architecture_of(config)
    shape = shape_of(config)
    if shape.latent is not None:
        raise InputError(f"{source}: the model caches latents and has no KV heads to pool")
    if not 0 < num_kv_heads < shape.num_kv_heads or shape.num_kv_heads % num_kv_heads:
        raise InputError(
            f"{num_kv_heads} KV heads cannot be made of the {shape.num_kv_heads} in {source}; expected a divisor"
        )
    if target.exists():
        raise InputError(f"{target}: exists already; expected a folder to make")
    files = sorted(source.glob("*.safetensors"))
    if not files:
        raise InputError(f"{source}: no weights there; expected *.safetensors")
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".convert-") as scratch:
            building = Path(scratch) / target.name
            building.mkdir()
            for path in files:
                _convert_file(path, building / path.name, shape.num_kv_heads, num_kv_heads)
            for path in source.iterdir():
                if path.suffix in _COPIED_SUFFIXES:
                    shutil.copyfile(path, building / path.name)
            values = dict(config.values) | {"num_key_value_heads": num_kv_heads}
            (building / CONFIG_FILE).write_text(json.dumps(values, indent=2), encoding="utf-8")
            building.rename(target)
    except OSError as error:
        raise InputError(f"{target}: cannot be written ({error})") from None


def _convert_file(source: Path, target: Path, num_heads: int, num_pooled: int) -> None:
    try:
        with safe_open(source, framework="pt") as stored:
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 (not a dictionary)
    except SafetensorError as error:
        raise InputError(f"{source}: damaged weights ({error})") from None
    pooled = {
        name: mean_pooled(tensor, num_heads, num_pooled) if _KEYS_AND_VALUES.search(name) else tensor
        for name, tensor in tensors.items()
    }
    save_file(pooled, target, metadata={"format": "pt"})
