"""From `my_module.MyClass`, `file.py:MyClass` or a short name to a policy with its parameters bound."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from core.errors import InputError
from kvtwin.binding import bind_policy, find_class
from kvtwin.composition import compose_config
from kvtwin.failures import failure_line
from kvtwin.naming import near_or_all
from kvtwin.policy_catalogue import names_of
from kvtwin.policy_kinds import KINDS, Kind, kind_named, kind_of


def bind_target(target: str, parameters: Sequence[str], kind_name: str | None) -> tuple[partial[Any], Kind]:
    """`factory(env)` makes the policy. `kind_name` chooses among kinds that have a policy of this name.

    Raises InputError for what cannot be found, is no policy, or takes no such parameters.
    """
    given = kind_named(kind_name) if kind_name is not None else None
    for parameter in parameters:
        if "=" not in parameter:
            raise InputError(f"policy check: cannot read {parameter!r}; expected key=value, a parameter of the policy")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # last: our packages have common names
    path, colon, class_name = target.rpartition(":")
    if colon and not class_name.isidentifier():
        raise InputError(f"policy check {target}: names no class; expected file.py:MyClass")
    if colon:
        return _bound(f"{_imported(path)}.{class_name}", parameters)
    if "." in target:
        return _bound(target, parameters)
    kind = _kind_with(target, given)
    config = compose_config("sim", [f"{kind.group}={target}", *_settings(kind, parameters)])
    return bind_policy(config[kind.group], kind.group, kind.base), kind


def _bound(target: str, parameters: Sequence[str]) -> tuple[partial[Any], Kind]:
    kind = kind_of(find_class(target, "policy"))
    config = compose_config("sim", [f"{kind.group}._target_={target}", *_settings(kind, parameters)])
    return bind_policy(config[kind.group], kind.group, kind.base), kind


def _settings(kind: Kind, parameters: Sequence[str]) -> list[str]:
    return [f"{kind.group}.{parameter}" for parameter in parameters]


def _kind_with(name: str, given: Kind | None) -> Kind:
    """The kind that has a policy of this name."""
    kinds = [given] if given is not None else list(KINDS.values())
    found = [kind for kind in kinds if name in names_of(kind)]
    if len(found) == 1:
        return found[0]
    if found:
        choices = " or ".join(f"--kind {kind.name}" for kind in found)
        raise InputError(f"policy check {name}: there are several of this name; expected {choices}")
    known = [option for kind in kinds for option in names_of(kind)]
    raise InputError(f"policy check {name}: no policy of this name{near_or_all(name, known)}")


def _imported(path: str) -> str:
    """The name of the module that a file is, imported under it. Raises InputError where another one has that name."""
    file = Path(path).expanduser()
    name = file.stem
    if not file.is_file() or file.suffix != ".py":
        raise InputError(f"policy check {path}: no such Python file; expected file.py:MyClass")
    spec = find_spec(name) if name not in sys.modules else sys.modules[name].__spec__
    if spec is not None and not _is_from(file, spec.origin):
        raise InputError(
            f"policy check {path}: {name} is the name of another module; expected another name for the file"
        )
    if name in sys.modules:
        return name
    spec = spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise InputError(f"policy check {path}: {failure_line(error)}") from error
    return name


def _is_from(file: Path, origin: str | None) -> bool:
    """`origin` of a module that is no file, such as one built in, is a word."""
    return origin is not None and Path(origin).is_file() and Path(origin).samefile(file)
