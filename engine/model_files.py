"""Where a model of the user's own lies: a folder as Hugging Face keeps it, or one GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from core.errors import InputError
from engine.decoder_shape import DecoderShape
from engine.gguf_file import GGUFFile
from engine.hf_folder import HFFolder

if TYPE_CHECKING:
    import torch

    from engine.decoder_weights import DecoderWeights
    from engine.tokenizer import TextCodec


class ModelFiles(Protocol):
    """A model as it lies on disk. Everything raises InputError for files that are missing, damaged or not supported."""

    path: Path

    @property
    def shape(self) -> DecoderShape: ...

    @property
    def eos_ids(self) -> frozenset[int]: ...

    def weights(self, dtype: torch.dtype, device: torch.device | str) -> DecoderWeights: ...

    def codec(self) -> TextCodec: ...


def open_model(path: Path) -> ModelFiles:
    """The model at this path. Raises InputError where there is none of a known kind."""
    if path.is_dir():
        return HFFolder(path)
    if path.name == "config.json":
        raise InputError(f"{path}: one file of a model; expected its folder, {path.parent}")
    if path.is_file():
        return GGUFFile(path)
    raise InputError(f"{path}: no such model; expected a folder with config.json and *.safetensors, or a GGUF file")
