"""A GGUF file of the user's own: one file with dimensions, weights and tokenizer."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import InputError
from engine.decoder_shape import DecoderShape

if TYPE_CHECKING:
    import torch
    from gguf import GGUFReader

    from engine.decoder_weights import DecoderWeights
    from engine.tokenizer import TextCodec


class GGUFFile:
    """Raises InputError for a file that is no GGUF, or holds a model that the engine cannot run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def _reader(self) -> GGUFReader:
        try:
            from engine.gguf_metadata import open_gguf
        except ModuleNotFoundError as error:
            raise InputError(
                f"{self.path}: {error.name} is needed to read GGUF; pip install 'kvtwin[engine]'"
            ) from None
        return open_gguf(self.path)

    @cached_property
    def shape(self) -> DecoderShape:
        reader = self._reader
        from engine.gguf_metadata import read_shape

        return read_shape(reader)

    @property
    def eos_ids(self) -> frozenset[int]:
        """Tokens that end a text; none where the metadata name none."""
        field = self._reader.get_field("tokenizer.ggml.eos_token_id")
        return frozenset() if field is None else frozenset({int(field.contents())})

    def weights(self, dtype: torch.dtype, device: torch.device | str) -> DecoderWeights:
        from engine.gguf_loading import read_weights

        return read_weights(self._reader, self.shape, dtype, device)

    def codec(self) -> TextCodec:
        """The tokenizer.json beside the file, where there is one; else the one in the file."""
        from engine.gguf_tokenizer import read_tokenizer
        from engine.tokenizer import BPECodec
        from engine.weights import TOKENIZER_FILE

        beside = self.path.with_name(TOKENIZER_FILE)
        return BPECodec.load(beside) if beside.exists() else BPECodec(read_tokenizer(self._reader))
