"""`model=file`: a model of the user's own, by the path of its folder or file."""

from __future__ import annotations

from pathlib import Path

from core.model_shape import ModelShape
from engine.model_files import ModelFiles, open_model
from kvtwin.decoder_shapes import model_shape_of


def open_model_files(path: str) -> ModelFiles:
    """Raises InputError where there is none of a known kind."""
    return open_model(Path(path).expanduser())


def model_file(path: str) -> ModelShape:
    """The shape of the model at this path: what `conf/model/file.yaml` instantiates. It is called as its file is."""
    files = open_model_files(path)
    return model_shape_of(files.path.stem if files.path.is_file() else files.path.resolve().name, files.shape)
