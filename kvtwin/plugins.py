"""What installed packages add: policies by entry points (`kvtwin.eviction` and its like), YAML files by `kvtwin.conf`.

    [project.entry-points."kvtwin.eviction"]
    my_policy = "my_package:MyPolicy"

There is no other registry: the names are Hydra's options, and stand in `--help`, sweeps and globs like those that ship.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from core.errors import InputError
from core.interfaces import Policy
from kvtwin.binding import POLICY_GROUPS
from kvtwin.failures import failure_line, tell
from kvtwin.naming import did_you_mean, options_of

PREFIX = "kvtwin."
CONF_GROUP = "kvtwin.conf"


@dataclass(frozen=True)
class PluginPolicy:
    """A class that a package offers under a short name in a config group."""

    group: str
    name: str
    policy: type[Policy]
    package: str

    def node(self) -> dict[str, Any]:
        """The option as its YAML would be: the class, and those defaults of its parameters that YAML can hold."""
        policy = self.policy
        plain = {name: value for name, value in defaults_of(policy).items() if _is_plain(value)}
        return {"_target_": f"{policy.__module__}.{policy.__qualname__}", **plain}


@dataclass(frozen=True)
class PluginFile:
    """An option that a package brings as a YAML file."""

    group: str
    name: str
    file: Traversable
    package: str


def defaults_of(policy: type[Policy]) -> dict[str, Any]:
    """The parameters of a policy, but for its environment; `???` for one without a default."""
    taken = list(inspect.signature(policy).parameters.values())[1:]
    named = [one for one in taken if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    return {one.name: "???" if one.default is one.empty else one.default for one in named}


def offer_plugins() -> None:
    """Makes the options of installed packages known to Hydra. What cannot be imported is left out, and told once.

    Raises InputError where two would have the same name.
    """
    policies = plugin_policies()
    _check_names([*policies, *plugin_files()])
    for each in policies:
        ConfigStore.instance().store(group=each.group, name=each.name, node=each.node(), provider=each.package)
    Plugins.instance().register(PluginFolders)


class PluginFolders(SearchPathPlugin):
    """Where Hydra looks for YAML files beside our own."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for point in entry_points(group=CONF_GROUP):
            if _conf_folder(point) is not None:
                search_path.append(provider=_package(point), path=f"pkg://{point.value}")


def plugin_policies(group: str | None = None) -> list[PluginPolicy]:
    """The policies of all installed packages, or those of one config group."""
    found = []
    for point in _policy_points():
        policy = _policy(point)
        if policy is not None:
            found.append(PluginPolicy(point.group.removeprefix(PREFIX), point.name, policy, _package(point)))
    return [each for each in found if group in (None, each.group)]


def plugin_files(group: str | None = None) -> list[PluginFile]:
    """The YAML files of all installed packages, or those of one config group."""
    found = []
    for point in sorted(entry_points(group=CONF_GROUP)):
        folder = _conf_folder(point)
        if folder is not None:
            found += [PluginFile(*place, file, _package(point)) for place, file in _options_in(folder)]
    return [each for each in found if group in (None, each.group)]


def _policy_points() -> list[EntryPoint]:
    installed = entry_points()
    groups = [group for group in installed.groups if group.startswith(PREFIX) and group != CONF_GROUP]
    return sorted(point for group in groups for point in installed.select(group=group))


def _options_in(folder: Traversable, group: str = "") -> Iterator[tuple[tuple[str, str], Traversable]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _options_in(entry, f"{group}/{entry.name}".lstrip("/"))
        elif entry.name.endswith(".yaml"):
            yield (group, entry.name.removesuffix(".yaml")), entry


def _check_names(offered: list[PluginPolicy | PluginFile]) -> None:
    taken: dict[tuple[str, str], str] = {}
    for each in offered:
        owner = taken.get((each.group, each.name))
        if each.name in options_of(each.group) or files("conf").joinpath(each.group, f"{each.name}.yaml").is_file():
            owner = "kvtwin itself"
        if owner is not None:
            chosen = f"{each.group}={each.name}" if each.group else f"{each.name}.yaml"
            raise InputError(f"plugin {each.package}: {chosen} is the name of one by {owner}; expected another name")
        taken[each.group, each.name] = each.package


@cache
def _policy(point: EntryPoint) -> type[Policy] | None:
    """The class that an entry point names; None, and a line on standard error, where there is none to be had."""
    group = point.group.removeprefix(PREFIX)
    if group not in POLICY_GROUPS:
        known = [f"{PREFIX}{name}" for name in (*POLICY_GROUPS, "conf")]
        _left_out(point, f"no group {point.group}{did_you_mean(point.group, known)}")
        return None
    try:
        policy = point.load()
    except Exception as error:
        _left_out(point, f"{point.value}: {failure_line(error)}")
        return None
    if not (isinstance(policy, type) and issubclass(policy, Policy)):
        _left_out(point, f"{point.value} is no policy; expected a class derived from one of kvtwin's")
        return None
    return policy


@cache
def _conf_folder(point: EntryPoint) -> Traversable | None:
    """The folder of YAML files that an entry point names, which has to be a package."""
    try:
        import_module(point.value)
    except Exception as error:
        _left_out(point, f"{point.value}: {failure_line(error)}")
        return None
    return files(point.value)


def _left_out(point: EntryPoint, why: str) -> None:
    tell(f"plugin {point.name} of {_package(point)} is left out: {why}")


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "a package without a name"


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)
