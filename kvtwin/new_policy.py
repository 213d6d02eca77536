"""A policy of the user's own from a template: checked names, and both files or none."""

from __future__ import annotations

import builtins
import keyword
import os
import re
import tempfile
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template

import kvtwin
from core.errors import InputError
from kvtwin.policy_kinds import Kind

_CAPITAL_WITHIN = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_NAMES_IN_TEST = ("SimpleNamespace", *kvtwin.__all__)


@dataclass(frozen=True)
class Draft:
    """What is to be written, and how it is used."""

    module: str
    cls: str
    policy_text: str
    test_text: str
    use: str  # words after `kvtwin sim`
    yaml: str

    @property
    def target(self) -> str:
        return f"{self.module}.{self.cls}"


def draft_policy(name: str, kind: Kind) -> Draft:
    """`my_policy` and `MyPolicy` both name the file my_policy.py with the class MyPolicy. Raises InputError for names
    that are none, or taken.
    """
    module = _CAPITAL_WITHIN.sub("_", name).lower()
    cls = "".join(part[:1].upper() + part[1:] for part in module.split("_"))
    _check_names(name, module, cls)
    setting = f" {kind.setting}" if kind.setting else ""
    use = f"{kind.group}._target_={module}.{cls}{setting}"
    also = f" (and {kind.setting})" if kind.setting else ""
    yaml = f"{kind.group}: {{_target_: {module}.{cls}}}{also}"
    fields = {"module": module, "cls": cls, "use": use, "yaml": yaml}
    policy, test = (Template(_template(f"{kind.name}.{part}.txt")).substitute(fields) for part in ("py", "test"))
    return Draft(module, cls, policy, test, use, yaml)


def write_draft(draft: Draft, folder: Path) -> tuple[Path, Path]:
    """Writes both files, or neither. Raises InputError rather than overwrite one."""
    paths = folder / f"{draft.module}.py", folder / f"test_{draft.module}.py"
    for path in paths:
        if path.exists():
            raise InputError(f"{path} exists already; expected another name, or another folder (--dir)")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_new(paths[0], draft.policy_text)
        try:
            _write_new(paths[1], draft.test_text)
        except BaseException:
            paths[0].unlink()
            raise
    except OSError as error:
        raise InputError(f"{paths[0]}: cannot be written ({error.strerror}); expected another folder (--dir)") from None
    return paths


def _write_new(path: Path, text: str) -> None:
    """Appears whole or not at all, and never in the place of another file."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.link(temporary, path)
    except FileExistsError:
        raise InputError(f"{path} exists already; expected another name, or another folder (--dir)") from None
    finally:
        os.unlink(temporary)


def _check_names(name: str, module: str, cls: str) -> None:
    expected = "expected a name such as my_policy"
    if not (name.isidentifier() and name.isascii()) or name.startswith("_"):
        raise InputError(f"policy new {name}: no Python identifier; {expected}")
    if keyword.iskeyword(name) or keyword.iskeyword(module) or keyword.issoftkeyword(name):
        raise InputError(f"policy new {name}: a word of Python's own; {expected}")
    if cls in _NAMES_IN_TEST or hasattr(builtins, cls):
        raise InputError(f"policy new {name}: {cls} is a name of kvtwin's or Python's own; {expected}")
    if find_spec(module) is not None:
        raise InputError(f"policy new {name}: there is a module {module} already; expected another name")


def _template(name: str) -> str:
    return files("kvtwin").joinpath("policy_templates", name).read_text(encoding="utf-8")
