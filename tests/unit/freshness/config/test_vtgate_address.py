"""``vitess://`` URLs: what they say, and mistakes in them, without ever showing a password."""

from __future__ import annotations

from pathlib import Path

import pytest

from freshness.config.access import PasswordFile, PasswordVariable
from freshness.config.vtgate_address import VtgateAddress
from freshness.errors import ConfigError


def parse(url: str, **environ: str) -> VtgateAddress:
    return VtgateAddress.parse(url, environ)


def test_a_whole_url() -> None:
    address = parse(
        "vitess://app:s%40cret@vtgate.internal:15999/commerce?tablet_type=primary&tls_ca=ca.pem&tls_cert=c.pem"
        "&tls_key=k.pem&cells=zone1,zone2&chunk_bytes=1048576&connect_seconds=2.5&keepalive_seconds=30"
        "&message_bytes_max=1000"
    )
    assert address == VtgateAddress(
        "vtgate.internal",
        "commerce",
        15999,
        "app",
        "s@cret",
        "primary",
        True,
        Path("ca.pem"),
        Path("c.pem"),
        Path("k.pem"),
        "zone1,zone2",
        1_048_576,
        2.5,
        30.0,
        1000,
    )


def test_defaults() -> None:
    address = parse("vitess://vtgate/commerce")
    assert (address.target, address.tablet_type, address.tls, address.user) == ("vtgate:15991", "replica", False, "")
    assert str(address) == "vtgate:15991/commerce@replica"
    assert parse("vitess://[::1]:1/commerce").target == "[::1]:1"
    assert parse("vitess://h/commerce?tls=true").tls


def test_the_password_comes_from_the_environment_or_a_file(tmp_path: Path) -> None:
    assert parse("vitess://app:${PASSWORD}@h/ks", PASSWORD="a b@c").password == "a b@c"
    (tmp_path / "password").write_text("geheim\n")
    address = VtgateAddress.parse("vitess://app@h/ks?password_file=password", {}, tmp_path)
    assert address.password == PasswordFile(tmp_path / "password")
    with pytest.raises(ConfigError, match="environment variable not set: NOT-THERE"):
        parse("vitess://app:${NOT-THERE}@h/ks")


def test_a_password_of_the_own_environment_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VTGATE_PASSWORD", "geheim")
    address = VtgateAddress.parse("vitess://app:${VTGATE_PASSWORD}@h/ks")
    assert address.password == PasswordVariable(("", "VTGATE_PASSWORD", ""))


def test_the_password_is_in_no_text() -> None:
    address = parse("vitess://app:geheim@h/ks")
    assert "geheim" not in f"{address} {address!r}"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("mysql://u:geheim@h/ks", "does not name one keyspace"),
        ("vitess://u:geheim@h", "does not name one keyspace"),
        ("vitess://u:geheim@h/ks:-80", "does not name one keyspace"),
        ("vitess://u:geheim@h/ks/x", "does not name one keyspace"),
        ("vitess://u:ge#heim@h/ks", ""),
        ("vitess://u:ge?heim@h/ks", ""),
        ("vitess://u:ge/heim@h/ks", ""),
        ("vitess://u:ge heim@h/ks", "blank"),
        ("vitess://u:geheim@h:x/ks", "no port"),
        ("vitess://u:geheim@h:0/ks", "port 0"),
        ("vitess://u:geheim@/ks", "host is empty"),
        ("vitess://u@h/ks", "a user and a password"),
        ("vitess://:geheim@h/ks", "a user and a password"),
        ("vitess://u:${NOWHERE}@h/ks", "not set: NOWHERE"),
        ("vitess://u:geheim@h/ks?password_file=x", "one is needed"),
        ("vitess://u@h/ks?password_file=/nowhere", "cannot be read"),
        ("vitess://u:geheim@h/ks?tablet_type=master", "tablet_type is 'master'"),
        ("vitess://u:geheim@h/ks?tls=yes", "tls is 'yes'"),
        ("vitess://u:geheim@h/ks?tls=false&tls_ca=x", "tls=false"),
        ("vitess://u:geheim@h/ks?tls_cert=x", "both tls_cert and tls_key"),
        ("vitess://u:geheim@h/ks?colour=red", "unknown option 'colour'"),
        ("vitess://u:geheim@h/ks?chunk_bytes=x", "chunk_bytes is 'x'"),
        ("vitess://u:geheim@h/ks?chunk_bytes=-1", "chunk_bytes is 0 or above"),
        ("vitess://u:geheim@h/ks?connect_seconds=0", "connect_seconds"),
        ("vitess://u:geheim@h/ks?connect_seconds=nan", "connect_seconds"),
        ("vitess://u:geheim@h/ks?keepalive_seconds=inf", "keepalive_seconds is inf"),
        ("vitess://u:geheim@h/ks?message_bytes_max=9999999999", "message_bytes_max"),
        ("vitess://u:geheim@h/ks?keepalive_seconds=1", "keepalive_seconds is 1"),
        ("vitess://u:geheim@h/ks?tls", "not a vitess:// URL"),
        ("vitess://[u:geheim@h/ks", "not a vitess:// URL"),
    ],
)
def test_mistakes_are_named_and_show_no_password(url: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(url)
    assert problem in str(caught.value)
    assert "heim" not in str(caught.value)
