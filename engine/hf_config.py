"""The config.json of a Hugging Face model folder, read into a decoder's dimensions.

Keys and defaults are those of the configuration classes of transformers 4.57 and 5. No torch, no transformers here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from core.errors import InputError
from engine.decoder_shape import DecoderShape, ExpertShape, LatentShape
from engine.rope_scaling import RopeScaling

CONFIG_FILE = "config.json"
ROPE_KINDS = ("linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class Config:
    """One JSON object of a file, each value checked as it is taken."""

    path: Path
    values: Mapping[str, Any]

    def get(self, key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """The value, or the default where it is absent or null. Raises InputError for one of another kind."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InputError(f"{self.path}: {key} is {json.dumps(value)}; expected {_kind_name(kind)}")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number above 0."""
        value: int | None = self.get(key, int, default)
        if value is None:
            raise InputError(f"{self.path}: {key} is missing")
        if value < 1:
            raise InputError(f"{self.path}: {key} is {value}; expected at least 1")
        return value

    def number(self, key: str, default: float) -> float:
        value: float = self.get(key, (int, float), default)
        return float(value)

    def block(self, key: str) -> Config | None:
        values = self.get(key, dict)
        return None if values is None else Config(self.path, values)

    def refuse(self, key: str, unless: tuple[Any, ...], built: str) -> None:
        """Raises InputError where the key has a value that the engine does not compute."""
        value = self.values.get(key)
        if value not in unless:
            raise InputError(f"{self.path}: {key} is {json.dumps(value)}, which is not built; expected {built}")


def read_config(folder: Path) -> Config:
    """Raises InputError where there is none, or no JSON object."""
    path = folder / CONFIG_FILE
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; expected a model folder with config.json and *.safetensors") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not readable as JSON ({error})") from None
    if not isinstance(values, dict):
        raise InputError(f"{path}: expected a JSON object")
    return Config(path, values)


def architecture_of(config: Config) -> str:
    """Raises InputError, naming those that are built, for an architecture that the engine does not have."""
    names = config.get("architectures", list, [])
    name = names[0] if names else None
    if name not in SHAPES:
        raise InputError(f"{config.path}: architecture {name} is not built; expected one of {', '.join(SHAPES)}")
    return str(name)


def shape_of(config: Config) -> DecoderShape:
    """The decoder that the configuration describes. Raises InputError for what the engine does not compute."""
    quantization = config.block("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method", str, "an unknown method")
        raise InputError(f"{config.path}: weights quantized by {method} are not read; expected full precision")
    return SHAPES[architecture_of(config)](config)


def _llama(config: Config) -> DecoderShape:
    hidden, num_heads = config.count("hidden_size"), config.count("num_attention_heads")
    num_kv_heads = config.count("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise InputError(f"{config.path}: {num_heads} heads are no multiple of num_key_value_heads={num_kv_heads}")
    config.refuse("hidden_act", (None, "silu"), "silu")
    config.refuse("attention_bias", (None, False), "false")
    config.refuse("mlp_bias", (None, False), "false")
    config.refuse("partial_rotary_factor", (None, 1), "1")
    base, scaling = _rope(config)
    return DecoderShape(
        num_layers=config.count("num_hidden_layers"),
        hidden=hidden,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=config.count("head_dim", hidden // num_heads),
        intermediate=config.count("intermediate_size"),
        vocab_size=config.count("vocab_size"),
        max_positions=config.count("max_position_embeddings"),
        rope_base=base,
        rope_scaling=scaling,
        norm_eps=config.number("rms_norm_eps", 1e-6),
        tied=config.get("tie_word_embeddings", bool, False),
    )


def _mistral(config: Config) -> DecoderShape:
    shape = _llama(config)
    window_tokens = config.get("sliding_window", int)
    return shape if window_tokens is None else replace(shape, layer_windows=(window_tokens,) * shape.num_layers)


def _mixtral(config: Config) -> DecoderShape:
    shape = _mistral(config)
    experts = ExpertShape(
        config.count("num_local_experts"), config.count("num_experts_per_tok"), config.count("intermediate_size")
    )
    return replace(shape, intermediate=0, experts=experts)


def _qwen2(config: Config) -> DecoderShape:
    return replace(_llama(config), qkv_bias=True, layer_windows=_qwen_windows(config))


def _qwen3(config: Config) -> DecoderShape:
    return replace(_llama(config), qk_norm=True, layer_windows=_qwen_windows(config))


def _qwen_windows(config: Config) -> tuple[int | None, ...]:
    """Qwen's layers after the first `max_window_layers` have a window, where windows are switched on."""
    if not config.get("use_sliding_window", bool, False):
        return ()
    first, num_layers = config.get("max_window_layers", int, 28), config.count("num_hidden_layers")
    window_tokens = config.count("sliding_window", 4096)
    return tuple(None if layer < first else window_tokens for layer in range(num_layers))


def _qwen3_moe(config: Config) -> DecoderShape:
    config.refuse("mlp_only_layers", (None, []), "an empty list")
    config.refuse("decoder_sparse_step", (None, 1), "1")
    experts = ExpertShape(
        config.count("num_experts"),
        config.count("num_experts_per_tok"),
        config.count("moe_intermediate_size"),
        renormalised=config.get("norm_topk_prob", bool, False),
    )
    return replace(_qwen3(config), intermediate=0, experts=experts)


def _gemma3(config: Config) -> DecoderShape:
    config.refuse("hidden_activation", (None, "gelu_pytorch_tanh"), "gelu_pytorch_tanh")
    config.refuse("attn_logit_softcapping", (None,), "null")
    config.refuse("final_logit_softcapping", (None,), "null")
    config.refuse("use_bidirectional_attention", (None, False), "false")
    shape = _llama(replace(config, values={"head_dim": 256, "rope_theta": 1e6, **config.values, "hidden_act": "silu"}))
    num_layers, window_tokens = shape.num_layers, config.count("sliding_window", 4096)
    pattern = config.count("sliding_window_pattern", 6)
    kinds = config.get("layer_types", list) or [
        "sliding_attention" if (layer + 1) % pattern else "full_attention" for layer in range(num_layers)
    ]
    if len(kinds) != num_layers or set(kinds) - {"sliding_attention", "full_attention"}:
        raise InputError(f"{config.path}: layer_types: expected sliding_attention or full_attention a layer")
    return replace(
        shape,
        layer_windows=tuple(window_tokens if kind == "sliding_attention" else None for kind in kinds),
        window_rope_base=_window_rope_base(config),
        qk_norm=True,
        post_norms=True,
        activation="gelu_tanh",
        embedding_scale=shape.hidden**0.5,
        attention_scale=config.number("query_pre_attn_scalar", 256) ** -0.5,
        tied=config.get("tie_word_embeddings", bool, True),
    )


def _window_rope_base(config: Config) -> float:
    """transformers 5 has a block of rope parameters for each kind of layer, 4 a key for the windows' base."""
    parameters = config.block("rope_parameters")
    block = parameters.block("sliding_attention") if parameters else None
    return block.number("rope_theta", 1e4) if block else config.number("rope_local_base_freq", 1e4)


def _deepseek_v2(config: Config) -> DecoderShape:
    config.refuse("topk_method", (None, "greedy"), "greedy")
    config.refuse("scoring_func", (None, "softmax"), "softmax")
    config.refuse("moe_layer_freq", (None, 1), "1")
    rope_dim = config.count("qk_rope_head_dim")
    shape = _llama(replace(config, values={**config.values, "head_dim": config.count("qk_nope_head_dim")}))
    num_experts = config.get("n_routed_experts", int)
    experts = num_experts and ExpertShape(
        num_experts,
        config.count("num_experts_per_tok"),
        config.count("moe_intermediate_size"),
        config.get("n_shared_experts", int, 0),
        config.get("first_k_dense_replace", int, 0),
        config.get("norm_topk_prob", bool, False),
        config.number("routed_scaling_factor", 1.0),
    )
    shape = replace(
        shape,
        latent=LatentShape(
            config.count("kv_lora_rank"),
            rope_dim,
            config.count("v_head_dim"),
            config.get("q_lora_rank", int, 0),
        ),
        experts=experts or None,
    )
    return replace(shape, attention_scale=shape.query_dim**-0.5 * _mscale_squared(config))


def _mscale_squared(config: Config) -> float:
    """What DeepSeek multiplies the scores with where it stretches its positions (its own code, `softmax_scale`)."""
    block = config.block("rope_scaling")
    if block is None or not block.number("mscale_all_dim", 0):
        return 1.0
    return _mscale(block.number("factor", 1), block.number("mscale_all_dim", 0)) ** 2


def _mscale(factor: float, share: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * share * math.log(factor) + 1


def _rope(config: Config) -> tuple[float, RopeScaling | None]:
    """Base and scaling: of transformers 4 `rope_theta` and `rope_scaling`, of 5 `rope_parameters`."""
    parameters = config.block("rope_parameters")
    if parameters is not None:
        parameters = parameters.block("full_attention") or parameters
    block = parameters or config.block("rope_scaling")
    base = (parameters or config).number("rope_theta", config.number("rope_theta", 1e4))
    kind = block.get("rope_type", str) or block.get("type", str, "default") if block else "default"
    if block is None or kind == "default":
        return base, None
    if kind not in ROPE_KINDS:
        raise InputError(f"{config.path}: rope type {kind!r} is not built; expected default, {', '.join(ROPE_KINDS)}")
    factor = block.number("factor", 1)
    first_positions = block.get("original_max_position_embeddings", int) or config.count("max_position_embeddings")
    return base, RopeScaling(
        kind,
        factor,
        first_positions,
        block.number("low_freq_factor", 1),
        block.number("high_freq_factor", 4),
        block.number("beta_fast", 32),
        block.number("beta_slow", 1),
        _yarn_attention_factor(block, factor) if kind == "yarn" else 1.0,
    )


def _yarn_attention_factor(block: Config, factor: float) -> float:
    given: float | None = block.get("attention_factor", (int, float))
    if given is not None:
        return given
    share, share_all = block.number("mscale", 0), block.number("mscale_all_dim", 0)
    return _mscale(factor, share) / _mscale(factor, share_all) if share and share_all else _mscale(factor, 1)


def _kind_name(kind: type | tuple[type, ...]) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", list: "a list"}
    return "a number" if isinstance(kind, tuple) else names.get(kind, "an object")


SHAPES: Mapping[str, Callable[[Config], DecoderShape]] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "MixtralForCausalLM": _mixtral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "Qwen3MoeForCausalLM": _qwen3_moe,
    "Gemma3ForCausalLM": _gemma3,
    "DeepseekV2ForCausalLM": _deepseek_v2,
}
