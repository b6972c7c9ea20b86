"""The files of a reshard: makes those in between from the first and the last one, and checks that they fit together.

The configuration goes through four stages (docs/topology.md). The second is the first file with the destinations
behind it, the third the last file with the sources behind it, each with ``serving = false``. So the operator writes
two files, and comments and order of both stay. Opens nothing but these files.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from freshness.config.config import Config, load_config
from freshness.config.keyspace import Keyspace, Shard
from freshness.errors import ConfigError
from freshness.keys.keyrange import KeyRange


class Stage(Enum):
    """The files of a reshard, in their order."""

    PREVIOUS = "the sources serve"
    FOLLOWED = "the sources serve, the destinations are followed"
    SWAPPED = "the destinations serve, the sources are closed"
    FINAL = "the destinations serve, the sources are gone"


@dataclass(frozen=True, slots=True)
class ReshardPlan:
    """``configs`` and ``texts``: the file of each stage; ``given``: paths of the first and the last one. ``sources``
    serve in the first one, ``destinations`` in the last."""

    keyspace: str
    sources: tuple[Shard, ...]
    destinations: tuple[Shard, ...]
    configs: Mapping[Stage, Config]
    texts: Mapping[Stage, str]
    given: Mapping[Stage, Path]

    @property
    def flavor(self) -> str:
        return self.configs[Stage.PREVIOUS].keyspaces[self.keyspace].flavor

    @property
    def topology(self) -> int:
        """The number of the topology in which the destinations serve."""
        return self.configs[Stage.FINAL].topology

    def sources_of(self, destination: Shard) -> tuple[Shard, ...]:
        """The sources that hold some of its keys."""
        return _overlapping(destination, self.sources)

    def find_stage(self, path: Path) -> Stage:
        """The stage whose file the invalidators' own equals, whatever its comments say. Raises `ConfigError` if it
        equals none of them."""
        present = replace(load_config(path), path=Path())
        for stage, config in self.configs.items():
            if replace(config, path=Path()) == present:
                return stage
        raise ConfigError(
            f"{path} is none of the four files of this reshard",
            hint=f"put {self.configs[Stage.PREVIOUS].path} back in its place, or give the files that it began with",
        )


def read_plan(previous_path: Path, final_path: Path) -> ReshardPlan:
    """The plan that leads from one file to the other. Raises `ConfigError` with all that is wrong with the two."""
    if previous_path.resolve().parent != final_path.resolve().parent:
        raise ConfigError(
            f"{previous_path} and {final_path} are in different folders",
            hint="put both beside the invalidators' own file: paths of passwords start at the folder",
        )
    previous, final = load_config(previous_path), load_config(final_path)
    keyspace = _find_keyspace(previous, final)
    before, after = previous.keyspaces[keyspace], final.keyspaces[keyspace]
    sources = _missing_in(after, before.shards)
    destinations = _missing_in(before, after.shards)
    problems = list(_find_problems(previous, final, keyspace, sources, destinations))
    if problems:
        raise ConfigError(
            f"{previous_path} and {final_path} are not the begin and the end of one reshard\n  "
            + "\n  ".join(problems)
            + "\n",
            hint="see docs/topology.md, Resharding",
        )
    texts = {
        Stage.PREVIOUS: _read(previous_path),
        Stage.FOLLOWED: _append(previous_path, final_path, keyspace, after, destinations),
        Stage.SWAPPED: _append(final_path, previous_path, keyspace, before, sources),
        Stage.FINAL: _read(final_path),
    }
    configs = {stage: _load_text(previous_path, text) for stage, text in texts.items()}
    given = {Stage.PREVIOUS: previous_path, Stage.FINAL: final_path}
    return ReshardPlan(keyspace, sources, destinations, configs, texts, given)


def _find_keyspace(previous: Config, final: Config) -> str:
    """The only one whose shards change."""
    changed = [
        name
        for name in {**previous.keyspaces, **final.keyspaces}
        if previous.keyspaces.get(name) != final.keyspaces.get(name)
    ]
    if len(changed) != 1 or not all(changed[0] in each.keyspaces for each in (previous, final)):
        raise ConfigError(
            f"{final.path} changes {len(changed)} keyspaces of {previous.path}: {', '.join(changed) or 'none'}",
            hint="a reshard exchanges shards of one keyspace that both files have",
        )
    return changed[0]


def _missing_in(keyspace: Keyspace, shards: Iterable[Shard]) -> tuple[Shard, ...]:
    known = {shard.lineage for shard in keyspace.shards}
    return tuple(shard for shard in shards if shard.lineage not in known)


def _find_problems(
    previous: Config, final: Config, name: str, sources: tuple[Shard, ...], destinations: tuple[Shard, ...]
) -> Iterable[str]:
    before, after = previous.keyspaces[name], final.keyspaces[name]
    if final.topology <= previous.topology:
        yield f"topology = {final.topology} in the second one: expected more than {previous.topology}"
    if replace(final, topology=previous.topology, keyspaces=previous.keyspaces, path=previous.path) != previous:
        yield "they differ outside of their keyspaces: change nodes, objects and other sections before or after"
    if replace(before, shards=()) != replace(after, shards=()):
        yield f"keyspace {name} changes its flavor, sharding or time-out: a reshard keeps them"
    if not sources or not destinations:
        yield (
            f"keyspace {name} loses {_names(sources)} and gains {_names(destinations)}: expected both; leave the "
            "sources out of the second file, and give each destination a lineage of its own, whatever its name"
        )
    for shard in (*sources, *destinations):
        if not shard.serving:
            yield f"{shard.lineage} has serving = false: list each shard where it serves; the verb adds the others"
    kept = {shard.lineage: shard for shard in after.shards}
    for shard in before.shards:
        if shard.lineage in kept and kept[shard.lineage] != shard:
            yield f"{shard.lineage} is in both files and not the same: change it before or after"
    for shard in destinations:
        overlapping = {source.lineage for source in _overlapping(shard, sources)}
        continued = set(shard.continues)
        if continued and continued != overlapping:
            yield (
                f"{shard.lineage} continues {', '.join(sorted(continued))}: expected all that it is made of, "
                f"{', '.join(sorted(overlapping)) or 'none'}, or none"
            )


def _overlapping(destination: Shard, sources: Iterable[Shard]) -> tuple[Shard, ...]:
    key_range = KeyRange.parse(destination.name)
    return tuple(each for each in sources if key_range.overlaps(KeyRange.parse(each.name)))


def _names(shards: Iterable[Shard]) -> str:
    return ", ".join(shard.lineage for shard in shards) or "no shard"


def _read(path: Path) -> str:
    return path.read_text("utf-8")


def _append(path: Path, other: Path, name: str, keyspace: Keyspace, shards: Iterable[Shard]) -> str:
    """The text of ``path`` with these shards of the other file, which do not serve."""
    tables = tomllib.loads(_read(other))["keyspaces"][name]["shards"]
    text = _read(path).rstrip("\n") + "\n"
    for shard in shards:
        table = {**tables[keyspace.shards.index(shard)], "lineage": shard.lineage, "serving": False}
        text += f"\n# Of {other.name}, by invalidator reshard\n[[keyspaces.{_key(name)}.shards]]\n"
        text += "".join(f"{_key(key)} = {toml_value(value)}\n" for key, value in table.items())
    return text


def _load_text(path: Path, text: str) -> Config:
    """As if ``path`` said this."""
    try:
        return load_config(path, instead=tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"{path}: no shard can be added behind it: {error}",
            hint="write each shard as a table of its own, [[keyspaces.NAME.shards]]",
        ) from error


def _key(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def toml_value(value: Any) -> str:
    """A value as it stands in a TOML file."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {toml_value(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
