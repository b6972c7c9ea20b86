"""Errors of vtgate and gRPC in our words. The one place that translates them; called by
``invalidator.vstream.source``.

Most ends of a stream are routine (a tablet left, the stream grew too old, the network): `SourceUnavailable`, after
which the caller opens it again from its own position.
"""

from __future__ import annotations

import re
from typing import Final

import grpc

from freshness.config.vtgate_address import VtgateAddress
from freshness.errors import (
    FreshnessError,
    HistoryLost,
    HistoryPurged,
    SourceUnavailable,
    SourceUnsuitable,
    StreamStopped,
)
from freshness.login import AGAIN_HINT

_LOGIN_REFUSED: Final = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
_MISMATCH = re.compile(r"GTIDSet ?Mismatch|has more GTIDs than the (?:source|master)", re.IGNORECASE)
_KICKED_OUT = re.compile(r"same server_(?:uu)?id", re.IGNORECASE)
_PURGED = re.compile(
    r"errno:? ?(?:1236|1789)\b|purged required (?:binary logs|gtids)|binlog(?:s| files) have been purged",
    re.IGNORECASE,
)
_PARTICIPANTS = re.compile(r"not all journaling participants are in the stream", re.IGNORECASE)
_SHARD_GONE = re.compile(r"shard.*not found|shard provided in VGTID", re.IGNORECASE)
_PARTIAL_IMAGE = re.compile(r"partial row image encountered", re.IGNORECASE)
_TLS = re.compile(r"SSL_ERROR_SSL|CERTIFICATE_VERIFY_FAILED|not in peer certificate", re.IGNORECASE)
_UNDECODABLE = re.compile(r"deserializing response", re.IGNORECASE)
_TOO_LARGE = re.compile(r"message larger than max", re.IGNORECASE)
_NO_TABLET = re.compile(r"failed to find a \w+ tablet", re.IGNORECASE)
_TABLET_GONE = re.compile(
    r"is either down or nonexistent|invalid (?:keyspace|shard) \S+ does not match expected", re.IGNORECASE
)
_UNFIT_COLUMNS = re.compile(
    r"cannot use column names in vstream filter|column \S+ not found|cannot determine table columns", re.IGNORECASE
)
_NO_KEYSPACE = re.compile(r"node doesn't exist", re.IGNORECASE)
_NOT_ROW_BASED = re.compile(r"unexpected statement type \w+ in row-based replication", re.IGNORECASE)
_SHOWN_CHARACTERS_MAX = 400

PURGED_HINT: Final = "purged (F15): the lives of all nodes must end; keep binary logs longer than the longest outage"


class ColumnsUnfit(SourceUnavailable):
    """The columns that were asked for are not those that a table had when its rows were written: a stream that asks
    for all columns gets past it."""


class NoTablet(SourceUnavailable):
    """No tablet streams from the position. vtgate leaves out those that lack it, and those that have purged it. It
    says no more than this, after 90 s of heartbeats, if one or two tablets are all that a shard has."""


def translated(error: grpc.RpcError, address: VtgateAddress) -> FreshnessError:
    """Raise it ``from`` the original."""
    code, details = error.code(), str(error.details() or "")
    said = f"{address}: {_shortened(details) or 'no details'} [{code.name}]"
    if code in _LOGIN_REFUSED and not isinstance(address.password, str):
        return SourceUnavailable(said, hint=f"check user and password; {AGAIN_HINT}")
    return _by_text(details, said, address) or _by_code(code, details, said)


def _shortened(details: str) -> str:
    """The beginning and the end: Vitess wraps an error again and again, and puts GTID sets in between."""
    if len(details) <= _SHOWN_CHARACTERS_MAX:
        return details
    half = _SHOWN_CHARACTERS_MAX // 2
    return f"{details[:half]} … {details[-half:]}"


def _by_text(details: str, said: str, address: VtgateAddress) -> FreshnessError | None:
    if _MISMATCH.search(details):
        if address.tablet_type == "primary":
            return HistoryLost(
                said,
                hint="a future position or another history (F28, F29): raise the epoch, end the lives of all nodes",
            )
        return SourceUnavailable(
            said, hint="no tablet has executed all of the start position yet: wait, or use tablet_type=primary"
        )
    if _KICKED_OUT.search(details):
        return SourceUnavailable(said, hint="another reader of the tablet took over; it is tried again")
    if _PURGED.search(details):
        return HistoryPurged(said, hint=PURGED_HINT)
    if _PARTICIPANTS.search(details):
        return StreamStopped(
            said, hint="the keyspace was resharded: put the new shards into freshness.toml, and load it (SIGHUP)"
        )
    if _NOT_ROW_BASED.search(details):
        return HistoryPurged(
            said,
            hint="XA, or a table without transactions: no tablet reads its log beyond it, so the lives of all nodes"
            " end, and new ones begin behind it",
        )
    if _UNFIT_COLUMNS.search(details):
        return ColumnsUnfit(
            said,
            hint="rows from before a DDL: it is opened again with all columns; vttablets with --track-schema-versions"
            " know the previous ones",
        )
    if _NO_TABLET.search(details):
        return NoTablet(
            said, hint="are tablets of that type serving, and do they have what comes after the start position?"
        )
    if _TABLET_GONE.search(details):
        # NOT_FOUND and INVALID_ARGUMENT: codes that mean a wrong name elsewhere.
        return SourceUnavailable(said, hint="vtgate chose a tablet that just left; it is tried again")
    if _NO_KEYSPACE.search(details):
        return SourceUnsuitable(said, hint="vtgate knows no such keyspace: check its name")
    if _UNDECODABLE.search(details):
        return StreamStopped(f"a response could not be decoded: {said}", hint="report it with the version of Vitess")
    if _PARTIAL_IMAGE.search(details):
        return SourceUnsuitable(said, hint="set binlog_row_image=FULL on the tablets' servers")
    return None


_UNSUITABLE: Final = {
    grpc.StatusCode.UNAUTHENTICATED: "give user and password in the URL: vtgate runs with static authentication",
    grpc.StatusCode.PERMISSION_DENIED: "check user and password, and the certificate where vtgate asks for one",
    grpc.StatusCode.UNIMPLEMENTED: "is this vtgate's gRPC port, and is grpc-vtgateservice in its --service_map?",
    grpc.StatusCode.INVALID_ARGUMENT: "vtgate refuses the request: check keyspace, shards, tables and columns",
    grpc.StatusCode.NOT_FOUND: "check the names of keyspace and shard",
}


def _by_code(code: grpc.StatusCode, details: str, said: str) -> FreshnessError:
    if code in _UNSUITABLE:
        return SourceUnsuitable(said, hint=_UNSUITABLE[code])
    if code == grpc.StatusCode.FAILED_PRECONDITION and _SHARD_GONE.search(details):
        return SourceUnsuitable(said, hint="the shard was resharded away: correct the topology")
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED and _TOO_LARGE.search(details):
        return StreamStopped(said, hint="raise message_bytes_max, in the URL, and see vtgate's own limit")
    if code == grpc.StatusCode.UNAVAILABLE and _TLS.search(details):
        return SourceUnsuitable(
            said, hint="check tls, tls_ca, tls_cert and tls_key, and the name in vtgate's certificate"
        )
    return SourceUnavailable(said, hint="opened again from the caller's own position")
