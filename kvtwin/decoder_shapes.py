"""Between the two descriptions of a model: its memory and arithmetic (`ModelShape`), and how the engine computes it."""

from __future__ import annotations

from itertools import cycle, islice

from core.errors import InputError
from core.model_shape import ModelShape
from engine.decoder_shape import DecoderShape, ExpertShape, LatentShape


def decoder_shape_of(shape: ModelShape) -> DecoderShape:
    """The decoder that the engine builds, with random weights, for this shape: its work and its KV are the model's.

    What a `ModelShape` does not tell (RoPE's base, the activation) is as in Llama. Raises InputError, naming what is
    lacking, for models that the engine cannot run.
    """
    lacking = {
        "an MLP without gate (model.num_mlp_matrices=2)": shape.num_mlp_matrices != 3,
        f"{shape.num_norm_vectors} norms a layer (2 or 4 are built)": shape.num_norm_vectors not in (2, 4),
        "attention sinks, output biases or whatever model.extra_parameters counts (0: without)": shape.extra_parameters,
        "latent attention in layers that share KV": shape.latent_dim and shape.num_shared_layers,
    }
    missing = [feature for feature, is_there in lacking.items() if is_there]
    if missing:
        raise InputError(f"model={shape.name}: the engine has no decoder with {', '.join(missing)}")
    return DecoderShape(
        shape.num_layers,
        shape.hidden,
        shape.num_heads,
        shape.num_kv_heads,
        shape.head_dim,
        shape.intermediate,
        shape.vocab_size,
        shape.max_context_tokens,
        tied=shape.tied_embeddings,
        layer_windows=_layer_windows(shape),
        num_shared_layers=shape.num_shared_layers,
        qkv_bias=shape.qkv_bias,
        qk_norm=shape.qk_norm,
        post_norms=shape.num_norm_vectors == 4,
        latent=_latent_of(shape),
        experts=_experts_of(shape),
    )


def _layer_windows(shape: ModelShape) -> tuple[int | None, ...]:
    """Of all layers: those that share another's cache take up the pattern of those that have one, from its start."""
    windows = shape.kv_layer_windows
    return windows + tuple(islice(cycle(windows), shape.num_shared_layers))


def _latent_of(shape: ModelShape) -> LatentShape | None:
    if not shape.latent_dim:
        return None
    return LatentShape(shape.latent_dim, shape.rope_dim, shape.value_dim, shape.query_latent_dim)


def _experts_of(shape: ModelShape) -> ExpertShape | None:
    if not shape.num_experts:
        return None
    return ExpertShape(
        shape.num_experts,
        shape.num_active_experts,
        shape.expert_intermediate,
        shape.num_shared_experts,
        shape.num_dense_layers,
    )


def model_shape_of(name: str, shape: DecoderShape) -> ModelShape:
    """What the control plane, the cost models and `kvtwin size` need to know of a decoder."""
    windows = {window for window in shape.layer_windows if window is not None}
    if len(windows) > 1:
        raise InputError(f"model={name}: layers with windows of {sorted(windows)} tokens; expected one size of window")
    latent = shape.latent or LatentShape(0, 0, 0)
    experts = shape.experts or ExpertShape(0, 0, 0)
    return ModelShape(
        name=name,
        num_layers=shape.num_layers,
        hidden=shape.hidden,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        intermediate=shape.intermediate,
        vocab_size=shape.vocab_size,
        max_context_tokens=shape.max_positions,
        tied_embeddings=shape.tied,
        qkv_bias=shape.qkv_bias,
        qk_norm=shape.qk_norm,
        num_norm_vectors=4 if shape.post_norms else 2,
        window_tokens=max(windows, default=0),
        num_window_layers=sum(window is not None for window in shape.windows[: shape.num_kv_layers]),
        num_shared_layers=shape.num_shared_layers,
        latent_dim=latent.latent_dim,
        rope_dim=latent.rope_dim,
        value_dim=latent.value_dim,
        query_latent_dim=latent.query_latent_dim,
        num_experts=experts.num_experts,
        num_active_experts=experts.num_active,
        num_shared_experts=experts.num_shared,
        num_dense_layers=experts.num_dense_layers,
        expert_intermediate=experts.intermediate,
    )
