"""The whole of ``freshness.toml``: one file serves the invalidator and the application, so that both agree on
placement, stripes and L.

A file beside this one has each section: its settings as a frozen dataclass, and how they are read and checked. Here
are the checks across sections. `load_config` opens nothing but the file, and the files of passwords and certificates
that it names; it runs no password command.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from freshness.config.cache import CacheConfig, read_cache
from freshness.config.http import HttpConfig, read_http
from freshness.config.keyspace import Keyspace, read_keyspaces
from freshness.config.object import ObjectConfig, read_objects
from freshness.config.setting import setting
from freshness.config.stream import ArchiveConfig, HistoryConfig, StreamConfig
from freshness.config.table import Reading, Table, shown
from freshness.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A whole, validated ``freshness.toml``. ``path``: the file; relative paths start at its folder."""

    topology: int = setting(
        "The number of this file's topology; it stands above the first section. Raise it with each change"
        " of what serves: a process with a lower number opens no node that one with a higher number has "
        "kept.",
        1,
        bounds=(1, (1 << 32) - 1),
    )

    cache: CacheConfig
    keyspaces: Mapping[str, Keyspace]
    objects: Mapping[str, ObjectConfig] = field(default_factory=dict)
    stream: StreamConfig = StreamConfig()
    http: HttpConfig = HttpConfig()
    archive: ArchiveConfig = ArchiveConfig()
    history: HistoryConfig = HistoryConfig()
    path: Path

    @property
    def lineages(self) -> tuple[str, ...]:
        """The lineages of all shards of all keyspaces, in the order of the file."""
        return tuple(shard.lineage for keyspace in self.keyspaces.values() for shard in keyspace.shards)


def load_config(
    path: str | Path,
    environ: Mapping[str, str] = os.environ,
    *,
    instead: Mapping[str, Any] | None = None,
    is_application: bool = False,
) -> Config:
    """Read and validate a file. ``instead``: sections that take the place of the file's, in the file's own terms.

    ``is_application``: True for one that reads through the cache. Its primaries are those of ``primary_for_reads``,
    if given, and passwords of the invalidator may be missing; to all others those of the application.

    Raises `freshness.errors.ConfigError` with all problems in one report.
    """
    path = Path(path)
    document = {**_parse_toml(path), **(instead or {})}
    return _read(Table(Reading(path, environ, is_application), "", document))


def _read(top: Table) -> Config:
    known = ("cache", "keyspaces", "objects", "stream", "http", "archive", "history")
    settings = top.part(top.found.keys() - known).values(Config, also=known)
    cache = top.read("cache", read_cache, required=True)
    keyspaces = top.read("keyspaces", read_keyspaces, required=True) or {}
    objects = top.read("objects", lambda tables: read_objects(tables, keyspaces)) or {}
    _check_skipped_tables(top, keyspaces, objects)
    stream = top.read("stream", lambda table: table.build(StreamConfig))
    http = top.read("http", read_http)
    archive = top.read("archive", lambda table: table.build(ArchiveConfig))
    history = top.read("history", lambda table: table.build(HistoryConfig))
    if cache and stream:
        _check_times(top, cache, stream)
    if cache:
        _check_copies(top, cache, objects)
    if not (top.is_valid and cache and stream and http and archive and history):
        problems, path = top.reading.problems, top.reading.path
        many = "s" if len(problems) > 1 else ""
        report = "\n  ".join(problems)
        raise ConfigError(
            f"{path}: {len(problems)} problem{many} in the configuration\n  {report}\n",
            hint="docs/config.md explains every key",
        )
    return Config(
        **settings,
        cache=cache,
        keyspaces=keyspaces,
        objects=objects,
        stream=stream,
        http=http,
        archive=archive,
        history=history,
        path=top.reading.path,
    )


def _check_times(top: Table, cache: CacheConfig, stream: StreamConfig) -> None:
    leases, trust = 2 * cache.lease_seconds, cache.trust_seconds
    age_max, needed = cache.heartbeat_age_max_seconds, 2 * stream.heartbeat_seconds
    if age_max < needed and not math.isclose(age_max, needed):
        least = leases + trust + needed
        name = "node_refresh_seconds" if trust == cache.node_refresh_seconds else "a flow"
        top.report(
            "cache.max_staleness_seconds",
            f"{cache.max_staleness_seconds:g}, which leaves max_staleness_seconds - 2 x lease_seconds - "
            f"{name} = {cache.max_staleness_seconds:g} - {leases} - {trust:g} = {age_max:g} s for the age of "
            "a heartbeat",
            f"at least 2 x stream.heartbeat_seconds = {needed:g} s for it; raise max_staleness_seconds to "
            f"{least:g}, or lower lease_seconds, node_refresh_seconds or stream.heartbeat_seconds",
        )


def _check_copies(top: Table, cache: CacheConfig, objects: Mapping[str, ObjectConfig]) -> None:
    for name, entry in objects.items():
        for key, most in (
            ("local_copy_seconds", "node_refresh_seconds"),
            ("stale_while_revalidate_seconds", "max_staleness_seconds"),
        ):
            found, bound = getattr(entry, key), getattr(cache, most)
            if found > bound:
                top.report(f"objects.{name}.{key}", f"{found:g}", f"at most cache.{most} = {bound:g}")


def _check_skipped_tables(top: Table, keyspaces: Mapping[str, Keyspace], objects: Mapping[str, ObjectConfig]) -> None:
    for name, keyspace in keyspaces.items():
        cached = {table for each in objects.values() if each.keyspace == name for table in each.tables}
        for shard in keyspace.shards:
            for skip in shard.skip:
                for table in sorted(set(skip.tables) - cached):
                    top.report(
                        f"keyspaces.{name}.shards.skip.tables",
                        f"{shown(table)} for {skip.gtid}",
                        f"cached tables of the keyspace, {', '.join(sorted(cached))}; or none, for all of them",
                    )


def _parse_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(
            f"{path.absolute()}: there is no such file",
            hint="create it, or name another, a command's with --config PATH",
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read: {error.strerror}", hint="is it a file, and readable for this user?"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: byte {error.start} is not UTF-8", hint="TOML files are UTF-8; save it as such"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}", hint="mend the file at that line") from None
