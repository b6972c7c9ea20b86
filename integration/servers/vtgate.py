"""A stand-in for vtgate: a gRPC server on loopback that plays scripts, one for each VStream that is opened.

It speaks the wire format of Vitess through our own messages, and refuses what vtgate refuses before it streams
(login, malformed positions). A script is a list of responses, bytes, `Fail` and `Hold`; or a function of the request
that gives one. It knows nothing of real tablets: ``integration/servers/vitess.py`` is for that.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

import grpc

from integration.servers.certificates import Certificates
from invalidator.vstream.proto import vitess_pb2 as pb

KEYSPACE = "shop"
SHARD = "-80"
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
STREAMS_MAX = 16
HOLD_SECONDS_MAX = 60.0
"""How long a stream is held open at most, so that a failing test leaves no thread."""


@dataclass(frozen=True)
class Fail:
    """End the stream with an error."""

    code: grpc.StatusCode
    details: str


@dataclass(frozen=True)
class Hold:
    """Send nothing more until it is released, or the client is gone; then go on with the script."""

    released: threading.Event = field(default_factory=threading.Event)


Step: TypeAlias = "pb.VStreamResponse | bytes | Fail | Hold"
Script: TypeAlias = Iterable[Step] | Callable[[pb.VStreamRequest], Iterable[Step]]


class Vtgate:
    """From `start` to `stop`; also a context manager. ``requests``, ``logins``: everything that clients have sent.

    ``then``: played for every stream after those of ``scripts``.
    """

    def __init__(
        self,
        *scripts: Script,
        then: Script | None = None,
        users: Mapping[str, str] | None = None,
        certificates: Certificates | None = None,
        wants_client_certificate: bool = False,
    ) -> None:
        self._scripts = list(scripts)
        self._then = then
        self._users = users
        self._certificates = certificates
        self._wants_client_certificate = wants_client_certificate
        self._server: Any = None
        self._lock = threading.Lock()
        self.port = 0
        self.requests: list[pb.VStreamRequest] = []
        self.logins: list[dict[str, str]] = []

    def start(self) -> Self:
        """Listen, on the same port as before after a `stop`."""
        self._server = grpc.server(
            ThreadPoolExecutor(STREAMS_MAX), options=[("grpc.so_reuseport", 0), ("grpc.max_send_message_length", -1)]
        )
        handler = grpc.unary_stream_rpc_method_handler(
            self._play,
            request_deserializer=pb.VStreamRequest.FromString,
            response_serializer=lambda step: step if isinstance(step, bytes) else step.SerializeToString(),
        )
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("vtgateservice.Vitess", {"VStream": handler}),)
        )
        place = f"127.0.0.1:{self.port}"
        if self._certificates is None:
            self.port = self._server.add_insecure_port(place)
        else:
            files = self._certificates
            credentials = grpc.ssl_server_credentials(
                [(files.key.read_bytes(), files.cert.read_bytes())],
                files.ca.read_bytes() if self._wants_client_certificate else None,
                self._wants_client_certificate,
            )
            self.port = self._server.add_secure_port(place, credentials)
        self._server.start()
        return self

    def stop(self) -> None:
        """As when the process ends: open streams break off."""
        self._server.stop(0).wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _play(self, request: pb.VStreamRequest, context: Any) -> Iterator[pb.VStreamResponse | bytes]:
        login = dict(context.invocation_metadata())
        with self._lock:
            self.requests.append(request)
            self.logins.append(login)
        self._refuse(request, login, context)
        with self._lock:
            script = self._scripts.pop(0) if self._scripts else self._then
        assert script is not None, "no script is left"
        for step in script(request) if callable(script) else script:
            if isinstance(step, Fail):
                context.abort(step.code, step.details)
            elif isinstance(step, Hold):
                context.add_callback(step.released.set)
                step.released.wait(HOLD_SECONDS_MAX)
                if not context.is_active():
                    return
            else:
                yield step

    def _refuse(self, request: pb.VStreamRequest, login: Mapping[str, str], context: Any) -> None:
        if self._users is not None:
            if "username" not in login or "password" not in login:
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "username and password must be provided")
            if self._users.get(login["username"]) != login["password"]:
                context.abort(grpc.StatusCode.PERMISSION_DENIED, "auth failure: caller is not allowed")
        entries = request.vgtid.shard_gtids
        if not entries:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "vgtid must have at least one value")
        for entry in entries:
            if not entry.shard and entry.gtid not in ("", "current"):
                context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT, "for an unspecified shard, the gtid must be 'current'"
                )
            if entry.gtid not in ("", "current") and not entry.gtid.startswith("MySQL56/"):
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"unknown GTIDSet flavor in {entry.gtid!r}")


class Log:
    """What one shard has executed: a script that sends what is behind the position of the request, and what comes.

    ``ends_after``: the number of responses after which vtgate ends each stream with ``end``, as if it grew too old.
    """

    def __init__(self, shard: str = SHARD, *, ends_after: int = 0, end: Fail | None = None) -> None:
        self._shard = shard
        self._ends_after = ends_after
        self._end = end
        self._responses: list[tuple[int, pb.VStreamResponse]] = []
        self._holds: list[Hold] = []
        self._lock = threading.Lock()
        self.last = 10

    def append(self, *events: pb.VEvent) -> int:
        """Commit a transaction with these events. Its number."""
        with self._lock:
            self.last += 1
            self._responses.append((self.last, transaction(self.last, *events, shard=self._shard)))
            self._release()
            return self.last

    def append_ddl(self, sql: str) -> int:
        with self._lock:
            self.last += 1
            self._responses.append((self.last, ddl(self.last, sql, self._shard)))
            self._release()
            return self.last

    def _release(self) -> None:
        for hold in self._holds:
            hold.released.set()
        self._holds.clear()

    def __call__(self, request: pb.VStreamRequest) -> Iterator[Step]:
        (start,) = [entry.gtid for entry in request.vgtid.shard_gtids if entry.shard == self._shard]
        number = int(start.rpartition("-")[2])
        for sent in itertools.count(1):
            if self._end is not None and sent > self._ends_after:
                yield self._end
            step = self._next(number)
            while isinstance(step, Hold):
                yield step
                step = self._next(number)
            number, response = step
            yield response

    def _next(self, number: int) -> tuple[int, pb.VStreamResponse] | Hold:
        with self._lock:
            for last, response in self._responses:
                if last > number:
                    return last, response
            hold = Hold()
            self._holds.append(hold)
            return hold


# -- events -----------------------------------------------------------------------------------------------


def response(*events: pb.VEvent) -> pb.VStreamResponse:
    return pb.VStreamResponse(events=events)


def event(kind: int, shard: str = SHARD, **parts: Any) -> pb.VEvent:
    """Stamped as vtgate does: with keyspace, shard and a time."""
    parts.setdefault("timestamp", 1_700_000_000)
    return pb.VEvent(type=kind, keyspace=KEYSPACE, shard=shard, **parts)  # type: ignore[arg-type]


def begin(shard: str = SHARD, **parts: Any) -> pb.VEvent:
    return event(pb.BEGIN, shard, **parts)


def commit(shard: str = SHARD, **parts: Any) -> pb.VEvent:
    return event(pb.COMMIT, shard, **parts)


def gtid(last: int, *, uuid: str = UUID) -> str:
    """The position of a shard that has executed the transactions 1 to ``last``."""
    return f"MySQL56/{uuid}:1-{last}"


def vgtid(last: int, shard: str = SHARD, *, others: Mapping[str, int] | None = None) -> pb.VEvent:
    """As vtgate sends it, with all shards of the stream."""
    entries = [(other, gtid(number)) for other, number in (others or {}).items()]
    entries.append((shard, gtid(last)))
    return event(
        pb.VGTID,
        shard,
        vgtid=pb.VGtid(
            shard_gtids=[pb.ShardGtid(keyspace=KEYSPACE, shard=name, gtid=text) for name, text in entries]
        ),
    )


def column(name: str, kind: int, **parts: Any) -> pb.Field:
    return pb.Field(name=name, type=kind, **parts)


CUSTOMER_COLUMNS = (column("id", 265, column_length=20, charset=63, flags=2), column("name", 6165, charset=255))


def fields(table: str, columns: Sequence[pb.Field] = CUSTOMER_COLUMNS, shard: str = SHARD, **parts: Any) -> pb.VEvent:
    return event(
        pb.FIELD,
        shard,
        field_event=pb.FieldEvent(table_name=table, fields=columns, keyspace=KEYSPACE, shard=shard, **parts),
    )


def image(*values: str | bytes | None) -> pb.Row:
    """A row: lengths, and the texts one behind the other. None is NULL."""
    data = [value.encode() if isinstance(value, str) else value for value in values]
    return pb.Row(
        lengths=[-1 if value is None else len(value) for value in data],
        values=b"".join(value for value in data if value is not None),
    )


def change(before: pb.Row | None, after: pb.Row | None, **parts: Any) -> pb.RowChange:
    return pb.RowChange(before=before, after=after, **parts)


def inserted(*values: str | bytes | None) -> pb.RowChange:
    return change(None, image(*values))


def rows(table: str, *changes: pb.RowChange, shard: str = SHARD) -> pb.VEvent:
    return event(
        pb.ROW, shard, row_event=pb.RowEvent(table_name=table, row_changes=changes, keyspace=KEYSPACE, shard=shard)
    )


def transaction(last: int, *events: pb.VEvent, shard: str = SHARD) -> pb.VStreamResponse:
    """BEGIN, the events, VGTID, COMMIT."""
    return response(begin(shard), *events, vgtid(last, shard), commit(shard))


def ddl(last: int, sql: str, shard: str = SHARD) -> pb.VStreamResponse:
    return response(vgtid(last, shard), event(pb.DDL, shard, statement=sql))


def other(last: int, shard: str = SHARD) -> pb.VStreamResponse:
    return response(vgtid(last, shard), event(pb.OTHER, shard))


def heartbeat() -> pb.VStreamResponse:
    """vtgate's own, when nothing else was sent for a while: of no shard."""
    return response(pb.VEvent(type=pb.HEARTBEAT, timestamp=1_700_000_000, current_time=1_700_000_000_000_000_000))


def journal(
    old: Sequence[str], new: Mapping[str, int], shard: str = SHARD, *, number: int = 7, **parts: Any
) -> pb.VEvent:
    """The end of the shards ``old``: they go on in the shards ``new`` behind these transactions."""
    parts.setdefault("migration_type", pb.SHARDS)
    return event(
        pb.JOURNAL,
        shard,
        journal=pb.Journal(
            id=number,
            shard_gtids=[pb.ShardGtid(keyspace=KEYSPACE, shard=name, gtid=gtid(last)) for name, last in new.items()],
            participants=[pb.KeyspaceShard(keyspace=KEYSPACE, shard=name) for name in old],
            **parts,
        ),
    )
