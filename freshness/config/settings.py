"""The settings of ``freshness.toml`` as values: cache nodes, keyspaces, objects, and the bounds of the algorithm.

One file serves the invalidator and the application, so that both agree on placement, stripes and L. Each field of
the frozen dataclasses has its default, and its meaning in its metadata (`describe_settings`; docs/config.md is
generated from it). ``freshness.config.reader`` reads and checks the file; `load_config` is its entry for both sides.

A password never appears in a message, a repr or a log line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, get_args, get_origin, get_type_hints
from urllib.parse import unquote

from freshness.config.access import (
    TLS_OPTIONS,
    VARIABLE,
    NodeAccess,
    NodeLogin,
    Password,
    Tls,
    expand,
    file_password,
    join_variables,
    read_tls,
    variable_password,
)
from freshness.config.hostport import parse_host_port
from freshness.config.vtgate_address import VtgateAddress
from freshness.errors import ConfigError

Backend: TypeAlias = Literal["memcached", "redis", "memory"]
Flavor: TypeAlias = Literal["mysql", "mariadb", "vitess"]
GtidFlavor: TypeAlias = Literal["mysql", "mariadb"]
HttpScope: TypeAlias = Literal["read", "stream", "admin"]
ShardingFunction: TypeAlias = Literal[
    "hash",
    "xxhash",
    "numeric",
    "binary",
    "binary_md5",
    "reverse_bits",
    "unicode_loose_md5",
    "unicode_loose_xxhash",
]

Columns: TypeAlias = Annotated[tuple[str, ...], "text or array of text"]
"""Names of columns. The file may have one name without the brackets of an array."""

TTL_SECONDS_MAX = 30 * 86_400
"""memcached takes a longer TTL for a point in time (F50)."""

PARTS_MAX = 256
"""The most items that one value is split into. A reader asks for no more, whatever an entry says."""

VALUE_BYTES_MAX = 64 << 20
"""The largest value, as stored and as unpacked, that any reader takes."""

STORED_BYTES_MAX = 16 << 20
PART_BYTES = 1_000_000

FLOW_SECONDS_MAX = 1.0
"""How long one flow may take that reads a node record. An answer that comes later may hold an entry of a time for
which the record does not vouch."""


def setting(
    doc: str,
    default: Any = MISSING,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    default_text: str | None = None,
    default_factory: Callable[[], Any] | None = None,
    later: str = "",
    is_secret: bool = False,
) -> Any:
    """A field that is a key of the file. ``later``: a value that users expect and this version does not support.
    ``is_secret``: no message or repr may show the value."""
    metadata = {
        "doc": doc,
        "minimum": minimum,
        "maximum": maximum,
        "default_text": default_text,
        "later": later,
        "is_secret": is_secret,
    }
    if default_factory is not None:
        return field(default_factory=default_factory, metadata=metadata)
    return field(default=default, metadata=metadata, repr=not is_secret)


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A database server and how to log in. The password is in no repr, and so in no log.

    ``tls``: None for TLS that nobody checks, where the server offers it and is on another machine; False for none.
    """

    host: str
    port: int = 3306
    user: str = ""
    password: Password = field(default="", repr=False)
    database: str = ""
    tls: Tls | Literal[False] | None = None
    zone: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.user}@{host}:{self.port}/{self.database}"

    @classmethod
    def parse(cls, url: str, environ: Mapping[str, str], folder: Path = Path()) -> ServerAddress:
        """Parse ``mysql://USER:PASSWORD@HOST:PORT/DATABASE`` (or ``mariadb://``).

        ``${VARIABLE}`` is replaced from ``environ``, verbatim: such a value needs no percent-encoding. A URL
        that is one variable as a whole is taken from there. Options: password_file, zone, tls, tls_ca, tls_cert,
        tls_key; files are relative to ``folder``. Raises `ConfigError` without any part of the URL that may be a
        password.
        """
        whole = VARIABLE.fullmatch(url)
        expanded = expand(url, environ)  # for all else: all missing variables in one report
        if whole:
            url, environ = expanded, {}
        scheme, separator, rest = url.partition("://")
        if scheme not in ("mysql", "mariadb") or not separator:
            raise ConfigError("not a mysql:// or mariadb:// URL")
        if _BLANK.search(url):
            raise ConfigError("the URL holds a blank or a control character; percent-encode it")
        authority, path, query = _split_url(rest)
        login, _, place = authority.rpartition("@")
        if "@" in login + path + query or "#" in path + query:
            raise ConfigError('user or password hold one of "@", "/", "?", "#" as it is; percent-encode it')
        if not login or login.startswith(":"):
            raise ConfigError("the URL names no user: expected USER@ before the host")
        user, _, password = login.partition(":")
        host, port = parse_host_port(_decode_part(place, environ), port_default=3306)
        database = _decode_part(path, environ)
        if not database or "/" in database:
            raise ConfigError("the URL names no database: expected /DATABASE after the host")
        secret = variable_password(_decode_texts(password, environ), environ)
        options: dict[str, str] = {}
        for option in filter(None, query.split("&")):
            name, _, value = option.partition("=")
            if name not in _URL_OPTIONS:
                known = ", ".join(_URL_OPTIONS)
                raise ConfigError(f'the URL has an unknown option "{name}"; known: {known}')
            if name in options:
                raise ConfigError(f"the URL has the option {name} twice")
            options[name] = _decode_part(value, environ)
        file = options.pop("password_file", None)
        if file is not None:
            if secret:
                raise ConfigError("the URL has a password and a password_file; one is needed")
            secret = file_password(folder / file)
        zone = options.pop("zone", "")
        tls = read_tls(options, folder)
        return cls(host, port, _decode_part(user, environ), secret, database, tls, zone)


_URL_OPTIONS = ("password_file", "zone", *TLS_OPTIONS)
_BLANK = re.compile(r"[\x00-\x20\x7f]")


def _decode_texts(text: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Text, name of a variable, text, ..., text: percent-decode what the file says."""
    parts = VARIABLE.split(text) if environ else [text]
    try:
        parts[::2] = [unquote(part, errors="strict") for part in parts[::2]]
    except UnicodeDecodeError:
        raise ConfigError("the URL holds a percent-encoded byte that is not UTF-8") from None
    return tuple(parts)


def _decode_part(text: str, environ: Mapping[str, str]) -> str:
    """The same, with what the environment says as it is."""
    return join_variables(_decode_texts(text, environ), environ)


def _split_url(rest: str) -> tuple[str, str, str]:
    """Authority, path and query. By hand: ``urlsplit`` quietly drops and moves what a password may hold."""
    ends = [rest.find(mark) for mark in "/?#" if mark in rest]
    end = min(ends, default=len(rest))
    path, _, query = rest[end:].partition("?")
    return rest[:end], path.removeprefix("/"), query


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """``[cache]``: the nodes, and the times on which the algorithm's safety rests."""

    backend: Backend = setting(
        'Where entries are kept; "memory" is embedded in one process, for tests.', "memcached"
    )
    nodes: tuple[str, ...] = setting(
        'The cache nodes, each "host:port", written alike on both sides; their order does not matter. '
        'With backend "memory" any distinct names.'
    )
    namespace: str = setting("Prefix of every key. Two namespaces on the same nodes share no key.")
    value_ttl_seconds: int = setting(
        "TTL of a filled entry. Freshness does not depend on it.", 86_400, minimum=1, maximum=TTL_SECONDS_MAX
    )
    value_bytes_max: int = setting(
        "The largest value that is stored, as encoded and compressed. A larger one is read from the database each "
        "time.",
        STORED_BYTES_MAX,
        minimum=1024,
        maximum=VALUE_BYTES_MAX,
    )
    part_bytes: int = setting(
        "A larger value is stored in parts of this size, each an item of its own. A node must take items of this "
        "size and 48 kB more, for the key and the positions of an entry: memcached's limit is 1 MiB by default (-I).",
        PART_BYTES,
        minimum=1024,
        maximum=VALUE_BYTES_MAX,
    )
    compress_above_bytes: int | None = setting(
        "Values whose encoding is larger are compressed with zstd, where that makes them smaller. Every process that "
        "reads the cache needs the extra compression then; one without it reads these values from the database. Left "
        "out: nothing is compressed.",
        None,
        minimum=64,
        maximum=VALUE_BYTES_MAX,
    )
    stripes: int = setting(
        "How many stripes each shard has on each node, of about 100 bytes. A value is stored only where the replica "
        "has all recent invalidations of its stripe; with more stripes fewer neighbours are in the way.",
        65_536,
        minimum=1,
        maximum=1 << 24,
    )
    lease_seconds: int = setting(
        "L: TTL of the node record, which the invalidator renews. Without a record nothing is stored.",
        3,
        minimum=2,
        maximum=3600,
    )
    max_staleness_seconds: float = setting(
        "A hit is served only while it is known to be no older than this.", 10.0, minimum=1, maximum=86_400
    )
    on_stale: Literal["bypass", "serve"] = setting(
        'A hit that may be older than max_staleness_seconds: "bypass" reads the database, "serve" returns the hit.',
        "bypass",
    )
    node_refresh_seconds: float = setting(
        "The largest age of the copy of the node record that hits trust. A change of a whole table takes as long "
        "to reach the readers.",
        1.0,
        minimum=0,
        maximum=3600,
    )
    clock_skew_seconds: float = setting(
        "How far the clocks of this application's and the invalidators' machines may differ. A client serves nothing "
        "from a node whose heartbeat is older, by the client's own clock, than max_staleness_seconds and this.",
        60.0,
        minimum=0,
        maximum=86_400,
    )
    fill_lease_ttl_seconds: int = setting(
        "TTL of the stub that the first reader of a missing key leaves, so that the others wait for its fill.",
        10,
        minimum=1,
        maximum=3600,
    )
    fill_wait_ms: int = setting(
        "How long another reader waits for that fill before it reads the database itself.",
        250,
        minimum=0,
        maximum=60_000,
    )
    overload_wait_ms: int = setting(
        "How long a read waits where database_reads_per_second of its object is reached.",
        100,
        minimum=0,
        maximum=60_000,
    )
    local_copies_bytes: int = setting(
        "The memory for copies of hits in a process, of objects with local_copy_seconds or "
        "stale_while_revalidate_seconds.",
        16 * 2**20,
        minimum=0,
        maximum=2**40,
    )
    shadow: float = setting(
        "The share of hits that are served from the database, and compared beside it: 0.05 is one of twenty.",
        0.0,
        minimum=0,
        maximum=1,
    )
    zone: str = setting(
        "Where this application runs. Replicas whose URL says ?zone= the same are read before others. "
        '"${VARIABLE}" is replaced from the environment.',
        "",
    )
    login: NodeLogin = NodeLogin()
    """As `LoginConfig` says it."""

    @property
    def access(self) -> NodeAccess:
        """How the nodes are opened."""
        return NodeAccess(self.backend, self.login)

    node_timeout_ms: int = setting(
        "How long a read of an application waits for the next bytes of a cache node. A node that takes longer is "
        "left alone until it answers again: its keys are read from the database, and not stored.",
        500,
        minimum=1,
        maximum=60_000,
    )
    node_connect_timeout_ms: int = setting(
        "How long a read of an application waits for a connection to a cache node.",
        250,
        minimum=1,
        maximum=60_000,
    )
    connections_max: int = setting(
        "How many reads of one process of an application run at the same time, each on connections of its own to the "
        "cache nodes and to each database server. Further reads wait for one of them to end.",
        32,
        minimum=1,
        maximum=10_000,
    )

    @property
    def heartbeat_age_max_seconds(self) -> float:
        """The age of the heartbeat at which a lease is no longer renewed, so that I7 holds: heartbeat age + 2 L +
        `trust_seconds` <= max_staleness. One L for the lease, and one for a renewal that arrives late (F104)."""
        return self.max_staleness_seconds - 2 * self.lease_seconds - self.trust_seconds

    @property
    def trust_seconds(self) -> float:
        """How long a hit may trust a record: a copy of it, or the one that the same flow has read."""
        return max(self.node_refresh_seconds, FLOW_SECONDS_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginConfig:
    """The keys of ``[cache]`` that say how to log in to the nodes. They become a `NodeLogin`."""

    tls: bool = setting(
        "Whether the nodes are reached over TLS, with a certificate that is valid for the host as `nodes` has it. "
        "`tls_ca` and `tls_cert` imply it.",
        False,
    )
    tls_ca: str | None = setting(
        "PEM file of the authorities that vouch for the nodes, relative to this file. Left out: those of the system.",
        None,
    )
    tls_cert: str | None = setting(
        "PEM file of this program's own certificate, where the nodes ask for one.", None
    )
    tls_key: str | None = setting("PEM file of its key, not encrypted.", None)
    username: str | None = setting(
        "The user that logs in to the nodes: of memcached's auth file (`-Y`), or of Redis's ACL. Left out with a "
        "password: Redis's default user.",
        None,
    )
    password: str | None = setting(
        "The password; ${VARIABLE} is replaced from the environment.", None, is_secret=True
    )
    password_file: str | None = setting("File whose first line is the password. Relative to this file.", None)
    password_command: tuple[str, ...] = setting(
        "A program and its arguments; the first line that it prints is the password. {host}, {port} and {user} in "
        "the arguments are those of the node.",
        (),
        is_secret=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """``[keyspaces.NAME.sharding]``: which shard a row lives in. Names and meaning are Vitess's."""

    column: str = setting(
        "The column whose value decides over the shard. Every cached table of the keyspace needs it."
    )
    function: ShardingFunction = setting("The function from the value to a keyspace id.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedTransaction:
    """``[[keyspaces.NAME.shards.skip]]``: a transaction whose events are passed over, at the operator's word."""

    gtid: str = setting(
        "The GTID of one transaction in the shard's log that cannot be handled. Its events are passed over, "
        "and its tables are invalidated as a whole. Not with flavor vitess."
    )
    tables: tuple[str, ...] = setting(
        "The cached tables that the transaction can have changed; by default all of the keyspace. A table that is "
        "wrongly left out keeps old values in the cache.",
        (),
    )
    reason: str = setting("Why it is skipped: for the log, and for readers of the update stream.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """``[[keyspaces.NAME.shards]]``: one replication topology, a primary and its replicas."""

    name: str = setting('The key range of the shard, such as "-80"; "-" is all keys.', "-")
    serving: bool = setting(
        "Whether applications read the shard. A shard that does not serve is followed too, so that it can take over; "
        "no value from it is stored.",
        True,
    )
    continues: tuple[str, ...] = setting(
        "Lineages whose GTIDs are in this shard's log too, since it was made from them by replication. Consumers of "
        "the update stream continue in this shard from their positions in those.",
        (),
    )
    primary: ServerAddress = setting(
        'The server that takes writes: "mysql://USER:PASSWORD@HOST:PORT/DATABASE". ${VARIABLE} is replaced '
        "from the environment; other special characters are percent-encoded. Options behind a question mark: "
        "password_file, zone, tls, tls_ca, tls_cert, tls_key. "
        "With flavor vitess: the MySQL port of vtgate, and the keyspace as the database."
    )
    primary_for_reads: ServerAddress | None = setting(
        "The primary with the account with which applications read it where no replica answers, written like "
        "primary. An application then needs no password of primary. Left out: the account of primary.",
        None,
    )
    vtgate: VtgateAddress | None = setting(
        "Required with flavor vitess: the gRPC port of vtgate, whose VStream is followed, "
        '"vitess://USER:PASSWORD@HOST:PORT/KEYSPACE?tablet_type=replica", with the options of docs/vitess.md.',
        None,
    )
    replicas: tuple[ServerAddress, ...] = setting("Servers that applications read, written like primary.", ())
    lossless_failover: bool = setting(
        "Whether a failover of this shard surely loses no commit that a reader can have seen: Group Replication, "
        "semi-synchronous replication (AFTER_SYNC) with promotion of the most advanced replica. Otherwise a new "
        "primary costs the cache, unless the servers show that nothing is lost.",
        False,
    )
    adopt_promotions: bool = setting(
        "Whether the invalidator goes over by itself to another of these servers that was promoted. All but the "
        "primary must be read_only: it follows the only one that is writable, and nobody where several are. Not with "
        "flavor vitess.",
        False,
    )
    lineage: str = setting(
        "Name of the replication topology in tokens and node records. Never reuse it for another topology.",
        default_text="KEYSPACE/SHARD",
    )
    password_file: str | None = setting(
        "File with the password of the shard's servers whose URL has none. Relative to this file.",
        None,
    )
    password_command: tuple[str, ...] = setting(
        "A program and its arguments, in place of password_file; the first line that it prints is the password. "
        "{host}, {port} and {user} in the arguments are those of the server.",
        (),
        is_secret=True,
    )
    skip: tuple[SkippedTransaction, ...] = ()

    @property
    def writable(self) -> ServerAddress:
        """Where heartbeats are written and the head is asked: the primary, also behind a vtgate."""
        if self.vtgate is None:
            return self.primary
        return replace(self.primary, database=f"{self.vtgate.keyspace}:{self.name}@primary")


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyspace:
    """``[keyspaces.NAME]``: a database, possibly spread over shards."""

    name: str
    flavor: Flavor = setting('The kind of binlog and GTIDs; "vitess": vtgate\'s VStream.')
    shards: tuple[Shard, ...]
    sharding: Sharding | None = None
    query_timeout_seconds: float = setting(
        "How long one statement of an application may take. The server ends it then, it is not tried on another "
        "one, and the read raises QueryTimedOut.",
        5.0,
        minimum=0.05,
        maximum=3600,
    )
    at_least_wait_ms: int = setting(
        "How long a read with at_least waits for a replica that lacks the commit, before it goes to the primary. "
        "Behind Vitess it does not wait.",
        50,
        minimum=0,
        maximum=60_000,
    )

    @property
    def gtid_flavor(self) -> GtidFlavor:
        """The flavor of the positions: behind Vitess there is MySQL."""
        return "mysql" if self.flavor == "vitess" else self.flavor

    @property
    def serving_shards(self) -> tuple[Shard, ...]:
        """The shards that applications read. Together they hold every key once."""
        return tuple(shard for shard in self.shards if shard.serving)


def parse_order(text: str) -> tuple[str, bool]:
    """The column that a part of ``order_by`` names, and whether its highest value comes first."""
    column, _, direction = text.rpartition(" ")
    if column and direction.lower() in ("asc", "desc"):
        return column, direction.lower() == "desc"
    return text, False


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectConfig:
    """``[objects.NAME]``: one kind of cached object: a row, a list of rows, or a value built from several tables."""

    name: str
    keyspace: str = setting("The keyspace that the object lives in.", default_text="the only keyspace")
    table: str | None = setting("For an object that is one row, or a list of rows: its table.", None)
    key: Columns = setting(
        "For an object that is one row: the columns of a unique key that finds it. For a list: the columns that its "
        "rows have in common. For a composite object: the name of its key, or the names of its key columns.",
        (),
        default_text="the primary key of table",
    )
    members: Mapping[str, Columns] = setting(
        "For a composite object: each table that it is built from = the column of that table with the key, or as "
        "many columns as the key has, in its order.",
        default_text="{}",
        default_factory=dict,
    )
    order_by: Columns = setting(
        'For a list: the columns that order it, from the lowest value, or from the highest as in "created_at desc". '
        "The primary key decides between equal rows.",
        (),
        default_text="none",
    )
    limit: int = setting(
        "For a list: the first so many rows in its order.", 0, minimum=1, maximum=100_000, default_text="none"
    )
    fill_from_log: bool = setting(
        "For a row by its primary key: a change puts the row as the binlog has it in the place of an entry that is "
        "there, instead of removing the entry. A row that is written often stays a hit, and each change of it costs "
        "the invalidator more. Not with Vitess.",
        default=False,
    )
    local_copy_seconds: float = setting(
        "How long a process serves its own copy of a hit without asking the node. A hit may be older by that. "
        "At most cache.node_refresh_seconds.",
        0.0,
        minimum=0,
        maximum=3600,
    )
    stale_while_revalidate_seconds: float = setting(
        "How old a process's own copy of a hit may be that it serves while another reader fills the key again. "
        "At most cache.max_staleness_seconds.",
        0.0,
        minimum=0,
        maximum=86_400,
    )
    database_reads_per_second: float = setting(
        "How many reads of this object a process sends to the database in a second; 0: no limit. "
        "Reads beyond it wait, then get the copy that stale_while_revalidate_seconds allows, or fail.",
        0.0,
        minimum=0,
        maximum=1e9,
    )

    @property
    def is_composite(self) -> bool:
        return self.table is None

    @property
    def is_list(self) -> bool:
        return bool(self.order_by)

    @property
    def order(self) -> tuple[tuple[str, bool], ...]:
        """``order_by`` as (column, whether its highest value comes first)."""
        return tuple(map(parse_order, self.order_by))

    @property
    def is_primary_row(self) -> bool:
        """Whether it is one row by the primary key of its table, of which the log always tells the whole value."""
        return self.table is not None and not self.key

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables whose changes invalidate the object, in the order of the file."""
        return tuple(self.members) if self.table is None else (self.table,)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """``[stream]``: how the invalidator follows the binlog."""

    start: Literal["progress", "now"] = setting(
        'Where the invalidator starts: "progress" resumes from the position that the cache nodes have acknowledged, '
        '"now" drops their entries and starts at the primary\'s head.',
        "progress",
        later="a token or a time is an option of one start, invalidator run --since. "
        "Consumers of the update stream start where they like",
    )
    replica_choice: Literal["primary", "freshest", "slowest"] = setting(
        "The server whose binlog is read. With replicas, the invalidator leaves one that is stuck or far behind for "
        'another; "slowest" refuses the fewest fills.',
        "primary",
    )
    rewind_seconds: float = setting(
        "How much earlier a consumer of the update stream starts where only a time is given: clocks differ, and the "
        "times in a log do not rise evenly.",
        30.0,
        minimum=0,
        maximum=86_400,
    )
    minimize_skew: bool = setting(
        "Whether the update stream aligns the shards in time, unless a consumer says otherwise. "
        "Invalidation never waits for it.",
        False,
    )
    heartbeat_seconds: float = setting(
        "How often the invalidator writes its heartbeat to the primary. Staleness is known no more exactly.",
        1.0,
        minimum=0.05,
        maximum=3600,
    )
    clock_error_seconds: float = setting(
        "The assumed error of clocks where ages are computed.", 0.005, minimum=0, maximum=60
    )
    batch_transactions_max: int = setting(
        "The most transactions that are invalidated in one batch.", 2000, minimum=1, maximum=100_000
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpClient:
    """``[http.clients.NAME]``: a client of the HTTP service with a token of its own, and what it may do."""

    token_file: str = setting("File whose first line is its bearer token. Relative to this file.")
    scopes: tuple[HttpScope, ...] = setting(
        '"read": metrics, status and the description of the service; "stream": the update stream and its schemas; '
        '"admin": invalidate keys, change the topology. Either of the first two reads the topology and heads.'
    )
    tables: tuple[str, ...] = setting(
        'With "stream": names of tables, and patterns with * and ?, that it may read.', ()
    )
    hidden_columns: tuple[str, ...] = setting(
        'Columns that it never gets: "COLUMN" of any table, or "TABLE.COLUMN", with * and ? too. A key that has one '
        "of them is left out.",
        (),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig:
    """``[http]``: the invalidator's HTTP service."""

    listen: str | None = setting(
        '"host:port" of the HTTP service; left out: no service. Any other than a loopback address needs token_file.',
        None,
    )
    token_file: str | None = setting(
        "File whose first line is the bearer token that every request needs. Relative to this file.", None
    )
    tls_cert: str | None = setting(
        "PEM file with the certificate of the service and those that lead to its authority. Then it is served over "
        "TLS (1.2 or later) alone. Relative to this file.",
        None,
    )
    tls_key: str | None = setting(
        "PEM file with the key of tls_cert, without a passphrase. Relative to this file.", None
    )
    hosts: tuple[str, ...] = setting(
        "Names besides loopback ones by which the service may be called where it demands no token, such as that of "
        "a proxy before it. A request with another Host is refused, since a web page can have made it.",
        (),
    )
    consumers_max: int = setting(
        "The most clients that may read the update stream at once.", 16, minimum=1, maximum=1000
    )
    connections_max: int = setting(
        "The most connections to the service, those of consumers included. One more takes the place of that which is "
        "idle longest, and is closed where none is idle.",
        256,
        minimum=2,
        maximum=10_000,
    )

    clients: Mapping[str, HttpClient] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveConfig:
    """``[archive]``: the update stream as Parquet files, for the Spark jobs and for replay."""

    path: str | None = setting(
        "Folder of the archive, relative to this file. Left out: no archive is written.", None
    )
    tables: tuple[str, ...] = setting(
        "Names of tables, and patterns with * and ?, whose changes are recorded. Left out: those of cached objects.",
        (),
    )
    rotate_seconds: int = setting("A file is closed when it is so old.", 300, minimum=1, maximum=3600)
    rotate_mb: int = setting("A file is closed at about this size.", 64, minimum=1, maximum=4096)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryConfig:
    """``[history]``: the actions of applications and invalidators on the cache, as Parquet files for the audit."""

    path: str | None = setting(
        "Folder of the history, relative to this file. Left out: nothing is recorded.", None
    )
    sample: float = setting(
        "The share of items whose actions are recorded. Each sampled item is recorded completely.",
        1.0,
        minimum=0,
        maximum=1,
    )
    rotate_seconds: int = setting("A file is closed when it is so old.", 60, minimum=1, maximum=3600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A whole, validated ``freshness.toml``. ``path``: the file; relative paths start at its folder."""

    topology: int = setting(
        "The number of this file's topology; it stands above the first section. Raise it with each change of "
        "what serves. No process with a lower number opens a node that one with a higher number has kept.",
        1,
        minimum=1,
        maximum=(1 << 32) - 1,
    )

    cache: CacheConfig
    keyspaces: Mapping[str, Keyspace]
    objects: Mapping[str, ObjectConfig]
    stream: StreamConfig
    http: HttpConfig
    archive: ArchiveConfig
    history: HistoryConfig
    path: Path

    @property
    def lineages(self) -> tuple[str, ...]:
        """The lineages of all shards of all keyspaces, in the order of the file."""
        return tuple(shard.lineage for keyspace in self.keyspaces.values() for shard in keyspace.shards)


# -- the settings as data ---------------------------------------------------------------------------------


class Setting(NamedTuple):
    """One key of the file, as the documentation shows it. ``default``: TOML text, or "required"."""

    key: str
    type: str
    default: str
    meaning: str


_SECTIONS: tuple[tuple[str, type], ...] = (
    ("", Config),
    ("cache", CacheConfig),
    ("cache", LoginConfig),
    ("keyspaces.NAME", Keyspace),
    ("keyspaces.NAME.sharding", Sharding),
    ("keyspaces.NAME.shards", Shard),
    ("keyspaces.NAME.shards.skip", SkippedTransaction),
    ("objects.NAME", ObjectConfig),
    ("stream", StreamConfig),
    ("http", HttpConfig),
    ("http.clients.NAME", HttpClient),
    ("archive", ArchiveConfig),
    ("history", HistoryConfig),
)


def describe_settings() -> list[Setting]:
    """Every key that the file may hold, in the order of the file. A test holds docs/config.md against it."""
    return [
        Setting(
            f"{section}.{item.name}".lstrip("."),
            describe_type(hint),
            _describe_default(item),
            item.metadata["doc"],
        )
        for section, kind in _SECTIONS
        for item, hint in settings_of(kind)
    ]


def settings_of(kind: type) -> Iterator[tuple[Field[Any], Any]]:
    """The fields of a dataclass that are keys of the file, each with its type."""
    hints = get_type_hints(kind, include_extras=True)
    return ((item, hints[item.name]) for item in fields(kind) if "doc" in item.metadata)


def describe_type(hint: Any) -> str:
    """A type in words for people who write TOML."""
    if get_origin(hint) is Literal:
        return " | ".join(f'"{choice}"' for choice in get_args(hint))
    arguments = [argument for argument in get_args(hint) if argument not in (type(None), ...)]
    if get_origin(hint) is Annotated:
        return str(arguments[1])
    if get_origin(hint) is tuple:
        return f"array of {describe_type(arguments[0])}"
    if get_origin(hint) is Mapping:
        return f"table of {describe_type(arguments[1])}"
    if arguments:
        return describe_type(arguments[0])
    kinds = {int: "whole number", float: "number", bool: "true | false", str: "text"}
    return "URL" if hint in (ServerAddress, VtgateAddress) else kinds[hint]


def _describe_default(item: Field[Any]) -> str:
    if item.metadata["default_text"] is not None:
        return str(item.metadata["default_text"])
    if item.default is MISSING:
        return "required"
    if item.default is None:
        return "none"
    if isinstance(item.default, str):
        return f'"{item.default}"'
    if isinstance(item.default, bool):
        return str(item.default).lower()
    return "[]" if item.default == () else str(item.default)
