"""Changes of the cache's nodes (docs/operations.md#adding-and-removing-nodes): the next file, and which step is due.

The file is edited as text, so that comments and order stay, and what the text says then is compared with what it
is to say. The file and the nodes' records alone show how far a change is. Only the file is written here, in one
piece, and in `renew` the records of a node are deleted.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from freshness.algorithm.envelope import record_key, resume_key
from freshness.algorithm.request import Delete
from freshness.config.config import Config, load_config
from freshness.errors import ConfigError, StepRefused
from freshness.nodes.open import open_node
from invalidator.process.checkup import Checkup
from invalidator.process.discovery import compare_nodes
from invalidator.process.status import read_nodes
from invalidator.reshard.plan import toml_value
from invalidator.rules.finding import CheckFinding
from invalidator.rules.rule import Rule

_ARRAY: Final = r"""\[(?:[^\]\["'#]|"[^"\n]*"|'[^'\n]*')*\]"""
_HEADER: Final = re.compile(r"^[ \t]*\[", re.MULTILINE)
_CACHE: Final = re.compile(r"^[ \t]*\[[ \t]*cache[ \t]*\]", re.MULTILINE)
_TOPOLOGY: Final = re.compile(r"^(topology[ \t]*=[ \t]*)[0-9_]+", re.MULTILINE)
_NODES: Final = re.compile(rf"^([ \t]*)(nodes[ \t]*=[ \t]*){_ARRAY}([^\n]*)", re.MULTILINE)
_PREVIOUS: Final = re.compile(rf"^[ \t]*previous_nodes[ \t]*=[ \t]*{_ARRAY}[^\n]*\n", re.MULTILINE)


def change_nodes(config: Config, change: Callable[[list[str]], list[str]]) -> str:
    """The text of the next file, in which ``change`` has made the list of nodes. Raises `ConfigError` while another
    change is under way, and `StepRefused` if a new node cannot be one."""
    present = list(config.cache.nodes)
    if config.cache.previous_nodes:
        raise ConfigError(
            f"{config.path}: a change of the nodes is under way: it has cache.previous_nodes",
            hint="end it first: `invalidator nodes` says what is next",
        )
    nodes = change(present)
    text, following = _edit(config, nodes, present)
    if config.cache.backend != "memory":
        checkup = Checkup(following)
        checkup.check_nodes()
        _require_sound(checkup.findings, {*nodes} - {*present})
    return text


def _require_sound(findings: Iterable[CheckFinding], added: Set[str]) -> None:
    found = [
        each
        for each in findings
        if each.rule in (Rule.TWO_NAMES, Rule.REFUSED)
        or (each.where in added and (each.severity == "error" or each.rule is Rule.NODE_DOWN))
    ]
    if found:
        told = "; ".join(each.message for each in found)
        hints = "; ".join(dict.fromkeys(each.hint for each in found))
        raise StepRefused(f"the nodes are not changed: {told}", hint=hints)


def add(present: Sequence[str], nodes: Sequence[str]) -> list[str]:
    known = [node for node in nodes if node in present]
    if known:
        raise ConfigError(f"cache.nodes has {', '.join(known)} already", hint="name those that are new")
    return [*present, *nodes]


def discover(config: Config) -> str | None:
    """The text of the next file, with the nodes that ``cache.nodes_from`` names besides; None if it names no others.

    Raises `StepRefused` if it lacks one: a node that is not ready leaves the DNS for a while.
    """
    if not (source := config.cache.nodes_from):
        raise ConfigError(f"{config.path} has no cache.nodes_from", hint="name a file or SRV records there")
    added, missing = compare_nodes(config)
    if missing:
        raise StepRefused(
            f"{source} does not name {', '.join(missing)} of cache.nodes: nothing is changed",
            hint=f"wait until it does, or if it is to go: invalidator nodes remove {missing[0]}",
        )
    return change_nodes(config, partial(add, nodes=added)) if added else None


def remove(present: Sequence[str], nodes: Sequence[str]) -> list[str]:
    _require_present(present, nodes)
    return [node for node in present if node not in nodes]


def replace_node(present: Sequence[str], previous: str, node: str) -> list[str]:
    _require_present(present, [previous])
    add(present, [node])
    return [node if each == previous else each for each in present]


def _require_present(present: Sequence[str], nodes: Sequence[str]) -> None:
    unknown = [node for node in nodes if node not in present]
    if unknown:
        raise ConfigError(
            f"cache.nodes does not have {', '.join(unknown)}", hint=f"it has {', '.join(present)}, written so"
        )


def finish(config: Config, *, is_after_ttl: bool) -> str:
    """The text of the file that ends the change. Raises `StepRefused` before its time."""
    step = find_step(config, read_nodes(config))
    if step.name not in ("expire", "finish"):
        raise StepRefused(
            f"the change of the nodes cannot be finished yet: {'; '.join(step.missing) or step.title}", hint=step.todo
        )
    if step.name == "expire" and not is_after_ttl:
        raise StepRefused(
            f"nodes were removed, and nothing shows that entries from before have expired: {step.title}",
            hint=step.todo,
        )
    return _edit(config, list(config.cache.nodes), [])[0]


def _edit(config: Config, nodes: list[str], previous: list[str]) -> tuple[str, Config]:
    """The next file. Raises `ConfigError` with all that is wrong with it, or if its text cannot be made here."""
    text, topology = config.path.read_text("utf-8"), config.topology + 1
    wanted = deepcopy(tomllib.loads(text))
    wanted["topology"] = topology
    wanted["cache"]["nodes"] = nodes
    wanted["cache"].pop("previous_nodes", None)
    lines = f"nodes = {_array(nodes)}\n"
    if previous:
        wanted["cache"]["previous_nodes"] = previous
        lines += f"previous_nodes = {_array(previous)}\n"
    following = load_config(config.path, instead=wanted)
    edited = _edit_text(text, topology, nodes, previous)
    try:
        is_right = tomllib.loads(edited) == wanted
    except tomllib.TOMLDecodeError:
        is_right = False
    if not is_right:
        raise ConfigError(
            f"{config.path}: its nodes cannot be changed as text: expected topology above the first section, and in"
            " [cache] a line for nodes, an array without comments",
            hint=f"write yourself: topology = {topology}, and in [cache]:\n{lines}"
            + ("" if previous else "and no previous_nodes"),
        )
    return edited, following


def _edit_text(text: str, topology: int, nodes: Sequence[str], previous: Sequence[str]) -> str:
    first = _HEADER.search(text)
    top, rest = (text[: first.start()], text[first.start() :]) if first else (text, "")
    top, count = _TOPOLOGY.subn(lambda found: f"{found[1]}{topology}", top, 1)
    if not count:
        top += f"topology = {topology}\n\n"
    begin = _CACHE.search(rest)
    if begin is None:
        return text
    end = _HEADER.search(rest, begin.end())
    cache, behind = (rest[begin.end() : end.start()], rest[end.start() :]) if end else (rest[begin.end() :], "")
    cache = _PREVIOUS.sub("", cache, 1)

    def write(found: re.Match[str]) -> str:
        is_long = "\n" in found[0]
        line = f"\n{found[1]}previous_nodes = {_array(previous)}" if previous else ""
        return f"{found[1]}{found[2]}{_array(nodes, found[1] if is_long else None)}{found[3]}{line}"

    return top + rest[: begin.end()] + _NODES.sub(write, cache, 1) + behind


def _array(nodes: Sequence[str], indent: str | None = None) -> str:
    if indent is None:
        return toml_value(list(nodes))
    return "[\n" + "".join(f"{indent}    {toml_value(node)},\n" for node in nodes) + f"{indent}]"


@dataclass(frozen=True, slots=True)
class NodesStep:
    """The step that is due. ``missing``: signs that it is not done; ``todo``: action of the operator."""

    name: str
    title: str
    todo: str
    missing: Sequence[str] = ()


def find_step(config: Config, entries: Sequence[Mapping[str, Any]]) -> NodesStep:
    """``entries``: result of `read_nodes`."""
    path, cache = config.path, config.cache
    missing = list(_find_unserved(config, entries))
    if missing:
        todo = f"give {path} to every invalidator, let it load the file (SIGHUP), and wait"
        return NodesStep("load", f"the invalidators serve the nodes by topology {config.topology}", todo, missing)
    if not cache.previous_nodes:
        return _find_renewal(config, entries)
    missing = [
        f"{reader} still reads by the previous nodes (seen on {entry['node']})"
        for entry in entries
        for reader in entry.get("previous_readers", ())
    ]
    if missing:
        return NodesStep("applications", "the applications read by the file", f"give {path} to them", missing)
    removed = [node for node in cache.previous_nodes if node not in cache.nodes]
    if removed:
        title = f"entries from before the removal of {', '.join(removed)} expire ({cache.value_ttl_seconds} s)"
        todo = f"when so long ago the last application got {path}: invalidator nodes finish --after-ttl"
        return NodesStep("expire", title, todo)
    todo = f"invalidator nodes finish, when each application has {path}; those that read nothing are not seen"
    return NodesStep("finish", "the change can be finished", todo)


def _find_unserved(config: Config, entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    serving = {shard.lineage for each in config.keyspaces.values() for shard in each.serving_shards}
    for entry in entries:
        if entry["state"] == "unavailable" and entry["node"] not in config.cache.nodes:
            continue  # it is removed because it is down
        place, state = f"{entry['node']} of {entry['lineage']}", entry["state"]
        if state != "open" and (entry["lineage"] in serving or state != "closed"):
            yield f"{place}: {state}{': ' + entry['error'] if 'error' in entry else ''}"
        elif entry["topology"] != config.topology:
            yield f"{place}: of topology {entry['topology']}"
        elif entry["stripes_there_percent"] < 100:
            yield f"{place}: {entry['stripes_there_percent']:g} % of its stripes are there"


def _find_renewal(config: Config, entries: Sequence[Mapping[str, Any]]) -> NodesStep:
    stripes = config.cache.stripes
    others = {entry["node"]: entry["stripes"] for entry in entries if entry["stripes"] != stripes}
    if not others:
        return NodesStep("none", "no change of the nodes is under way", "nothing")
    missing = [f"{node} has {count} stripes, cache.stripes = {stripes}" for node, count in others.items()]
    title = "nodes have another number of stripes than the file"
    return NodesStep("renew", title, f"invalidator nodes renew {next(iter(others))}", missing)


def renew(config: Config, node: str) -> None:
    """Let a node begin a new life. Raises `ConfigError` for an unknown one, `StepRefused` while another one is not
    open. As if it had lost these items: its entries are garbage, and its invalidators join it again."""
    _require_present(config.cache.nodes, [node])
    others = [entry for entry in read_nodes(config) if entry["node"] != node]
    missing = list(_find_unserved(config, others))
    if missing:
        raise StepRefused(
            f"{node} is not renewed while another node is not open: {'; '.join(missing)}", hint="wait, then again"
        )
    namespace = config.cache.namespace
    # The copy first: a life whose copy is there would be revived
    keys = [key(namespace, lineage) for lineage in config.lineages for key in (resume_key, record_key)]
    with closing(open_node(config.cache.access, node)) as opened:
        opened.perform([Delete(key) for key in keys])


def read_step(path: Path) -> NodesStep:
    config = load_config(path)
    return find_step(config, read_nodes(config))
