"""The update stream as the service sends it, for one shard and between two positions (docs/update-stream.md).

A bounded piece of an endless stream: it begins after what ``start`` holds and ends when everything in ``end`` has
been delivered; what came early, and is not in ``end``, is left to the next piece. So the same two tokens always give
the same rows, whenever they are asked for. Knows nothing of Spark. Runs on executors.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from freshness.errors import ConfigError, FormatError, FreshnessError, HistoryPurged, SourceUnavailable, StreamStopped
from freshness.position.token import EventToken
from freshness.stream.lines import LINE_BYTES_MAX, EndLine, ErrorLine, Line, UpdateLine, decode_line
from freshness.stream.resume import ResumeVector

TIMEOUT_SECONDS: Final = 20.0
"""The longest silence: an idle stream says so every five seconds."""

PIECE_SECONDS_MAX: Final = 600.0
"""How long a piece may take to come."""

ROWS_HELD_MAX: Final = 200_000
"""Rows of one transaction that are held until its last line has come."""


@dataclass(frozen=True, slots=True)
class Service:
    """The service of the stream. The access token is read by the process that uses it: it does not travel."""

    url: str
    token_file: str = ""

    def get(self, path: str, **parameters: str) -> dict[str, Any]:
        """An answer in JSON. Raises `ConfigError`, `HistoryPurged` or `SourceUnavailable`."""
        with self._asking(path, parameters) as response:
            found: dict[str, Any] = json.loads(response.read())
        return found

    def follow(self, parameters: Mapping[str, str]) -> Iterator[Line]:
        """The lines of a stream, until it ends. Raises as `get`, and `SourceUnavailable` if it falls silent."""
        with self._asking("/v1/update-stream", parameters) as response:
            while data := response.readline(LINE_BYTES_MAX):
                yield decode_line(data)

    @contextmanager
    def _asking(self, path: str, parameters: Mapping[str, str]) -> Iterator[http.client.HTTPResponse]:
        """The answer. Errors of the connection or the answer become `SourceUnavailable`, also in the block."""
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"url {self.url!r}", hint="expected http://HOST:PORT of `invalidator run`")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname, parts.port, timeout=TIMEOUT_SECONDS)
        headers = {"accept": "application/x-ndjson"}
        if self.token_file:
            headers["authorization"] = f"Bearer {_read_first_line(self.token_file)}"
        try:
            connection.request("GET", f"{parts.path.rstrip('/')}{path}?{urlencode(parameters)}", headers=headers)
            response = connection.getresponse()
            if response.status != 200:
                raise self._refused(path, response.status, response.read())
            yield response
        except (OSError, http.client.HTTPException, UnicodeDecodeError, json.JSONDecodeError, FormatError) as error:
            raise SourceUnavailable(
                f"{self.url}{path}: {error or type(error).__name__}",
                hint="does `invalidator run` serve there, with http.listen set?",
            ) from error
        finally:
            connection.close()

    def _refused(self, path: str, status: int, body: bytes) -> FreshnessError:
        detail: Any = body[:500].decode("utf-8", "replace")
        hint = "see docs/update-stream.md for what the service takes"
        try:
            detail = json.loads(body)["detail"]
            detail, hint = detail["message"], detail["hint"]
        except (ValueError, KeyError, TypeError):
            pass  # another program's answer, or the framework's: shown as it is
        message = f"{self.url}{path}: {status}: {detail}"
        if status == 410:
            return HistoryPurged(message, hint=hint)
        if status in (400, 401, 403, 404, 422):
            return ConfigError(message, hint=hint)
        return SourceUnavailable(message, hint=hint)


def _read_first_line(path: str) -> str:
    try:
        return Path(path).read_text().split("\n", 1)[0].strip()
    except OSError as error:
        raise ConfigError(
            f"the token file {path} cannot be read: {error.strerror}", hint="see http.token_file"
        ) from None


@dataclass(frozen=True, slots=True)
class LivePiece:
    """A piece to read. ``since``, ``tables``: parameters of the service. ``start``: position before the piece, which
    gets a row of its own; None for no such row."""

    service: Service
    keyspace: str
    key_range: str
    since: str
    start: EventToken | None
    end: EventToken
    tables: str = ""


def read_piece(
    piece: LivePiece, now_us: Callable[[], int] = lambda: time.time_ns() // 1000
) -> Iterator[tuple[Any, ...]]:
    """Rows of `freshness.history.columns.CHANGES`. Ordinals count from 1. Items and digests are the archive's, not
    here. The last row is ``empty`` with all of ``end``, including what concerned no table of the stream. Raises
    `SourceUnavailable` if the stream ends before that, or does not come there in time."""
    ordinal = 0
    deadline = time.monotonic() + PIECE_SECONDS_MAX
    held: list[UpdateLine] = []
    last_row = -1
    parameters = {"keyspace": piece.keyspace, "key_range": piece.key_range, "since": piece.since}
    if piece.tables:
        parameters["tables"] = piece.tables
    for line in piece.service.follow(parameters):
        if isinstance(line, ErrorLine | EndLine):
            reason, hint = (line.message, line.hint) if isinstance(line, ErrorLine) else (line.reason, "")
            raise SourceUnavailable(
                f"{piece.service.url}: the stream of {piece.end.lineage} ended: {reason}",
                hint=hint or "it is asked again from where this piece began",
            )
        if isinstance(line, UpdateLine):
            if held and (line.gtid != held[0].gtid or 0 <= line.row <= last_row):
                held = []  # it comes again from its first row: what was not whole never counted
            last_row = max(line.row, last_row if held else -1)
            held.append(line)
            if len(held) > ROWS_HELD_MAX:
                raise StreamStopped(
                    f"transaction {line.gtid} has more than {ROWS_HELD_MAX} rows",
                    hint="read the archive instead, which holds transactions of any size",
                )
            if line.last:
                token = EventToken.parse(line.token)
                if piece.end.position.contains(token.position) and token.lineage == piece.end.lineage:
                    ordinal += 1
                    yield from _rows(held, token, ordinal, now_us())
                held = []
        if not held and _is_delivered(line.resume, piece.end):
            yield make_mark(piece.keyspace, piece.end, ordinal + 1, "empty", now_us())
            return
        if time.monotonic() > deadline:
            break
    raise SourceUnavailable(
        f"{piece.service.url}: the stream of {piece.end.lineage} did not bring {piece.end.position}"
        f" within {PIECE_SECONDS_MAX:.0f} s or before it ended",
        hint="it is asked again; does its server follow the primary?",
    )


def _is_delivered(resume: str | None, end: EventToken) -> bool:
    if resume is None:
        return False
    token = ResumeVector.parse(resume).tokens.get(end.lineage)
    return token is not None and token.position.contains(end.position)


def _rows(lines: list[UpdateLine], token: EventToken, ordinal: int, received_us: int) -> Iterator[tuple[Any, ...]]:
    count = sum(line.row >= 0 for line in lines)
    for line in lines:
        detail = line.reason or None
        if line.heartbeat is not None:
            detail = json.dumps(asdict(line.heartbeat))
        yield (
            *(line.keyspace, token.shard, token.lineage, token.epoch, ordinal, line.row, count, line.gtid),
            *(token.timestamp_us, received_us, line.op, line.table, [], []),
            *(_to_text(image) for image in (line.key, line.before, line.after)),
            *(None, None, detail),
        )


def _to_text(value: Any) -> str | None:
    return None if value is None else json.dumps(value, separators=(",", ":"))


def make_mark(keyspace: str, token: EventToken, ordinal: int, op: str, received_us: int) -> tuple[Any, ...]:
    """A row without a change, with a position of any size."""
    place = (keyspace, token.shard, token.lineage, token.epoch, ordinal, -1, 0, str(token.position))
    return (*place, token.timestamp_us, received_us, op, None, [], [], *(None,) * 6)


def read_heads(service: Service, keyspace: str) -> list[EventToken]:
    """All that the primary of each serving shard has executed by now. Raises `ConfigError` for no such keyspace."""
    keyspaces = service.get("/v1/topology")["keyspaces"]
    if keyspace not in keyspaces:
        raise ConfigError(f"{service.url} has no keyspace {keyspace!r}", hint=f"it has {', '.join(keyspaces)}")
    shards = [shard["name"] for shard in keyspaces[keyspace]["shards"] if shard["serving"]]
    try:
        return [
            EventToken.parse(service.get("/v1/token", keyspace=keyspace, shard=shard)["token"]) for shard in shards
        ]
    except KeyError as error:
        raise FormatError(f"{service.url}/v1/token answered without {error}", hint="is it another program?") from None
