"""What each key of the configuration may hold: one table, checked before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from core.build import PrefixIndex
from core.errors import InputError
from core.radix_tree import SplitCreated
from kvtwin.naming import no_such_key, options_of
from traces.reading import FORMATS
from traces.replay import Arrivals

MISSING = "???"
MOST_BLOCKS = 2**31 - 1  # of a pool
OPEN_BLOCKS = ("validate.calibration", "paper")  # of other keys; checked where they are merged, or read


class Rule(NamedTuple):
    """Whether a value is right, and what to say where it is not."""

    allows: Callable[[Any], bool]
    expected: str


def _whole(least: int, *words: str, most: float = float("inf")) -> Rule:
    bounds = f"from {least} to {most}" if most < float("inf") else f"of at least {least}"
    expected = f"a whole number {bounds}"
    return Rule(
        lambda value: value in words if isinstance(value, str) else _is_whole(value) and least <= value <= most,
        " or ".join([", ".join([expected, *words[:-1]]), *words[-1:]]),
    )


def _number(allows: Callable[[float], bool], expected: str) -> Rule:
    return Rule(lambda value: (_is_whole(value) or isinstance(value, float)) and allows(value), expected)


def _one_of(*words: str) -> Rule:
    return Rule(lambda value: value in words, f"one of {', '.join(words)}")


def _or_null(rule: Rule) -> Rule:
    return Rule(lambda value: value is None or rule.allows(value), f"{rule.expected}, or null")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_scale(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and Fraction(str(value)) > 0
    except (ValueError, ZeroDivisionError):
        return False


def _is_folder_name(value: Any) -> bool:
    return isinstance(value, str) and value not in ("", ".", "..") and not set(value) & set("/\\")


BOOLEAN = Rule(lambda value: isinstance(value, bool), "true or false")
TEXT = Rule(lambda value: isinstance(value, str) and value != "", "a text")
SCALE = Rule(_is_scale, "a positive number such as 2, 0.5 or 1/32")
NOT_NEGATIVE = _number(lambda value: 0 <= value < float("inf"), "a number from 0 on")
POSITIVE = _number(lambda value: 0 < value < float("inf"), "a number above 0")
SHARE = _number(lambda value: 0 < value <= 1, "a ratio in (0, 1]")
DURATION = _number(lambda value: 0 <= value <= 1e6, "seconds from 0 to 1e6")
WHOLE = _whole(0)
COUNT = _whole(1)
MOST_REPLICAS = 100_000  # each takes some 170 kB before its first request: beyond is a slip of the keyboard

RULES: Mapping[str, Rule] = {
    "name": Rule(_is_folder_name, "the name of a folder under runs/"),
    "out": _or_null(Rule(TEXT.allows, "a folder")),
    "seed": WHOLE,
    "preset": TEXT,
    "decisions": _one_of("full", "digest", "off"),
    "attribution": BOOLEAN,
    "fast_forward": BOOLEAN,
    "steps": BOOLEAN,
    "report": BOOLEAN,
    "hardware_file": Rule(TEXT.allows, "a file to write"),
    "trace.name": TEXT,
    "trace.sample": _or_null(TEXT),
    "trace.path": _or_null(Rule(TEXT.allows, "a trace file, trace.path=FILE")),
    "trace.recipe": Rule(TEXT.allows, "a recipe, by name or file"),
    "trace.seed": _or_null(WHOLE),
    "trace.num_requests": _or_null(COUNT),
    "trace.format": _one_of("auto", *(known.name for known in FORMATS)),
    "trace.hash_block_tokens": _or_null(COUNT),
    "trace.tokenizer": _or_null(Rule(TEXT.allows, "a tokenizer.json, or bytes/4")),
    "trace.on_error": _one_of("fail", "skip"),
    "trace.limit": _or_null(COUNT),
    "trace.rate_scale": SCALE,
    "trace.length_scale": SCALE,
    "trace.arrivals": _one_of(*(arrivals.value for arrivals in Arrivals)),
    "trace.concurrency": COUNT,
    "trace.max_new_tokens": _or_null(COUNT),
    "trace.num_samples": _or_null(COUNT),
    "trace.beam_width": _or_null(COUNT),
    "model.path": Rule(TEXT.allows, "a model folder or GGUF file, model.path=PATH"),
    "pool.num_blocks": _whole(1, "auto", "unbounded", most=MOST_BLOCKS),
    "pool.block_size_tokens": COUNT,
    "pool.host_blocks": _whole(0, most=MOST_BLOCKS),
    "pool.free_order": _one_of("unhashed_first", "append_all"),
    "pool.first_block_id": _whole(0, most=MOST_BLOCKS),
    "pool.leaf_first": BOOLEAN,
    "pool.prefix_index": _one_of(*(form.value for form in PrefixIndex)),
    "pool.split_created": _one_of(*(when.value for when in SplitCreated)),
    "scheduler.max_num_seqs": COUNT,
    "scheduler.max_batch_tokens": COUNT,
    "scheduler.chunked_prefill": BOOLEAN,
    "scheduler.prefix_caching": BOOLEAN,
    "scheduler.long_prefill_threshold_tokens": WHOLE,
    "scheduler.max_model_len": _whole(1, "auto", "unbounded"),
    "scheduler.keep_cancelled_registrations": BOOLEAN,
    "scheduler.publication": _one_of("schedule", "step_end"),
    "scheduler.admit_after_preemption": BOOLEAN,
    "scheduler.own_preemption_ends_step": BOOLEAN,
    "scheduler.async_scheduling": BOOLEAN,
    "cluster.num_replicas": _whole(1, most=MOST_REPLICAS),
    "cluster.shards": _whole(1, "auto"),
    "cluster.shards_on": _one_of("processes", "ray"),
    "batching.exempts_alone": BOOLEAN,
    "admission.full_prompt": BOOLEAN,
    "admission.watermark_when_idle": BOOLEAN,
    "admission.num_null_blocks": WHOLE,
    "preemption.ties": _one_of("last", "first"),
    "beams.drop_ratio": _number(lambda value: 0 <= value <= 1, "a ratio in [0, 1]"),
    "slo.ttft_s": _or_null(POSITIVE),
    "slo.tpot_s": _or_null(POSITIVE),
    "cost.path": Rule(TEXT.allows, "a file that `kvtwin calibrate` wrote, cost.path=FILE"),
    "cost.mfu": SHARE,
    "cost.mbu": SHARE,
    "cost.overhead_s": DURATION,
    "cost.constant_s": DURATION,
    "cost.prefill_token_s": DURATION,
    "cost.prefill_pair_s": DURATION,
    "cost.decode_sequence_s": DURATION,
    "cost.context_token_s": DURATION,
    "cost.swap_block_s": DURATION,
    "cost.copy_block_s": DURATION,
    "engine.output": _one_of("auto", "forced_tokens", "forced_length", "eos"),
    "engine.clock": _one_of("wall", "cpu"),
    "engine.device": Rule(TEXT.allows, "auto, cpu, cuda or cuda:N"),
    "engine.cached_keys": _one_of("rotated", "unrotated"),
    "engine.kernels": _one_of("auto", "reference", "cpu", "native", "triton"),
    "engine.cuda_graphs": BOOLEAN,
    "engine.cascade": BOOLEAN,
    "engine.dtype": _one_of("auto", "bfloat16", "float32"),
    "engine.threads": COUNT,
    "engine.temperature": NOT_NEGATIVE,
    "engine.top_k": WHOLE,
    "engine.top_p": SHARE,
    "engine.weights": _one_of("auto", "real", "random"),
    "engine.pool_bytes": _whole(1, "auto"),
    "engine.memory_fraction": SHARE,
    "engine.graph_bytes": WHOLE,
    "engine.shadow": BOOLEAN,
    "engine.outputs": BOOLEAN,
    "validate.repeats": COUNT,
    # kvtwin size
    "context": COUNT,
    "num_seqs": COUNT,
    "block_size_tokens": COUNT,
    "kv_dtype_bytes": COUNT,
    "tensor_parallel": COUNT,
    "memory_utilization": SHARE,
    "activation_bytes": WHOLE,
    "non_torch_bytes": WHOLE,
    "cuda_graph_bytes": WHOLE,
    "null_block": BOOLEAN,
    "window_layers": _one_of("windowed", "full"),
    "seed_units": BOOLEAN,
}


def check_settings(config: DictConfig) -> None:
    """Raises InputError for the first key that does not exist or holds what it cannot.

    A block with a `_target_` is a class and its parameters: of those only the ones in RULES are looked at, the others
    are the class's own affair.
    """
    try:
        resolved = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise InputError(f"configuration: {str(error).splitlines()[0]}") from None
    assert isinstance(resolved, dict)
    known = [*RULES, *(str(key) for key in resolved if isinstance(resolved[key], dict))]
    for key, value, is_parameter in _leaves(resolved):
        rule = RULES.get(key)
        if rule is None and not is_parameter:
            raise InputError(_chosen_by_value(key, value) if options_of(key) else no_such_key(key, known))
        if value == MISSING and (rule is not None or key.endswith("._target_")):
            expected = rule.expected if rule is not None else f"a class of your own, {key}=my_module.MyClass"
            raise InputError(f"{key} is missing: expected {expected}")
        if rule is not None and not rule.allows(value):
            raise InputError(f"{key}={_shown(value)}: expected {rule.expected}")


def _chosen_by_value(group: str, value: Any) -> str:
    """What is wrong with `eviction: sieve` in a file."""
    return (
        f"{group}={_shown(value)}: a value where a block of settings belongs; in a file an option is chosen by "
        f"`- override /{group}: {_shown(value)}` under `defaults:`"
    )


def _leaves(block: Mapping[Any, Any], prefix: str = "", in_class: bool = False) -> Iterator[tuple[str, Any, bool]]:
    """(dotted key, value, whether it is a parameter of a class) of every value that is no block."""
    for name, value in block.items():
        key = f"{prefix}{name}"
        if key in OPEN_BLOCKS:
            continue
        if isinstance(value, Mapping) and not in_class:
            yield from _leaves(value, f"{key}.", "_target_" in value)
        else:
            yield key, value, in_class


def _shown(value: Any) -> str:
    """As one would write it on the command line."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
