"""Errors of vtgate and gRPC in our words: what is routine, what needs an operator, and what ends a history."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import grpc
import pytest

from freshness.config.vtgate_address import VtgateAddress
from freshness.errors import (
    FreshnessError,
    HistoryLost,
    HistoryPurged,
    SourceUnavailable,
    SourceUnsuitable,
    StreamStopped,
)
from freshness.position import MysqlGtidSet
from invalidator.vstream.error import translated
from invalidator.vstream.reader import ShardsMoved

REPLICA = VtgateAddress("h", "ks", user="u", password="geheim")
PRIMARY = VtgateAddress("h", "ks", tablet_type="primary")
MISMATCH = "GTIDSet Mismatch: requested source position:MySQL56/x:1-9, current target vrep position: MySQL56/x:1-8"
Code = grpc.StatusCode


@dataclass
class Failure(grpc.RpcError):  # type: ignore[misc]
    """As grpcio raises it."""

    status: grpc.StatusCode
    text: str | None

    def code(self) -> grpc.StatusCode:
        return self.status

    def details(self) -> str | None:
        return self.text


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        (Code.UNAVAILABLE, "closing transport due to: connection error", SourceUnavailable),
        (Code.UNAVAILABLE, "keepalive watchdog timeout", SourceUnavailable),
        (Code.UNAVAILABLE, "GOAWAY received", SourceUnavailable),
        (Code.UNAVAILABLE, "failed to connect to all addresses; Connection refused", SourceUnavailable),
        (Code.UNAVAILABLE, None, SourceUnavailable),
        (Code.CANCELLED, "timed out while waiting for skew to reduce", SourceUnavailable),
        (Code.DEADLINE_EXCEEDED, "Deadline Exceeded", SourceUnavailable),
        (Code.ABORTED, "", SourceUnavailable),
        (Code.UNKNOWN, "vttablet: rpc error", SourceUnavailable),
        (Code.INTERNAL, "Received RST_STREAM with error code 2", SourceUnavailable),
        (Code.FAILED_PRECONDITION, "no healthy tablet", SourceUnavailable),
        (Code.RESOURCE_EXHAUSTED, "too many streams", SourceUnavailable),
        (Code.INVALID_ARGUMENT, MISMATCH, SourceUnavailable),
        (Code.UNKNOWN, "the source purged required binary logs (errno 1236) (sqlstate HY000)", HistoryPurged),
        (Code.UNKNOWN, "A slave with the same server_uuid has connected (errno 1236)", SourceUnavailable),
        (Code.UNKNOWN, "Slave has more GTIDs than the source has (errno 1236)", SourceUnavailable),
        (Code.UNAVAILABLE, "Ssl handshake failed: connection reset by peer", SourceUnavailable),
        (Code.UNAVAILABLE, "Peer name 10.0.0.1 is not in peer certificate", SourceUnsuitable),
        (Code.UNKNOWN, "vttablet: ... (errno 1789) (sqlstate HY000)", HistoryPurged),
        (Code.UNAUTHENTICATED, "username and password must be provided", SourceUnsuitable),
        (Code.PERMISSION_DENIED, "auth failure", SourceUnsuitable),
        (Code.INVALID_ARGUMENT, "vgtid must have at least one value", SourceUnsuitable),
        (Code.UNIMPLEMENTED, "unknown service vtgateservice.Vitess", SourceUnsuitable),
        (Code.NOT_FOUND, "keyspace x", SourceUnsuitable),
        (
            Code.NOT_FOUND,
            'failed to get tablet connection: tablet: cell:"zone1" uid:102 is either down or nonexistent',
            SourceUnavailable,
        ),
        (Code.INVALID_ARGUMENT, "invalid shard 0 does not match expected -80", SourceUnavailable),
        (Code.FAILED_PRECONDITION, "shard provided in VGTID, -80, not found in the ks keyspace", SourceUnsuitable),
        (Code.UNKNOWN, "partial row image encountered: ensure binlog_row_image is set to 'full'", SourceUnsuitable),
        (Code.UNAVAILABLE, "Ssl handshake failed: CERTIFICATE_VERIFY_FAILED", SourceUnsuitable),
        (Code.UNAVAILABLE, "SSL_ERROR_SSL: WRONG_VERSION_NUMBER", SourceUnsuitable),
        (Code.INTERNAL, "not all journaling participants are in the stream: journal: id:7", StreamStopped),
        (
            Code.UNKNOWN,
            "stream (at source tablet) error: unexpected statement type ROLLBACK in row-based replication",
            HistoryPurged,
        ),
        (
            Code.UNKNOWN,
            "failed to resolve vstream parameters: keyspace x fetch error: node doesn't exist: keyspaces/x",
            SourceUnsuitable,
        ),
        (Code.INTERNAL, "Exception deserializing response!", StreamStopped),
        (Code.RESOURCE_EXHAUSTED, "CLIENT: Received message larger than max (99 vs. 9)", StreamStopped),
    ],
)
def test_every_end_of_a_stream_has_its_error(
    code: grpc.StatusCode, details: str | None, kind: type[FreshnessError]
) -> None:
    error = translated(Failure(code, details), REPLICA)
    assert type(error) is kind
    assert code.name in error.message
    assert "h:15991/ks" in error.message
    assert error.hint
    assert "geheim" not in str(error)


def test_a_primary_that_lacks_the_position_has_lost_it_and_a_replica_may_lag() -> None:
    failure = Failure(Code.INVALID_ARGUMENT, MISMATCH)
    assert type(translated(failure, PRIMARY)) is HistoryLost
    assert type(translated(failure, REPLICA)) is SourceUnavailable


def wrapped(text: str, sources: int) -> str:
    """As vtgate passes on what a tablet said: with the position that the stream began at, twice."""
    gtids = ",".join(f"{number:08x}-71ca-11e1-9e33-c80aa9429562:1-123456789" for number in range(sources))
    return (
        f"error starting stream from shard GTID MySQL56/{gtids}: error in vstream for ks/-80 on tablet zone1-101: "
        "persistent error, giving up: target: ks.-80.replica: vttablet: rpc error: code = Unknown desc = stream (at "
        f"source tablet) error @ (including the GTID we failed to process) {gtids}: {text}"
    )


@pytest.mark.parametrize("sources", [1, 3, 20])
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (
            "Cannot replicate because the source purged required binary logs (errno 1236) (sqlstate HY000)",
            HistoryPurged,
        ),
        ("not all journaling participants are in the stream: journal: id:7", StreamStopped),
        (MISMATCH, HistoryLost),
    ],
)
def test_what_a_tablet_said_is_found_behind_all_wrappings(
    text: str, kind: type[FreshnessError], sources: int
) -> None:
    error = translated(Failure(Code.UNKNOWN, wrapped(text, sources)), PRIMARY)
    assert type(error) is kind
    assert text[-40:] in error.message, "the end says what it was"
    assert len(error.message) < 500


@pytest.mark.parametrize("code", list(Code))
def test_every_code_is_translated(code: grpc.StatusCode) -> None:
    assert isinstance(translated(Failure(code, "x"), REPLICA), FreshnessError)


def test_a_hand_over_survives_pickling() -> None:
    new = {"-40": MysqlGtidSet.of("3e11fa47-71ca-11e1-9e33-c80aa9429562", 3)}
    moved = pickle.loads(pickle.dumps(ShardsMoved("ks", 7, ("-80",), new)))  # noqa: S301 - our own
    assert (moved.keyspace, moved.journal_id, moved.old, moved.new) == ("ks", 7, ("-80",), new)
