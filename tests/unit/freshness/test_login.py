"""Passwords and certificates: read again each time, and never repeated."""

from __future__ import annotations

import asyncio
import pickle
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from appclient.connection.awaiting import LOOP, run_awaiting
from freshness import login
from freshness.config.access import (
    NodeLogin,
    Password,
    PasswordCommand,
    PasswordFile,
    PasswordVariable,
    Tls,
    variable_password,
)
from freshness.config.keyspace import Keyspace, Shard
from freshness.config.server import ServerAddress
from freshness.errors import ConfigError
from freshness.login import describe_tls_failure, find_credentials, find_password, make_context, with_passwords
from integration.servers.certificates import Authority

SECRET = "hunter2"


def find(password: Password) -> str:
    return find_password(password, "app", "db1", 3306)


def python(code: str, *arguments: str) -> PasswordCommand:
    return PasswordCommand((sys.executable, "-c", code, *arguments))


def test_a_text_is_the_password() -> None:
    assert find(SECRET) == SECRET
    assert find("") == ""


def test_a_file_is_read_each_time(tmp_path: Path) -> None:
    path = tmp_path / "password"
    for text in ("previous", "following"):
        path.write_text(f"{text}\nanother line\n")
        assert find(PasswordFile(path)) == text
    path.write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        find(PasswordFile(path))


def test_a_variable_is_read_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("previous", "following ${NOT_EXPANDED}"):
        monkeypatch.setenv("SHOP_PASSWORD", text)
        assert find(PasswordVariable(("x", "SHOP_PASSWORD", "y"))) == f"x{text}y"
    monkeypatch.delenv("SHOP_PASSWORD")
    with pytest.raises(ConfigError, match="environment variable not set: SHOP_PASSWORD"):
        find(PasswordVariable(("", "SHOP_PASSWORD", "")))


def test_variables_of_another_environment_are_the_password_itself() -> None:
    assert variable_password(("x", "SHOP_PASSWORD", ""), {"SHOP_PASSWORD": SECRET}) == f"x{SECRET}"


def test_a_command_is_told_whom_it_logs_in() -> None:
    command = python("import sys; print(*sys.argv[1:]); print('ignored')", "{user}@{host}", "--port={port}")
    assert find(command) == "app@db1 --port=3306"
    node = NodeLogin("cache", python("import sys; print(sys.argv[1])", "{user} {host} {port}"))
    assert find_credentials(node, "[::1]:11211") == ("cache", "cache ::1 11211")


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (python(f"print('{SECRET}'); raise SystemExit('{SECRET}')"), "ended with 1"),
        (python("pass"), "printed no password"),
        (python("import sys; sys.stdout.buffer.write(b'\\xff' + b'hunter2')"), "not UTF-8"),
        (PasswordCommand(("/nowhere/program", SECRET)), "cannot be run: No such file"),
    ],
)
def test_a_command_that_fails_is_named_without_what_it_prints(
    command: PasswordCommand, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        find(command)
    assert command.arguments[0] in caught.value.message
    assert "run it by hand" in caught.value.hint
    assert SECRET not in f"{caught.value} {caught.value!r} {caught.value.__cause__!r}"
    assert SECRET not in "".join(capfd.readouterr())


def test_a_command_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(login, "COMMAND_SECONDS", 0.5)
    started = tmp_path / "pid"
    code = f"import os, time; open({str(started)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    with pytest.raises(ConfigError, match=r"did not end within 0\.5 s"):
        find(python(code))
    if started.exists():  # on a busy machine it may not have come so far
        assert subprocess.run(["kill", "-0", started.read_text()], check=False).returncode != 0


def test_a_command_does_not_stop_an_event_loop(tmp_path: Path) -> None:
    awaited = tmp_path / "awaited"
    code = "import pathlib, sys, time\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.01)\nprint('late')"

    async def ask() -> str:
        password = python(code, str(awaited))
        asking = asyncio.create_task(run_awaiting(find_password, password, "app", "db1", 3306, LOOP))
        await asyncio.sleep(0)
        awaited.touch()  # the command has been started, or will be
        return await asking

    assert asyncio.run(ask()) == "late"


def test_no_repr_shows_a_password() -> None:
    sources = (PasswordVariable((SECRET, "X", "")), PasswordCommand(("program", SECRET)))
    for password in (SECRET, *sources):
        held = NodeLogin("cache", password), ServerAddress("db", 3306, "app", password, "shop"), sources
        assert SECRET not in repr(held)
        assert pickle.loads(pickle.dumps(held)) == held  # noqa: S301 - our own


def test_servers_for_other_machines_have_the_passwords_of_now(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text(SECRET)
    primary, replica = (ServerAddress(host, 3306, "app", PasswordFile(path), "shop") for host in "pr")
    shard = Shard(primary=primary, replicas=(replica,), lineage="shop/-")
    (resolved,) = with_passwords(Keyspace(name="shop", flavor="mysql", shards=(shard,))).shards
    assert [each.password for each in (resolved.primary, *resolved.replicas)] == [SECRET, SECRET]


# -- certificates ----------------------------------------------------------------------------------------


def test_a_context_demands_a_certificate_for_the_host_and_trusts_only_the_named_authority(tmp_path: Path) -> None:
    files = Authority(tmp_path).certify()
    context = make_context(Tls(files.ca, files.cert, files.key))
    assert context.check_hostname
    assert context.verify_mode.name == "CERT_REQUIRED"
    assert len(context.get_ca_certs()) == 1
    assert make_context(Tls()).check_hostname


def test_files_that_are_no_certificates_are_named(tmp_path: Path) -> None:
    files, others = Authority(tmp_path / "a").certify(), Authority(tmp_path / "b").certify()
    with pytest.raises(ConfigError, match=f"tls_ca: {tmp_path}/none cannot be used: No such file"):
        make_context(Tls(tmp_path / "none"))
    with pytest.raises(ConfigError, match=f"tls_ca: {files.key} cannot be used: NO_CERT"):
        make_context(Tls(files.key))
    with pytest.raises(ConfigError, match=f"tls_cert and tls_key: {files.cert} cannot be used: KEY_VALUES_MISMATCH"):
        make_context(Tls(files.ca, files.cert, others.key))


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_pass_phrase(tmp_path: Path) -> None:
    files = Authority(tmp_path).certify()
    encrypted = tmp_path / "encrypted.pem"
    command = ["openssl", "pkcs8", "-topk8", "-in", str(files.key), "-out", str(encrypted)]
    subprocess.run([*command, "-passout", "pass:hunter2"], check=True, capture_output=True)
    with pytest.raises(ConfigError, match="tls_key is encrypted"):
        make_context(Tls(files.ca, files.cert, encrypted))


def test_only_failures_of_tls_are_described_as_such() -> None:
    assert describe_tls_failure(ConnectionResetError(104, "reset")) is None
    assert describe_tls_failure(None) is None
    assert describe_tls_failure(ssl.SSLEOFError(8, "it ended")) == "TLS failed: it ended"
