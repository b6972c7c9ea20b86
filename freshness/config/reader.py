"""Reads ``freshness.toml`` and finds everything that is wrong with it, in one report.

Each problem says the file, the key, what was found and what is expected. Unknown keys are refused, with the
nearest known one. A value that may be a secret is never shown. The reader opens nothing but the file, and the files
of passwords and certificates that it names; it runs no password command.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import MISSING, Field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast, get_args, get_origin

from freshness.config.access import (
    TLS_OPTIONS,
    VARIABLE,
    NodeLogin,
    Password,
    PasswordCommand,
    expand,
    file_password,
    read_tls,
    variable_password,
)
from freshness.config.hostport import parse_host_port
from freshness.config.settings import (
    PARTS_MAX,
    ArchiveConfig,
    CacheConfig,
    Config,
    HistoryConfig,
    HttpClient,
    HttpConfig,
    Keyspace,
    LoginConfig,
    ObjectConfig,
    ServerAddress,
    Shard,
    Sharding,
    SkippedTransaction,
    StreamConfig,
    describe_type,
    parse_order,
    settings_of,
)
from freshness.config.vtgate_address import VtgateAddress
from freshness.errors import ConfigError, FormatError
from freshness.keys.keyrange import KeyRange
from freshness.position import FLAVORS, Position, parse_gtid

Section = TypeVar(
    "Section",
    CacheConfig,
    StreamConfig,
    HttpClient,
    ArchiveConfig,
    HistoryConfig,
    Sharding,
    SkippedTransaction,
)

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,60}")
_NAME_EXPECTED = "1 to 60 of the characters A-Z a-z 0-9 _ . -"
_LINEAGE = re.compile(r"[A-Za-z0-9_./-]{1,122}")
_IDENTIFIER = re.compile(r"[^\x00-\x1f\x7f`./\\]{1,64}")
_IDENTIFIER_EXPECTED = "a name of 1 to 64 characters, without its database"
_SERVER_EXPECTED = '"mysql://USER:PASSWORD@HOST:PORT/DATABASE"'
_SHOWN_CHARACTERS_MAX = 60
_PASSWORDS = {
    "password": "the password, or ${VARIABLE}",
    "password_file": "a file whose first line is the password",
    "password_command": "a program and its arguments",
}
_GONE = {
    "cache.tombstone_ttl_seconds": "there are no tombstones any more; delete the line (see cache.stripes)",
    "http.consumers": 'write [http.clients.NAME], with scopes = ["stream"] beside the rest',
}


def load_config(
    path: str | Path,
    environ: Mapping[str, str] = os.environ,
    *,
    instead: Mapping[str, Any] | None = None,
    is_application: bool = False,
) -> Config:
    """Read and validate a file. ``instead``: sections that take the place of the file's, in the file's own terms.

    ``is_application``: for one that reads through the cache. Its primaries are those of ``primary_for_reads``, where
    they are given, and passwords of the invalidator may be missing; to all others those of the application.

    Raises `freshness.errors.ConfigError` with all problems in one report.
    """
    path = Path(path)
    return _Reader(path, environ, is_application).read({**_parse_toml(path), **(instead or {})})


def _parse_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: there is no such file", hint="create it, or name another with --config PATH"
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


class _Reader:
    """One reading of one file. Methods return None, or leave something out, where they reported a problem."""

    def __init__(self, path: Path, environ: Mapping[str, str], is_application: bool) -> None:
        self.path = path
        self.environ = environ
        self.is_application = is_application
        self.problems: list[str] = []

    def read(self, document: dict[str, Any]) -> Config:
        known = ("cache", "keyspaces", "objects", "stream", "http", "archive", "history")
        top = {key: value for key, value in document.items() if key not in known}
        settings = self.values(Config, top, "", also=known)
        cache = self.read_cache(self.section(document, "cache", required=True))
        keyspaces = self.read_keyspaces(self.section(document, "keyspaces", required=True))
        objects = self.read_objects(self.section(document, "objects"), keyspaces)
        self.check_skipped_tables(keyspaces, objects)
        stream = self.build(StreamConfig, self.section(document, "stream"), "stream")
        http = self.read_http(self.section(document, "http"))
        archive = self.build(ArchiveConfig, self.section(document, "archive"), "archive")
        history = self.build(HistoryConfig, self.section(document, "history"), "history")
        if cache and stream:
            self.check_times(cache, stream)
        if cache:
            self.check_copies(cache, objects)
        if self.problems or not (cache and stream and http and archive and history):
            count = len(self.problems)
            report = "\n  ".join(self.problems)
            raise ConfigError(
                f"{self.path}: {count} problem{'s' if count > 1 else ''} in the configuration\n  {report}\n",
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
            path=self.path,
        )

    # -- sections -----------------------------------------------------------------------------------------

    def read_cache(self, table: dict[str, Any]) -> CacheConfig | None:
        before = len(self.problems)
        if not table and self.problems_with("cache"):
            return None  # the section is missing: reported already
        of_login = {item.name for item, _ in settings_of(LoginConfig)}
        values = self.values(CacheConfig, table, "cache", also=of_login)
        login = self.read_login(
            {key: value for key, value in table.items() if key in of_login},
            values.get("backend", "memcached"),
        )
        if self.is_application and "zone" in values:  # other programs need not know the variable
            try:
                values["zone"] = expand(values["zone"], self.environ)
            except ConfigError as error:
                self.report("cache.zone", error.message, "a name, or a variable that is set")
        if len(self.problems) > before:
            return None
        cache = CacheConfig(**values, login=login)
        self.check_text("cache.namespace", cache.namespace, _NAME, _NAME_EXPECTED)
        if cache.value_bytes_max > PARTS_MAX * cache.part_bytes:
            self.report(
                "cache.value_bytes_max",
                f"{cache.value_bytes_max}, which is more than {PARTS_MAX} parts of {cache.part_bytes} bytes",
                f"at most {PARTS_MAX * cache.part_bytes}, or part_bytes of at least "
                f"{-(-cache.value_bytes_max // PARTS_MAX)}",
            )
        if not cache.nodes:
            self.report("cache.nodes", "an empty array", "at least one node")
        seen: dict[object, int] = {}
        for index, node in enumerate(cache.nodes):
            where = f"cache.nodes[{index}]"
            place: object = node
            if cache.backend != "memory":
                try:
                    host, port = parse_host_port(node)
                    place = (host.lower(), port)
                except ConfigError as error:
                    self.report(where, _shown(node), f"HOST:PORT; {error.message}")
                    continue
            elif not node:
                self.report(where, _shown(node), "a name")
            if place in seen:
                self.report(where, _shown(node), f"each node once; it is cache.nodes[{seen[place]}] already")
            seen.setdefault(place, index)
        return cache

    def read_login(self, table: dict[str, Any], backend: str) -> NodeLogin:
        values = self.values(LoginConfig, table, "cache")
        if backend == "memory" and values:
            self.report(
                f"cache.{next(iter(values))}", "a setting", 'none with backend "memory", which has no server'
            )
            return NodeLogin()
        password, user = self.read_password("cache", values), values.get("username", "")
        if user and not any(name in table for name in _PASSWORDS):
            self.report(
                "cache.username", "a user without a password", f"one of {', '.join(_PASSWORDS)} beside it"
            )
        if backend == "memcached" and password and not user:
            self.report("cache.username", "nothing", "the user: memcached's auth file has USER:PASSWORD")
        if backend == "memcached" and re.search(r"[\s:]", user):
            self.report(
                "cache.username", "a blank or a colon", "a user as in memcached's auth file, USER:PASSWORD"
            )
        tls = None
        try:
            tls = read_tls({name: values[name] for name in TLS_OPTIONS if name in values}, self.path.parent)
        except ConfigError as error:
            self.report("cache.tls", error.message, "tls = true, or PEM files")
        return NodeLogin(user, password, tls or None)

    def read_password(self, where: str, values: Mapping[str, Any]) -> Password:
        """Where a table says that the password is; empty where it says nothing."""
        named = [name for name in _PASSWORDS if name in values]
        if not named:
            return ""
        if len(named) > 1:
            self.report(f"{where}.{named[1]}", f"a {named[0]} beside it", f"one of {', '.join(_PASSWORDS)}")
            return ""
        place = f"{where}.{named[0]}"
        try:
            if named[0] == "password_command":
                if not all(part.strip() for part in values[named[0]]) or not values[named[0]]:
                    self.report(place, "an empty array or text", "a program and its arguments")
                return PasswordCommand(values[named[0]])
            if named[0] == "password_file":
                return file_password(self.path.parent / values[named[0]])
            password = variable_password(tuple(VARIABLE.split(values[named[0]])), self.environ)
        except ConfigError as error:
            self.report(place, error.message, _PASSWORDS[named[0]])
            return ""
        if not password:
            self.report(place, "an empty text", _PASSWORDS[named[0]])
        return password

    def check_times(self, cache: CacheConfig, stream: StreamConfig) -> None:
        leases, trust = 2 * cache.lease_seconds, cache.trust_seconds
        age_max, needed = cache.heartbeat_age_max_seconds, 2 * stream.heartbeat_seconds
        if age_max < needed and not math.isclose(age_max, needed):
            least = leases + trust + needed
            name = "node_refresh_seconds" if trust == cache.node_refresh_seconds else "a flow"
            self.report(
                "cache.max_staleness_seconds",
                f"{cache.max_staleness_seconds:g}, which leaves max_staleness_seconds - 2 x lease_seconds - "
                f"{name} = {cache.max_staleness_seconds:g} - {leases} - {trust:g} = {age_max:g} s for the age of "
                "a heartbeat",
                f"at least 2 x stream.heartbeat_seconds = {needed:g} s for it; raise max_staleness_seconds to "
                f"{least:g}, or lower lease_seconds, node_refresh_seconds or stream.heartbeat_seconds",
            )

    def check_copies(self, cache: CacheConfig, objects: Mapping[str, ObjectConfig]) -> None:
        for name, entry in objects.items():
            for key, most in (
                ("local_copy_seconds", "node_refresh_seconds"),
                ("stale_while_revalidate_seconds", "max_staleness_seconds"),
            ):
                found, bound = getattr(entry, key), getattr(cache, most)
                if found > bound:
                    self.report(f"objects.{name}.{key}", f"{found:g}", f"at most cache.{most} = {bound:g}")

    def read_keyspaces(self, tables: dict[str, Any]) -> dict[str, Keyspace]:
        keyspaces: dict[str, Keyspace] = {}
        for name, table in self.named_tables(tables, "keyspaces", required=True):
            where = f"keyspaces.{name}"
            values = self.values(Keyspace, table, where, also=("shards", "sharding"))
            before = len(self.problems)
            sharding = self.read_sharding(table.get("sharding"), f"{where}.sharding")
            shards = self.read_shards(table.get("shards"), name, values.get("flavor"))
            if len(self.problems) == before:
                self.check_shards(f"{where}.shards", shards, sharding)
            if "flavor" in values:
                keyspaces[name] = Keyspace(**values, name=name, shards=tuple(shards), sharding=sharding)
        self.check_lineages(keyspaces)
        return keyspaces

    def read_sharding(self, table: object, where: str) -> Sharding | None:
        if table is None:
            return None
        if not isinstance(table, dict):
            self.report(where, _kind(table), 'a table, { column = "...", function = "hash" }')
            return None
        sharding = self.build(Sharding, table, where)
        if sharding:
            self.check_text(f"{where}.column", sharding.column, _IDENTIFIER, _IDENTIFIER_EXPECTED)
        return sharding

    def read_shards(self, tables: object, keyspace: str, flavor: str | None) -> list[Shard]:
        where = f"keyspaces.{keyspace}.shards"
        if not isinstance(tables, list) or not tables or not all(isinstance(each, dict) for each in tables):
            found = "nothing" if not tables else _kind(tables)
            self.report(where, found, f"one table with a primary for each shard, written [[{where}]]")
            return []
        shards = (
            self.read_shard(table, f"{where}[{index}]", keyspace, flavor)
            for index, table in enumerate(tables)
        )
        return [shard for shard in shards if shard]

    def check_shards(self, where: str, shards: list[Shard], sharding: Sharding | None) -> None:
        """The serving shards hold every key exactly once (shards that do not serve may overlap them)."""
        if sharding is None:
            if len(shards) > 1:
                self.report(
                    where, f"{len(shards)} shards", 'a sharding, { column = "...", function = "hash" }'
                )
            return
        ranges: list[tuple[KeyRange, str]] = []
        for index, shard in enumerate(shards):
            try:
                key_range = KeyRange.parse(shard.name)
            except FormatError as error:
                self.report(f"{where}[{index}].name", _shown(shard.name), f"a key range; {error.hint}")
                return
            if shard.serving:
                ranges.append((key_range, shard.name))
        end = b""
        for place, (key_range, name) in enumerate(sorted(ranges, key=lambda each: each[0].start)):
            if key_range.start != end or (place > 0 and not end):
                wanted = f"one that starts at {end.hex()}" if end or place == 0 else "none after it"
                self.report(
                    where, f"the serving shard {name}", f"{wanted}: together they hold every key once"
                )
                return
            end = key_range.end
        if end or not ranges:
            found = f"serving shards up to {end.hex()}" if ranges else "no serving shard"
            self.report(where, found, "serving shards that together hold every key once")

    def check_lineages(self, keyspaces: Mapping[str, Keyspace]) -> None:
        seen: dict[str, str] = {}
        for keyspace in keyspaces.values():
            for index, shard in enumerate(keyspace.shards):
                where = f"keyspaces.{keyspace.name}.shards[{index}]"
                if shard.lineage in seen:
                    expected = f"one of its own: it is the lineage of {seen[shard.lineage]}"
                    self.report(f"{where}.lineage", _shown(shard.lineage), expected)
                seen.setdefault(shard.lineage, where)

    def read_shard(
        self, table: dict[str, Any], where: str, keyspace: str, flavor: str | None
    ) -> Shard | None:
        before = len(self.problems)
        values = self.values(
            Shard,
            table,
            where,
            also=("skip",),
            raw=("primary", "primary_for_reads", "replicas", "vtgate"),
        )
        skips = self.read_skips(table.get("skip", []), f"{where}.skip", flavor)
        name = values.get("name", "-")
        self.check_text(f"{where}.name", name, _NAME, _NAME_EXPECTED)
        lineage = values.setdefault("lineage", f"{keyspace}/{name}")
        self.check_text(f"{where}.lineage", lineage, _LINEAGE, "1 to 122 of A-Z a-z 0-9 _ . - /")
        secret = self.read_password(where, values)
        replicas = table.get("replicas", [])
        if not isinstance(replicas, list):
            self.report(f"{where}.replicas", _kind(replicas), "array of URL")
            replicas = []
        urls = {f"{where}.replicas[{index}]": url for index, url in enumerate(replicas)}
        used, unused = "primary", "primary_for_reads"
        if self.is_application and unused in table:
            used, unused = unused, used
        if "primary" in table:
            urls = {f"{where}.{used}": table[used], **urls}
        else:
            self.report(f"{where}.primary", "nothing", f"a URL, {_SERVER_EXPECTED}")
        servers: dict[str, ServerAddress] = {}
        for key, url in urls.items():
            server = self.read_server(key, url, flavor, secret)
            if server:
                self.check_server(key, server, servers)
                servers[key] = server
        other = None
        if unused in table:
            lacking = {
                name for url in urls.values() for name in VARIABLE.findall(str(url))
            } - self.environ.keys()
            first = servers.get(f"{where}.{used}")
            other = self.read_unused(f"{where}.{unused}", table[unused], first, lacking)
        vtgate = self.read_vtgate(f"{where}.vtgate", table.get("vtgate"), flavor)
        if vtgate and servers:
            self.check_behind_vtgate(where, vtgate, list(servers.values()))
        if values.get("adopt_promotions") and (flavor == "vitess" or not replicas):
            found_instead = "flavor vitess" if flavor == "vitess" else "no replicas"
            self.report(
                f"{where}.adopt_promotions", found_instead, "replicas that may be promoted, of a plain server"
            )
        if len(self.problems) > before:
            return None
        primary, *others = servers.values()
        for_reads = servers.get(f"{where}.primary_for_reads", other)
        found = {
            "primary": primary,
            "primary_for_reads": for_reads,
            "replicas": tuple(others),
            "vtgate": vtgate,
            "skip": tuple(skips),
        }
        return Shard(**{**values, **found})

    def read_skips(self, tables: object, where: str, flavor: str | None) -> list[SkippedTransaction]:
        if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
            self.report(
                where, _kind(tables), 'one table for each transaction, { gtid = "...", reason = "..." }'
            )
            return []
        if tables and flavor == "vitess":
            self.report(
                where, "transactions", 'none with flavor "vitess": no transaction of vtgate is skipped'
            )
            return []
        skips: dict[Position, SkippedTransaction] = {}
        for index, table in enumerate(tables):
            skip = self.build(SkippedTransaction, table, f"{where}[{index}]")
            if skip is None or flavor not in FLAVORS:
                continue
            try:
                gtid = parse_gtid(flavor, skip.gtid)
            except FormatError as error:
                self.report(f"{where}[{index}].gtid", _shown(skip.gtid), f"one GTID; {error.hint}")
                continue
            if gtid in skips:
                self.report(f"{where}[{index}].gtid", _shown(skip.gtid), "each transaction once")
            skips[gtid] = skip
        return list(skips.values())

    def check_skipped_tables(
        self, keyspaces: Mapping[str, Keyspace], objects: Mapping[str, ObjectConfig]
    ) -> None:
        for name, keyspace in keyspaces.items():
            cached = {table for each in objects.values() if each.keyspace == name for table in each.tables}
            for shard in keyspace.shards:
                for skip in shard.skip:
                    for table in sorted(set(skip.tables) - cached):
                        self.report(
                            f"keyspaces.{name}.shards.skip.tables",
                            f"{_shown(table)} for {skip.gtid}",
                            f"cached tables of the keyspace, {', '.join(sorted(cached))}; or none, for all of them",
                        )

    def read_unused(
        self, where: str, url: object, primary: ServerAddress | None, lacking: Collection[str]
    ) -> ServerAddress | None:
        """The primary under the account of the other program, whose password may be missing here. ``lacking``:
        variables that are missing for other servers; then they are told of this one, too."""
        if not isinstance(url, str):
            self.report(where, _kind(url), _SERVER_EXPECTED)
            return None
        missing = set(VARIABLE.findall(url)) - self.environ.keys()
        told = sorted(missing.intersection(lacking))
        if told:
            self.report(where, f"environment variable not set: {', '.join(told)}", _SERVER_EXPECTED)
            return None
        if missing and VARIABLE.fullmatch(url):
            return None
        try:
            server = ServerAddress.parse(
                url.partition("?")[0], {**self.environ, **dict.fromkeys(missing, "-")}, self.path.parent
            )
        except ConfigError as error:
            self.report(where, error.message, _SERVER_EXPECTED)
            return None
        if primary and server.database != primary.database:
            self.report(
                where, "another database than its other account's", "the same database on every server"
            )
        return server

    def read_vtgate(self, where: str, url: object, flavor: str | None) -> VtgateAddress | None:
        expected = '"vitess://USER:PASSWORD@HOST:PORT/KEYSPACE?tablet_type=replica"'
        if flavor != "vitess":
            if url is not None and flavor is not None:
                self.report(where, f'a vtgate in a keyspace of flavor "{flavor}"', 'flavor "vitess" for it')
            return None
        if not isinstance(url, str):
            self.report(where, "nothing" if url is None else _kind(url), expected)
            return None
        try:
            # An application speaks to vtgate as to a server, and needs no password of its stream.
            unused = dict.fromkeys(VARIABLE.findall(url), "-") if self.is_application else {}
            environ = {**unused, **self.environ} if unused else self.environ
            return VtgateAddress.parse(url, environ, self.path.parent)
        except ConfigError as error:
            self.report(where, error.message, error.hint or expected)
            return None

    def check_behind_vtgate(self, where: str, vtgate: VtgateAddress, servers: list[ServerAddress]) -> None:
        if servers[0].database != vtgate.keyspace:
            self.report(f"{where}.primary", "another database", f"/{vtgate.keyspace}, the keyspace of vtgate")
        if len(servers) > 1:
            self.report(
                f"{where}.replicas",
                "servers",
                "none with flavor vitess: vtgate chooses them by the tablet_type of its URL",
            )

    def read_server(
        self, where: str, url: object, flavor: str | None, secret: Password
    ) -> ServerAddress | None:
        if not isinstance(url, str):
            self.report(where, _kind(url), _SERVER_EXPECTED)
            return None
        if url.startswith("mariadb:") and flavor in ("mysql", "vitess"):
            self.report(where, "a mariadb:// URL", f'mysql:// in a keyspace of flavor "{flavor}"')
        try:
            server = ServerAddress.parse(url, self.environ, self.path.parent)
        except ConfigError as error:
            self.report(where, error.message, _SERVER_EXPECTED)
            return None
        return server if server.password else replace(server, password=secret)

    def check_server(self, where: str, server: ServerAddress, others: Mapping[str, ServerAddress]) -> None:
        for key, other in others.items():
            if (other.host.lower(), other.port) == (server.host.lower(), server.port):
                self.report(where, f"the server of {key}", "another server: each is listed once")
            elif other.database != server.database and ".primary" in key:
                self.report(where, "another database than the primary's", "the same database on every server")

    def read_objects(
        self, tables: dict[str, Any], keyspaces: Mapping[str, Keyspace]
    ) -> dict[str, ObjectConfig]:
        objects: dict[str, ObjectConfig] = {}
        for name, table in self.named_tables(tables, "objects"):
            where = f"objects.{name}"
            before = len(self.problems)
            values = self.values(ObjectConfig, table, where)
            self.check_object(where, table, values)
            if "keyspace" not in table and len(keyspaces) == 1:
                values["keyspace"] = next(iter(keyspaces))
            elif "keyspace" not in table and keyspaces:
                self.report(f"{where}.keyspace", "nothing", f"one of {', '.join(keyspaces)}")
            elif "keyspace" in values and keyspaces and values["keyspace"] not in keyspaces:
                found = _shown(values["keyspace"])
                self.report(f"{where}.keyspace", found, f"one of {', '.join(keyspaces)}")
            keyspace = keyspaces.get(values.get("keyspace", ""))
            if values.get("fill_from_log") and keyspace is not None and keyspace.flavor == "vitess":
                self.report(
                    f"{where}.fill_from_log", "true", 'false with flavor "vitess": vttablet sends keys alone'
                )
            if len(self.problems) == before and "keyspace" in values:
                objects[name] = ObjectConfig(**{**values, "name": name})
        return objects

    def check_object(self, where: str, table: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        has_table, has_key, has_members = (key in table for key in ("table", "key", "members"))
        kinds = 'either "table" (one row, or a list) or "key" and "members" (composite)'
        if has_table and has_members:
            self.report(where, "both", kinds)
        elif not has_table and not has_key and not has_members:
            self.report(where, "neither", kinds)
        elif not has_table and not has_members:
            self.report(
                f"{where}.members",
                "nothing",
                '"members" (composite) or "table" (one row, or a list) beside "key"',
            )
        elif has_members and not has_key:
            self.report(f"{where}.key", "nothing", '"key" and "members" together')
        if "table" in values:
            self.check_text(f"{where}.table", values["table"], _IDENTIFIER, _IDENTIFIER_EXPECTED)
        if "key" in values:
            self.check_columns(f"{where}.key", values["key"])
            if not values["key"]:
                self.report(f"{where}.key", "an empty array", "at least one column")
        if values.get("fill_from_log") and "table" not in values:
            self.report(f"{where}.fill_from_log", "true", "false for a composite: no log has its value")
        elif values.get("fill_from_log") and "order_by" in table:
            self.report(f"{where}.fill_from_log", "true", "false for a list: no log has its value")
        elif values.get("fill_from_log") and has_key:
            expected = (
                "false beside a key: with unique_checks = 0 two rows can have it, and the log tells one"
            )
            self.report(f"{where}.fill_from_log", "true", expected)
        self.check_list(where, table, values)
        members = values.get("members", {})
        if members == {} and "members" in values:
            self.report(f"{where}.members", "an empty table", "at least one table = column")
        for member, columns in members.items():
            self.check_text(f"{where}.members.{member}", member, _IDENTIFIER, _IDENTIFIER_EXPECTED)
            for column in columns:
                if "." in column:
                    expected = (
                        f"a column of {member} itself; see docs/config.md#two-joins-away for the way out"
                    )
                    self.report(f"{where}.members.{member}", _shown(column), expected)
                    return
            self.check_columns(f"{where}.members.{member}", columns)
            names = values.get("key") or columns
            if len(columns) != len(names):
                found = ", ".join(columns) or "an empty array"
                expected = f"a column for each of the key's, in their order: {', '.join(names)}"
                self.report(f"{where}.members.{member}", found, expected)

    def check_list(self, where: str, table: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        if "order_by" not in table and "limit" not in table:
            return
        for needed in ("order_by", "limit", "key", "table"):
            if needed not in table:
                expected = '"table", "key", "order_by" and "limit" together: a list of rows'
                self.report(f"{where}.{needed}", "nothing", expected)
        if "order_by" in values:
            self.check_columns(
                f"{where}.order_by", tuple(parse_order(each)[0] for each in values["order_by"])
            )
            if not values["order_by"]:
                self.report(f"{where}.order_by", "an empty array", "at least one column")

    def check_columns(self, where: str, columns: tuple[str, ...]) -> None:
        for column in columns:
            self.check_text(where, column, _IDENTIFIER, _IDENTIFIER_EXPECTED)
        if len(set(columns)) < len(columns):
            self.report(where, "a column twice", "each column once")

    def read_http(self, table: dict[str, Any]) -> HttpConfig | None:
        before = len(self.problems)
        values = self.values(HttpConfig, table, "http", also=("clients",))
        clients = self.read_clients(self.section(table, "clients"), has_token="token_file" in values)
        if len(self.problems) > before:
            return None
        http = HttpConfig(**values, clients=clients)
        if (http.tls_cert is None) != (http.tls_key is None):
            here, missing = ("tls_cert", "tls_key") if http.tls_key is None else ("tls_key", "tls_cert")
            self.report(f"http.{missing}", "nothing", f"a PEM file beside {here}")
        if http.connections_max <= http.consumers_max:
            self.report(
                "http.connections_max",
                f"{http.connections_max}, and consumers_max = {http.consumers_max}",
                "more than consumers_max: a probe needs a connection, too",
            )
        if http.listen is not None:
            try:
                host, _ = parse_host_port(http.listen)
            except ConfigError as error:
                self.report("http.listen", _shown(http.listen), f"HOST:PORT; {error.message}")
                return http
            if not _is_loopback(host) and http.token_file is None:
                expected = "a loopback address such as 127.0.0.1:8080, or a token_file beside it"
                self.report("http.listen", _shown(http.listen), expected)
        for index, name in enumerate(http.hosts):
            self.check_text(
                f"http.hosts[{index}]", name, _NAME, f"a host name without a port: {_NAME_EXPECTED}"
            )
        return http

    def read_clients(self, tables: dict[str, Any], *, has_token: bool) -> dict[str, HttpClient]:
        clients: dict[str, HttpClient] = {}
        for name, table in self.named_tables(tables, "http.clients"):
            where = f"http.clients.{name}"
            client = self.build(HttpClient, table, where)
            if client:
                clients[name] = client
                self.check_client(where, client)
        if tables and not has_token:
            self.report("http.token_file", "nothing", "the operator's own token, beside those of clients")
        return clients

    def check_client(self, where: str, client: HttpClient) -> None:
        if not client.scopes:
            self.report(f"{where}.scopes", "an empty array", "at least one of read, stream, admin")
        elif "stream" not in client.scopes and (client.tables or client.hidden_columns):
            self.report(
                f"{where}.tables", "what a stream shows", 'the scope "stream", or neither tables nor columns'
            )
        elif "stream" in client.scopes and not client.tables:
            self.report(f"{where}.tables", "nothing", 'at least one table, or "*" for all')

    # -- tables and values --------------------------------------------------------------------------------

    def report(self, where: str, found: str, expected: str) -> None:
        self.problems.append(f"{self.path.name}: {where}: found {found}; expected {expected}")

    def section(self, document: dict[str, Any], name: str, *, required: bool = False) -> dict[str, Any]:
        table = document.get(name, {})
        if required and name not in document:
            self.report(name, "nothing", f"a section [{name}]")
        elif not isinstance(table, dict):
            self.report(name, _kind(table), f"a section [{name}]")
            return {}
        return dict(table)

    def named_tables(
        self, tables: dict[str, Any], where: str, *, required: bool = False
    ) -> list[tuple[str, dict[str, Any]]]:
        if required and not tables and not self.problems_with(where):
            self.report(where, "none", f"at least one [{where}.NAME]")
        for name, table in tables.items():
            self.check_text(f"{where}.{name}", name, _NAME, f"a name of {_NAME_EXPECTED}")
            if not isinstance(table, dict):
                self.report(f"{where}.{name}", _kind(table), f"a table [{where}.{name}]")
        return [(name, table) for name, table in tables.items() if isinstance(table, dict)]

    def problems_with(self, where: str) -> bool:
        return any(problem.startswith(f"{self.path.name}: {where}: ") for problem in self.problems)

    def build(self, kind: type[Section], table: dict[str, Any], where: str) -> Section | None:
        before = len(self.problems)
        if not table and self.problems_with(where):
            return None  # the section is missing: reported already
        values = self.values(kind, table, where)
        return cast(Any, kind)(**values) if len(self.problems) == before else None

    def values(
        self,
        kind: type,
        table: dict[str, Any],
        where: str,
        *,
        also: Collection[str] = (),
        raw: Collection[str] = (),
    ) -> dict[str, Any]:
        """The valid settings of a table. ``also``: keys that are no settings; ``raw``: not converted here."""
        settings = list(settings_of(kind))
        self.refuse_unknown(table, [*(item.name for item, _ in settings), *also], where)
        values: dict[str, Any] = {}
        for item, hint in settings:
            if item.name in raw:
                continue
            if item.name in table:
                value = self.convert(f"{where}.{item.name}".lstrip("."), table[item.name], item, hint)
                if value is not None:
                    values[item.name] = value
            elif _is_required(item):
                self.report(f"{where}.{item.name}", "nothing", describe_type(hint))
        return values

    def convert(self, where: str, value: object, item: Field[Any], hint: Any) -> Any:
        """The value as the type that the setting has, or None after a report."""
        expected = describe_type(hint)
        hint = int if hint == int | None else hint
        minimum, maximum = item.metadata["minimum"], item.metadata["maximum"]
        later = f" ({item.metadata['later']})" if item.metadata["later"] else ""
        if get_origin(hint) is Literal:
            if isinstance(value, str) and value in get_args(hint):
                return value
        elif get_origin(hint) is tuple:
            choices = get_args(get_args(hint)[0])  # none of a plain text
            if isinstance(value, list) and all(
                part in choices if choices else isinstance(part, str) for part in value
            ):
                return tuple(value)
        elif get_origin(hint) is Annotated:
            if (columns := _as_columns(value)) is not None:
                return columns
        elif get_origin(hint) is Mapping:
            found = (
                {name: _as_columns(part) for name, part in value.items()} if isinstance(value, dict) else {}
            )
            if isinstance(value, dict) and None not in found.values():
                return found
        elif hint is bool:
            if isinstance(value, bool):
                return value
        elif hint in (int, float):
            expected += f" from {minimum:_} to {maximum:_}"
            is_number = type(value) is int or (hint is float and type(value) is float)
            if is_number and minimum <= value <= maximum:  # NaN is in no range
                return hint(value)
        elif isinstance(value, str):
            if value.strip():
                return value
            expected += " that is not empty"
        self.report(where, _kind(value) if item.metadata["is_secret"] else _shown(value), expected + later)
        return None

    def check_text(self, where: str, text: str, pattern: re.Pattern[str], expected: str) -> None:
        if not pattern.fullmatch(text):
            self.report(where, _shown(text), expected)

    def refuse_unknown(self, table: dict[str, Any], known: Collection[str], where: str) -> None:
        for key in table:
            if key in known:
                continue
            full = f"{where}.{key}" if where else key
            if full in _GONE:
                self.report(full, "a setting of a former release", f"none: {_GONE[full]}")
                continue
            nearest = get_close_matches(key, known, n=1, cutoff=0.5)
            if nearest:
                self.report(full, "an unknown key", f'a known one; did you mean "{nearest[0]}"?')
            else:
                self.report(full, "an unknown key", f"one of {', '.join(sorted(known))}")


def _as_columns(value: object) -> tuple[str, ...] | None:
    """The names of columns: one text, or an array of them. None for anything else."""
    names: list[Any] = value if isinstance(value, list) else [value]
    return tuple(names) if all(isinstance(name, str) for name in names) else None


def _is_required(item: Field[Any]) -> bool:
    has_default = item.default is not MISSING or item.default_factory is not MISSING
    return not has_default and item.metadata["default_text"] is None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _shown(value: object) -> str:
    """A found value for a message; only its kind where it is no scalar or may hold a password."""
    if isinstance(value, str):
        if "@" in value or "://" in value:
            return "a text that may hold a password"
        return repr(value[:_SHOWN_CHARACTERS_MAX]) + ("..." if len(value) > _SHOWN_CHARACTERS_MAX else "")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    return _kind(value)


def _kind(value: object) -> str:
    """The kind of a value in TOML's words, without the value."""
    kinds = {str: "a text", bool: "a boolean", int: "a number", float: "a number", list: "an array"}
    return kinds.get(type(value), "a table" if isinstance(value, dict) else "a date or time")
