"""Weights: seeded random ones of any shape, or a model folder that is memory-mapped.

A model folder holds `model.safetensors` (the engine's own layout in fp32, the dimensions in its metadata) and
`tokenizer.json`. It is fp32 although the sources are smaller: an fp16 scale times an 8-bit integer needs 19 bits of
mantissa, so neither fp16 nor bf16 holds dequantized values exactly, and the exactness tests compare in fp32.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from core.errors import InputError
from engine.decoder_shape import DecoderShape
from engine.decoder_weights import DecoderWeights, GatedWeights, HeadWeights, LayerWeights
from engine.random_layers import RandomLayers

WEIGHTS_FILE = "model.safetensors"
TOKENIZER_FILE = "tokenizer.json"

_DEFAULTS = {field.name: field.default for field in fields(DecoderShape)}

# Standard deviation of a random model's logits: a clear best token, no certainty.
_LOGIT_SPREAD = 2.5


def random_weights(
    shape: DecoderShape, seed: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> DecoderWeights:
    """Gaussian weights that depend on (shape, seed) alone, scaled so that logits are neither flat nor saturated.

    The same values, rounded, for every dtype. The final norm has both signs: with tied embeddings a positive one
    would make each token predict itself.
    """
    draw = RandomLayers(shape, torch.Generator().manual_seed(seed), dtype, device)
    spread = _LOGIT_SPREAD * shape.hidden**-0.5
    embedding = draw.normal(shape.vocab_size, shape.hidden, spread=spread)
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(draw.layer(index) for index in range(shape.num_layers)),
        final_norm=draw.normal(shape.hidden, spread=1.0),
        head=embedding if shape.tied else draw.normal(*embedding.shape, spread=spread),
    )


def save_weights(folder: Path, shape: DecoderShape, weights: DecoderWeights) -> None:
    """Write model.safetensors of a Llama-family model into an existing folder."""
    tensors = {"embedding": weights.embedding, "final_norm": weights.final_norm}
    if not shape.tied:
        tensors["head"] = weights.head
    for index, layer in enumerate(weights.layers):
        tensors |= {f"layers.{index}.{name}": tensor for name, tensor in _stored_names(layer).items()}
    given = {name: value for name, value in asdict(shape).items() if value != _DEFAULTS[name]}
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"shape": json.dumps(given)})


def load_weights(
    folder: Path, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> tuple[DecoderShape, DecoderWeights]:
    """Map a model folder's weights; fp32 on the CPU shares the file's pages, anything else is a converted copy.

    Raises InputError when the file is missing, cut short or not ours.
    """
    path = folder / WEIGHTS_FILE
    try:
        with safe_open(path, framework="pt") as stored:
            shape = DecoderShape(**json.loads(stored.metadata()["shape"]))

            def weight(name: str) -> Tensor:
                return stored.get_tensor(name).to(device=device, dtype=dtype)

            def layer(index: int) -> LayerWeights:
                return _stored_layer(lambda name: weight(f"layers.{index}.{name}"))

            embedding = weight("embedding")
            return shape, DecoderWeights(
                embedding=embedding,
                layers=tuple(layer(index) for index in range(shape.num_layers)),
                final_norm=weight("final_norm"),
                head=embedding if shape.tied else weight("head"),
            )
    except FileNotFoundError as error:
        raise InputError(f"{path}: no weights there; fetch or convert the model first") from error
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: damaged weights ({error}); delete the folder and fetch the model again") from error


def _stored_names(layer: LayerWeights) -> dict[str, Tensor]:
    return {
        "attn_norm": layer.attn_norm,
        "qkv": layer.attention.qkv,
        "attn_out": layer.attention.out,
        "mlp_norm": layer.mlp_norm,
        "gate_up": layer.mlp.gate_up,
        "down": layer.mlp.down,
    }


def _stored_layer(weight: Callable[[str], Tensor]) -> LayerWeights:
    return LayerWeights(
        attn_norm=weight("attn_norm"),
        attention=HeadWeights(weight("qkv"), weight("attn_out")),
        mlp_norm=weight("mlp_norm"),
        mlp=GatedWeights(weight("gate_up"), weight("down")),
    )
