"""How the VStream source reaches vtgate: login, TLS, ports without a vtgate, and ends that nobody waits for."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from freshness.config.access import PasswordFile
from freshness.config.vtgate_address import VtgateAddress
from freshness.errors import HistoryPurged, SourceUnavailable, SourceUnsuitable
from integration.servers.certificates import Certificates, make_certificates
from integration.servers.vtgate import KEYSPACE, SHARD, Hold, Script, Step, Vtgate, heartbeat, transaction
from integration.vitess.vstreaming import (
    FIELDS,
    ROW_5,
    TABLES,
    read_to_end,
    source_of,
    take,
    up_to,
    wait_until,
    wait_until_full,
)
from invalidator.mailbox import QueueBounds
from invalidator.vstream.error import NoTablet
from invalidator.vstream.source import VStreamSource


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def test_login(certificates: Certificates) -> None:
    script: Script = [transaction(11, FIELDS, ROW_5)]
    with Vtgate(then=script, users={"app": "geheim"}) as vtgate:
        with source_of(vtgate, parts={"user": "app", "password": "geheim"}) as source:
            assert len(take(source, 1)) == 1
        assert vtgate.logins[0]["username"] == "app"
        for parts, word in (
            ({}, "static authentication"),
            ({"user": "app", "password": "x"}, "check user and password"),
        ):
            with source_of(vtgate, parts=parts) as source:
                _, error = read_to_end(source)
            assert type(error) is SourceUnsuitable
            assert word in error.hint
            assert "geheim" not in str(error)


def test_a_changed_password_is_read_for_the_next_stream(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("previous\n")
    with Vtgate(then=[transaction(11, FIELDS, ROW_5)], users={"app": "geheim"}) as vtgate:
        parts = {"user": "app", "password": PasswordFile(path)}
        with source_of(vtgate, parts=parts) as source:
            _, error = read_to_end(source)
        assert type(error) is SourceUnavailable
        assert "read again" in error.hint
        path.write_text("geheim\n")
        with source_of(vtgate, parts=parts) as source:
            assert len(take(source, 1)) == 1
        path.unlink()
        with pytest.raises(SourceUnavailable, match="password file"), source_of(vtgate, parts=parts):
            pass


def test_tls_and_login(certificates: Certificates) -> None:
    script = [transaction(11, FIELDS, ROW_5)]
    with (
        Vtgate(script, users={"app": "geheim"}, certificates=certificates) as vtgate,
        source_of(vtgate, parts={"user": "app", "password": "geheim", "tls_ca": certificates.ca}) as source,
    ):
        assert len(take(source, 1)) == 1


def test_tls_with_a_client_certificate(certificates: Certificates) -> None:
    script: Script = [transaction(11, FIELDS, ROW_5)]
    with Vtgate(then=script, certificates=certificates, wants_client_certificate=True) as vtgate:
        mine = {"tls_ca": certificates.ca, "tls_cert": certificates.cert, "tls_key": certificates.key}
        with source_of(vtgate, parts=mine) as source:
            assert len(take(source, 1)) == 1
        with (
            pytest.raises((SourceUnsuitable, SourceUnavailable)),
            source_of(vtgate, parts={"tls_ca": certificates.ca}) as source,
        ):
            raise read_to_end(source)[1]


def test_a_vtgate_that_nobody_vouches_for_is_refused(certificates: Certificates, tmp_path: Path) -> None:
    stranger = make_certificates(tmp_path)
    with (
        Vtgate(then=[transaction(11)], certificates=certificates) as vtgate,
        pytest.raises(SourceUnsuitable, match="tls_ca"),
        source_of(vtgate, parts={"tls_ca": stranger.ca}),
    ):
        pass


def test_plaintext_and_tls_mixed_up_is_said(certificates: Certificates) -> None:
    with (
        Vtgate(then=[]) as vtgate,
        pytest.raises(SourceUnsuitable, match="check tls"),
        source_of(vtgate, parts={"tls_ca": certificates.ca}),
    ):
        pass
    with (
        Vtgate(then=[], certificates=certificates) as vtgate,
        pytest.raises(SourceUnavailable),
        source_of(vtgate, parts={"connect_seconds": 2.0}),
    ):
        pass


def test_a_certificate_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with (
        Vtgate(then=[]) as vtgate,
        pytest.raises(SourceUnsuitable, match="cannot be read: No such file"),
        source_of(vtgate, parts={"tls_ca": tmp_path / "nowhere.pem"}),
    ):
        pass


def test_a_port_where_nobody_listens() -> None:
    with Vtgate() as vtgate:
        pass
    with pytest.raises(SourceUnavailable, match="UNAVAILABLE"), source_of(vtgate):
        pass


def test_a_port_that_is_no_vtgate() -> None:
    """It takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = VtgateAddress("127.0.0.1", KEYSPACE, server.getsockname()[1], connect_seconds=0.5)
        with pytest.raises(SourceUnavailable, match="no answer within"):
            VStreamSource(address, SHARD, TABLES).open(up_to(10))


def test_a_silent_vtgate_is_given_up() -> None:
    with Vtgate([transaction(11), Hold()]) as vtgate, source_of(vtgate, silence_seconds=2.0) as source:
        done, error = read_to_end(source)
        assert len(done) == 1
        assert type(error) is SourceUnavailable
        assert "not even a heartbeat" in error.message


def test_a_stream_with_nothing_but_heartbeats_of_vtgate_is_opened_again() -> None:
    """vtgate beats also while it looks for a tablet."""
    script: Script = [transaction(11), heartbeat(), Hold()]
    with Vtgate(then=script) as vtgate, source_of(vtgate, idle_seconds=0.5) as source:
        done, error = read_to_end(source)
        assert len(done) == 1
        assert type(error) is NoTablet
        assert "nothing came but heartbeats of vtgate" in error.message
        source.open(up_to(10))
        assert len(take(source, 1)) == 1


def beating(_: object) -> list[Step]:
    return [heartbeat(), Hold()]


def test_a_stream_with_nothing_but_heartbeats_may_be_one_that_no_tablet_has_the_history_for() -> None:
    """vtgate looks for a tablet for 90 s before it says that there is none."""
    purged = [up_to(11), up_to(12)]
    with (
        Vtgate([transaction(11), Hold()], then=beating) as vtgate,
        source_of(vtgate, idle_seconds=0.5, read_purged=lambda: purged.pop(0)) as source,
    ):
        done, error = read_to_end(source)
        assert (len(done), type(error), len(purged)) == (1, NoTablet, 2)
        source.open(up_to(11))
        assert (type(read_to_end(source)[1]), len(purged)) == (NoTablet, 1)
        source.open(up_to(11))
        assert type(read_to_end(source)[1]) is HistoryPurged


def test_heartbeats_of_vtgate_are_signs_of_life_and_nothing_else() -> None:
    hold = Hold()
    with Vtgate([hold, heartbeat(), Hold()]) as vtgate, source_of(vtgate) as source:
        reader = source._stream._reader
        assert reader is not None
        before = reader.heard_at
        hold.released.set()
        wait_until(lambda: reader.heard_at > before, "the heartbeat is heard")
        assert source.poll(0, 10) == []


def assert_closes(source: VStreamSource) -> None:
    reader = source._stream._reader
    assert reader is not None
    source.close()
    assert not reader._thread.is_alive()
    source.close()


def test_closing_ends_a_thread_that_waits_for_vtgate() -> None:
    with Vtgate([Hold()]) as vtgate, source_of(vtgate) as source:
        assert_closes(source)


def test_closing_ends_a_thread_that_waits_for_room() -> None:
    many = [transaction(last, FIELDS, ROW_5) for last in range(11, 40)]
    with Vtgate(many) as vtgate, source_of(vtgate, queue=QueueBounds(3)) as source:
        wait_until_full(source, 3)
        assert_closes(source)
