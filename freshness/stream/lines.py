"""The schema of a line of the update stream, as the invalidator prints and serves it (docs/update-stream.md).

One line is one JSON object; its key ``event`` names one of five kinds. The invalidator encodes lines, and decodes
a file of them for a replay; the Spark jobs decode the lines of the service. msgspec encodes lines and checks types;
no other module of this folder imports a third-party package. No I/O.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec

from freshness.errors import FormatError, FreshnessError
from freshness.stream.schema import KeySource, TableColumn
from freshness.stream.source import Heartbeat

LINE_BYTES_MAX: Final = 1 << 30
"""The longest line that is read: no row is larger (max_allowed_packet)."""

LineOperation: TypeAlias = Literal["insert", "update", "delete", "refresh", "raise", "heartbeat"]


class UpdateLine(msgspec.Struct, tag_field="event", tag="update", kw_only=True, omit_defaults=True):
    """One change of a transaction. ``row`` is its place among the transaction's row changes, -1 for others; with
    ``gtid`` it identifies every row change. Op ``refresh``: a row that was read again, for an upsert; its ``row`` is
    -1. ``resume``: everything before the transaction was delivered, on its
    ``last`` line the transaction too; null if nothing is known before it. ``key``, ``before`` and
    ``after`` hold values as ``freshness.values.json`` writes them. ``schema``: the id of the `SchemaLine` that came
    before; empty if the source does not describe the columns."""

    keyspace: str
    shard: str
    table: str | None
    op: LineOperation
    key: dict[str, Any] | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    token: str
    timestamp: float
    resume: str | None
    min_timestamp: float
    gtid: str
    row: int
    last: bool
    reason: str = ""
    heartbeat: Heartbeat | None = None
    unaligned: bool = False
    key_range: str = "-"
    schema: str = ""


class SchemaLine(msgspec.Struct, tag_field="event", tag="schema", kw_only=True):
    """The columns of a table in the next change of it, sent before that: at first, and if they changed. ``id`` is
    the same for the same layout. ``key``: the names of the primary key's columns; null if it has a hidden column, or
    is not known. ``token``: token of the transaction with the next change; ``resume`` as on its lines."""

    id: str
    keyspace: str
    shard: str
    table: str
    columns: tuple[TableColumn, ...]
    key: tuple[str, ...] | None
    key_source: KeySource
    token: str
    resume: str | None


class HeartbeatLine(msgspec.Struct, tag_field="event", tag="heartbeat", kw_only=True):
    """The stream is idle: nothing came, and ``resume`` has moved on with what concerned no table of it."""

    keyspace: str
    timestamp: float
    resume: str | None
    min_timestamp: float | None


class RefreshedLine(msgspec.Struct, tag_field="event", tag="refreshed", kw_only=True):
    """A refresh is over: with what the stream has brought, a consumer has the tables as of here. ``resume`` is
    without it."""

    keyspace: str
    timestamp: float
    resume: str | None
    min_timestamp: float


class ErrorLine(msgspec.Struct, tag_field="event", tag="error", kw_only=True):
    """The stream ended with an error; ``resume`` is where to go on once it is dealt with."""

    error: str
    message: str
    hint: str
    resume: str | None

    @classmethod
    def of(cls, error: FreshnessError, resume: str | None) -> ErrorLine:
        return cls(error=type(error).__name__, message=error.message, hint=error.hint, resume=resume)


class EndLine(msgspec.Struct, tag_field="event", tag="end", kw_only=True):
    """The service ends the stream: ``reason``; ``resume`` is where to go on."""

    reason: str
    resume: str | None


Line: TypeAlias = UpdateLine | SchemaLine | HeartbeatLine | RefreshedLine | ErrorLine | EndLine
_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final[msgspec.json.Decoder[Line]] = msgspec.json.Decoder(Line)


def encode_line(line: Line) -> bytes:
    """The bytes of ``line``, with the newline at its end."""
    return _ENCODER.encode(line) + b"\n"


def decode_line(data: bytes) -> Line:
    """The line in ``data`` of `encode_line`. Unknown keys are skipped. Raises `FormatError` for an unknown event, a
    missing key, a value of another type, and bytes that are not JSON."""
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FormatError(
            f"not a line of the update stream: {error}",
            hint="expected one JSON object in each line, as `invalidator stream` prints them",
        ) from error
