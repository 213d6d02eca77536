"""A Hugging Face model folder: config.json, *.safetensors, tokenizer.json. Torch is loaded with the weights only."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from engine.decoder_shape import DecoderShape
from engine.hf_config import architecture_of, read_config, shape_of

if TYPE_CHECKING:
    import torch

    from engine.decoder_weights import DecoderWeights
    from engine.tokenizer import TextCodec


class HFFolder:
    """Raises InputError for a folder that holds no model, or one that the engine cannot run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._config = read_config(path)
        self._architecture = architecture_of(self._config)

    @cached_property
    def shape(self) -> DecoderShape:
        return shape_of(self._config)

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end a text; none where config.json names none."""
        value = self._config.values.get("eos_token_id")
        ids = value if isinstance(value, list) else [value]
        return frozenset(token for token in ids if isinstance(token, int))

    def weights(self, dtype: torch.dtype, device: torch.device | str) -> DecoderWeights:
        from engine.hf_weights import load_hf_weights

        return load_hf_weights(self.path, self._architecture, self.shape, dtype, device)

    def codec(self) -> TextCodec:
        from engine.tokenizer import BPECodec
        from engine.weights import TOKENIZER_FILE

        return BPECodec.load(self.path / TOKENIZER_FILE)
