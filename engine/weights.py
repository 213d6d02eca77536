"""Weights: seeded random ones of any shape, or a model folder that is memory-mapped.

A model folder holds `model.safetensors` (the engine's own layout in fp32, the dimensions in its metadata) and
`tokenizer.json`. It is fp32 although the sources are smaller: an fp16 scale times an 8-bit integer needs 19 bits of
mantissa, so neither fp16 nor bf16 holds dequantized values exactly, and the exactness tests compare in fp32.
"""

import json
from dataclasses import asdict, fields
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from core.errors import InputError
from engine.decoder_shape import DecoderShape, DecoderWeights, LayerWeights

WEIGHTS_FILE = "model.safetensors"
TOKENIZER_FILE = "tokenizer.json"

# Standard deviation of a random model's logits: a clear best token, no certainty.
_LOGIT_SPREAD = 2.5


def random_weights(
    shape: DecoderShape, seed: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> DecoderWeights:
    """Gaussian weights that depend on (shape, seed) alone, scaled so that logits are neither flat nor saturated.

    The same values, rounded, for every dtype. The final norm has both signs: with tied embeddings a positive one
    would make each token predict itself.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*dims: int, spread: float) -> Tensor:
        return (torch.randn(dims, generator=generator) * spread).to(dtype).to(device)

    def projection(num_out: int, num_in: int) -> Tensor:
        return normal(num_out, num_in, spread=num_in**-0.5)

    def layer() -> LayerWeights:
        attention_width = shape.num_heads * shape.head_dim
        return LayerWeights(
            attn_norm=1 + normal(shape.hidden, spread=0.1),
            qkv=projection(attention_width + 2 * shape.num_kv_heads * shape.head_dim, shape.hidden),
            attn_out=projection(shape.hidden, attention_width),
            mlp_norm=1 + normal(shape.hidden, spread=0.1),
            gate_up=projection(2 * shape.intermediate, shape.hidden),
            down=projection(shape.hidden, shape.intermediate),
        )

    embedding = normal(shape.vocab_size, shape.hidden, spread=_LOGIT_SPREAD * shape.hidden**-0.5)
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(layer() for _ in range(shape.num_layers)),
        final_norm=normal(shape.hidden, spread=1.0),
        head=embedding if shape.tied else normal(*embedding.shape, spread=_LOGIT_SPREAD * shape.hidden**-0.5),
    )


def save_weights(folder: Path, shape: DecoderShape, weights: DecoderWeights) -> None:
    """Write model.safetensors into an existing folder."""
    tensors = {"embedding": weights.embedding, "final_norm": weights.final_norm}
    if not shape.tied:
        tensors["head"] = weights.head
    for index, layer in enumerate(weights.layers):
        tensors |= {f"layers.{index}.{name}": getattr(layer, name) for name in _layer_names()}
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"shape": json.dumps(asdict(shape))})


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

            embedding = weight("embedding")
            return shape, DecoderWeights(
                embedding=embedding,
                layers=tuple(
                    LayerWeights(**{name: weight(f"layers.{index}.{name}") for name in _layer_names()})
                    for index in range(shape.num_layers)
                ),
                final_norm=weight("final_norm"),
                head=embedding if shape.tied else weight("head"),
            )
    except FileNotFoundError as error:
        raise InputError(f"{path}: no weights there; fetch or convert the model first") from error
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: damaged weights ({error}); delete the folder and fetch the model again") from error


def _layer_names() -> list[str]:
    return [field.name for field in fields(LayerWeights)]
