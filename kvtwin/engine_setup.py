"""From a configuration to an engine: weights, tokens of the trace, threads, device."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from omegaconf import DictConfig

from core.errors import InputError
from core.model_shape import ModelShape
from engine.attention import HeadAttention
from engine.cpu import keep_freed_memory, oversubscription, usable_cpus
from engine.decode_graphs import obstacle_to_graphs
from engine.decoder_shape import DecoderShape
from engine.decoder_weights import DecoderWeights
from engine.kernel_sets import kernels_for
from engine.kv_cache import kv_block_bytes
from engine.model import Decoder
from engine.output_mode import EndOfSequence, ForcedLength, ForcedTokens, OutputMode
from engine.smollm2 import find_smollm2_135m
from engine.tokenizer import BPECodec, ByteCodec, TextCodec
from engine.unrotated_attention import UnrotatedAttention
from engine.weights import TOKENIZER_FILE, load_weights, random_weights
from kvtwin.binding import PolicyFactory, instantiate_one
from kvtwin.decoder_shapes import decoder_shape_of
from kvtwin.device_memory import MemoryBudget, auto_pool_bytes, drawn_weights_bytes, memory_budget
from kvtwin.experiment import Experiment, load_experiment
from kvtwin.failures import tell
from kvtwin.formatting import bytes_text
from kvtwin.model_files import open_model_files
from kvtwin.prompt_tokens import TraceTokens, corpus_text
from traces.schema import Trace

HEAD_ATTENTIONS = {"rotated": HeadAttention, "unrotated": UnrotatedAttention}
REAL_WEIGHTS = {"smollm2_135m": find_smollm2_135m}
LONG_DRAW_BYTES = 2 * 10**9  # some ten seconds
REAL_ORIGIN = "SmolLM2-135M-Instruct, as dequantized from Q4_1"
EOS_IDS = {"smollm2_135m": frozenset({0, 2})}  # <|endoftext|>, <|im_end|>


@dataclass(frozen=True)
class LoadedModel:
    """A decoder with its tokenizer, and what to say about where its weights came from."""

    decoder: Decoder
    codec: TextCodec
    origin: str
    notice: str  # empty where real weights run
    eos_ids: frozenset[int] = frozenset()  # tokens that end a text; none where they are not known


@dataclass(frozen=True)
class EngineSetup:
    """Everything that stays from run to run on one engine; KV memory and control plane are made anew for each."""

    experiment: Experiment
    model: LoadedModel
    tokens: TraceTokens
    new_output_mode: Callable[[], OutputMode]
    settings: DictConfig  # the `engine` block
    memory: MemoryBudget | None  # of a GPU
    threads_notice: str  # empty where the threads fit the CPUs


def load_engine_setup(
    config: DictConfig,
    policies: Mapping[str, PolicyFactory] | None = None,
    trace: Trace | None = None,
    model: LoadedModel | None = None,
) -> EngineSetup:
    """Reads trace and weights. `model` reuses one that is loaded already. Raises InputError for what cannot run."""
    if config.cluster.num_replicas > 1:
        raise InputError(f"cluster.num_replicas={config.cluster.num_replicas}: the engine is one replica; expected 1")
    torch.set_num_threads(config.engine.threads)
    keep_freed_memory()
    shape: ModelShape = instantiate_one(config.model, "model")
    loaded = model or load_model(config, shape)
    _check_graphs(config, loaded.decoder)
    budget = memory_budget(config, loaded.decoder)
    experiment = load_experiment(
        config,
        default_num_blocks=_blocks_that_fit(config, loaded.decoder, budget),
        default_max_model_len=shape.max_context_tokens,
        single_steps=True,
        outputs_as_recorded=False,
        policies=policies,
        trace=trace,
    )
    if experiment.pool.num_blocks is None:
        raise InputError("pool.num_blocks=unbounded: the engine's KV memory is finite; expected a number or auto")
    mode = _output_mode(config, experiment.trace)
    if mode == "eos" and experiment.scheduler.async_scheduling:
        raise InputError(
            "engine.output=eos: under scheduler.async_scheduling=true a step is decided before the last one's token"
            " shows an end, which a replay cannot repeat; expected forced_length or forced_tokens"
        )
    if config.trace.beam_width is not None and config.engine.temperature:
        raise InputError(
            "engine.temperature: a beam search takes the most likely texts; expected 0, or no trace.beam_width"
        )
    if mode == "forced_tokens":
        experiment = experiment.with_recorded_outputs()
    tokens = TraceTokens(experiment.trace, loaded.codec.encode_corpus(corpus_text()), shape.vocab_size)
    new_output_mode = partial(_new_output_mode, mode, shape.name, loaded.eos_ids)
    crowding = oversubscription(config.engine.threads, os.environ, usable_cpus())
    return EngineSetup(experiment, loaded, tokens, new_output_mode, config.engine, budget, crowding)


def _check_graphs(config: DictConfig, decoder: Decoder) -> None:
    obstacle = obstacle_to_graphs(decoder.kernels, decoder.device)
    if obstacle is None and config.engine.cached_keys != "rotated":
        obstacle = "keys that are rotated when read are copied in every step (engine.cached_keys)"
    if config.engine.cuda_graphs and obstacle is not None:
        raise InputError(f"engine.cuda_graphs=true: {obstacle}; expected false")


def _blocks_that_fit(config: DictConfig, decoder: Decoder, budget: MemoryBudget | None) -> int:
    block_bytes = kv_block_bytes(decoder.shape, config.pool.block_size_tokens, decoder.dtype)
    num_bytes = auto_pool_bytes(config, budget)
    if num_bytes < block_bytes:
        raise InputError(f"engine.pool_bytes={num_bytes}: one block takes {block_bytes} bytes; expected more")
    return int(num_bytes // block_bytes)


def load_model(config: DictConfig, shape: ModelShape) -> LoadedModel:
    """Real weights where they are asked for, or wanted and at hand; else seeded random ones of the shape."""
    dtype = torch.float32 if config.engine.dtype == "float32" else torch.bfloat16
    device = _device(config.engine.device)
    if config.engine.weights != "random":
        loaded = _own_files(config, dtype, device) or _fetched(config, shape, dtype, device)
        if loaded is not None:
            return loaded
    decoder_shape = decoder_shape_of(shape)
    if device == "cpu":
        _tell_if_long(shape, drawn_weights_bytes(shape, dtype))
    weights = random_weights(decoder_shape, config.seed, dtype, device)
    origin = f"random weights, seed {config.seed}"
    notice = f"{origin}: the words mean nothing, the work is that of {shape.name}"
    return LoadedModel(_decoder(config, decoder_shape, weights), ByteCodec(shape.vocab_size), origin, notice)


def _tell_if_long(shape: ModelShape, num_bytes: int) -> None:
    if num_bytes >= LONG_DRAW_BYTES:
        tell(f"drawing random weights of {shape.name}, {bytes_text(num_bytes)}, which takes its time")


def _decoder(config: DictConfig, shape: DecoderShape, weights: DecoderWeights) -> Decoder:
    kernels = kernels_for(config.engine.kernels, shape, weights.embedding.device, weights.embedding.dtype)
    if config.engine.cached_keys == "unrotated" and shape.latent is not None:
        raise InputError("engine.cached_keys=unrotated: the model caches latents, not keys; expected rotated")
    return Decoder(shape, weights, kernels, HEAD_ATTENTIONS[config.engine.cached_keys])


def _own_files(config: DictConfig, dtype: torch.dtype, device: str) -> LoadedModel | None:
    """The model at `model.path`, where there is such a key."""
    path = config.model.get("path")
    if path is None:
        return None
    files = open_model_files(path)
    codec = files.codec()
    return LoadedModel(
        _decoder(config, files.shape, files.weights(dtype, device)), codec, str(files.path), "", files.eos_ids
    )


def _fetched(config: DictConfig, shape: ModelShape, dtype: torch.dtype, device: str) -> LoadedModel | None:
    """The real weights of a bundled shape, where they are in the cache."""
    find = REAL_WEIGHTS.get(shape.name)
    folder = find() if find else None
    if folder is not None:
        decoder_shape, weights = load_weights(folder, dtype, device)
        codec = BPECodec.load(folder / TOKENIZER_FILE)
        return LoadedModel(_decoder(config, decoder_shape, weights), codec, REAL_ORIGIN, "", EOS_IDS[shape.name])
    if config.engine.weights == "real":
        hint = f"fetch them: kvtwin model fetch {shape.name}" if find else f"known for {', '.join(REAL_WEIGHTS)}"
        raise InputError(
            f"engine.weights=real: no weights of {shape.name} at hand; {hint}, or model=file model.path=..."
        )
    return None


def _device(name: str) -> str:
    """The device by its torch name; raises InputError where there is none."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError):  # AssertionError: torch was built without CUDA
        known = "auto, cpu or cuda" if torch.cuda.is_available() else "auto or cpu"
        raise InputError(f"engine.device={name}: torch has no such device here; expected {known}") from None
    return name


def _output_mode(config: DictConfig, trace: Trace) -> str:
    if config.engine.output != "auto":
        return str(config.engine.output)
    says_its_own = config.trace.num_samples is not None or config.trace.beam_width is not None
    return "forced_tokens" if trace.output_segments is not None and not says_its_own else "forced_length"


def _new_output_mode(mode: str, model_name: str, eos_ids: frozenset[int]) -> OutputMode:
    if mode == "forced_tokens":
        return ForcedTokens()
    if mode == "forced_length":
        return ForcedLength()
    if not eos_ids:
        raise InputError(
            f"engine.output=eos: the end-of-sequence token of {model_name} is not known; use forced_length"
        )
    return EndOfSequence(eos_ids)
