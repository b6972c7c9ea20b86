"""The connections of the HTTP service, on real sockets: their certificate, and how many there are."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from freshness.config.config import Config
from freshness.errors import ConfigError
from integration.servers.certificates import Authority, Certificates, make_certificates
from integration.servers.process import find_free_port
from invalidator.http.connection import read_certificate
from invalidator.http.consumers import ServePolicy, StreamHub
from invalidator.http.service import HttpService, create_api
from invalidator.process.app import Invalidator
from tests.unit.invalidator.archive.archive_world import CONFIG, make_config
from tests.unit.invalidator.http.test_consumers import BOUND_SECONDS, STREAM, ScriptedOpener, ScriptedStream, insert

TLS: Final = '[http]\ntls_cert = "cert.pem"\ntls_key = "key.pem"\n'


@contextmanager
def serving(config: Config, *streams: ScriptedStream, **options: Any) -> Iterator[int]:
    """The port of a service with these streams."""
    hub = StreamHub(cast(Any, ScriptedOpener(config, [*streams])), ServePolicy(idle_seconds=0.1))
    api = create_api(Invalidator(config), dict, streams=hub)
    port = find_free_port()
    service = HttpService(api, f"127.0.0.1:{port}", **options)
    service.start()
    try:
        yield port
    finally:
        service.stop()


def is_alive(connection: http.client.HTTPConnection) -> bool:
    connection.request("GET", "/healthz")
    response = connection.getresponse()
    return response.status == 200 and response.read() == b'{"status":"ok"}'


def connect(port: int) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=BOUND_SECONDS)
    connection.connect()
    return connection


# -- TLS -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> Certificates:
    return make_certificates(tmp_path)


def test_the_service_is_served_over_tls_alone(files: Certificates, tmp_path: Path) -> None:
    config = make_config(tmp_path, CONFIG + TLS)
    trusting = ssl.create_default_context(cafile=str(files.ca))
    with serving(config, certificate=read_certificate(config)) as port:
        address = ("127.0.0.1", port)
        assert is_alive(http.client.HTTPSConnection(*address, timeout=BOUND_SECONDS, context=trusting))
        with pytest.raises(ssl.SSLCertVerificationError):
            is_alive(http.client.HTTPSConnection(*address, timeout=BOUND_SECONDS))
        with pytest.raises((http.client.HTTPException, OSError)):
            is_alive(connect(port))


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_an_old_version_of_tls_is_refused(files: Certificates, tmp_path: Path) -> None:
    config = make_config(tmp_path, CONFIG + TLS)

    def speak(port: int, version: ssl.TLSVersion) -> str | None:
        client = ssl.create_default_context(cafile=str(files.ca))
        client.set_ciphers("DEFAULT:@SECLEVEL=0")  # else this side refuses the old one
        client.minimum_version = client.maximum_version = version
        with (
            socket.create_connection(("127.0.0.1", port), BOUND_SECONDS) as plain,
            client.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
        ):
            return secured.version()

    with serving(config, certificate=read_certificate(config)) as port:
        assert speak(port, ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
        with pytest.raises(OSError) as refused:
            speak(port, ssl.TLSVersion.TLSv1_1)
    assert "NO_PROTOCOLS_AVAILABLE" not in str(refused.value), "the service refused it, not this side"


def test_a_certificate_that_is_replaced_is_that_of_the_next_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    files = authority.certify()
    config = make_config(tmp_path, CONFIG + TLS)
    trusting = ssl.create_default_context(cafile=str(files.ca))

    def find_serial(port: int) -> int:
        with (
            socket.create_connection(("127.0.0.1", port), BOUND_SECONDS) as plain,
            trusting.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
        ):
            shown = secured.getpeercert(binary_form=True)
            assert shown is not None
            return x509.load_der_x509_certificate(shown).serial_number

    def read_serial() -> int:
        return x509.load_pem_x509_certificate(files.cert.read_bytes()).serial_number

    with serving(config, certificate=read_certificate(config)) as port:
        first = read_serial()
        assert find_serial(port) == first
        authority.certify()
        second = read_serial()
        assert find_serial(port) == second != first
        files.key.write_text("half of it")
        assert find_serial(port) == second
        assert "the certificate of the HTTP service stays as it was" in caplog.text
        files.key.unlink()
        assert find_serial(port) == second
        authority.certify()
        assert find_serial(port) == read_serial() != second


def test_a_service_without_a_certificate_has_none(tmp_path: Path) -> None:
    assert read_certificate(make_config(tmp_path, CONFIG)) is None


@pytest.mark.parametrize("name", ["cert", "key"])
def test_files_that_do_not_serve(name: str, files: Certificates, tmp_path: Path) -> None:
    config = make_config(tmp_path, CONFIG + TLS)
    path: Path = getattr(files, name)
    path.write_text("no PEM")
    with pytest.raises(ConfigError, match=r"http\.tls_cert = cert\.pem, http\.tls_key = key\.pem: "):
        read_certificate(config)
    path.unlink()
    with pytest.raises(ConfigError, match=rf"http\.tls_{name} = .*{name}\.pem: No such file") as refused:
        read_certificate(config)
    assert "PEM file" in refused.value.hint


def test_a_key_of_another_certificate(files: Certificates, tmp_path: Path) -> None:
    config = make_config(tmp_path, CONFIG + TLS)
    other = make_certificates(tmp_path / "other")
    files.key.write_bytes(other.key.read_bytes())
    with pytest.raises(ConfigError, match="KEY_VALUES_MISMATCH"):
        read_certificate(config)


def test_a_key_with_a_passphrase_is_refused_and_asks_for_none(files: Certificates, tmp_path: Path) -> None:
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    files.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"s3cr3t"),
        )
    )
    with pytest.raises(ConfigError, match=r"http\.tls_key = key\.pem") as refused:
        read_certificate(make_config(tmp_path, CONFIG + TLS))
    assert "without a passphrase" in refused.value.hint


# -- their number --------------------------------------------------------------------------------------------------


def is_closed(connection: http.client.HTTPConnection) -> bool:
    """Whether the service has cut it: there is an end, or a reset, and no wait."""
    assert connection.sock is not None
    try:
        return connection.sock.recv(1) == b""
    except ConnectionResetError:
        return True


def test_one_connection_more_takes_the_place_of_that_which_is_idle_longest(tmp_path: Path) -> None:
    """Connections that say nothing, or have said all, keep nobody out."""
    with serving(make_config(tmp_path), connections_max=3) as port, ExitStack() as stack:
        silent, spoken, third = (stack.enter_context(closing(connect(port))) for _ in range(3))
        assert is_alive(third)
        assert is_alive(spoken)
        assert is_alive(stack.enter_context(closing(connect(port))))
        assert is_closed(silent)
        assert is_alive(spoken)
        assert is_alive(stack.enter_context(closing(connect(port))))
        assert is_closed(third), "it was asked before the other"
        assert is_alive(spoken)


def test_a_connection_with_a_request_under_way_is_not_cut(tmp_path: Path) -> None:
    streams = ScriptedStream([insert(1)]), ScriptedStream([insert(1)])
    with serving(make_config(tmp_path), *streams, connections_max=2) as port, ExitStack() as stack:
        following = [stack.enter_context(closing(connect(port))) for _ in range(2)]
        responses = []
        for each in following:
            each.request("GET", STREAM)
            responses.append(each.getresponse())
            assert responses[-1].status == 200
        assert all(response.readline() for response in responses)
        late = stack.enter_context(closing(connect(port)))
        assert is_closed(late)
        following[0].close()
        responses[0].close()
        assert responses[1].readline(), "the others go on: this is the heartbeat of an idle stream"


@contextmanager
def closing(connection: http.client.HTTPConnection) -> Iterator[http.client.HTTPConnection]:
    try:
        yield connection
    finally:
        connection.close()
