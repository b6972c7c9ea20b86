"""Provisioning reads apt's own sources, installs nothing twice and never writes to standard output."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest

from integration import provision
from integration.provision import AptSource, ProvisionFailed, find_distribution_source, parse_apt_sources

ONE_LINE = """\
# deb http://commented.example/debian bookworm main
deb http://mirror.example/debian-security bookworm-security main
deb-src http://mirror.example/debian bookworm main
deb [arch=amd64 signed-by=/usr/share/keyrings/k.gpg] http://mirror.example/debian/ bookworm main contrib
"""
STANZAS = """\
Types: deb
# a comment inside a stanza
URIs: http://mirror.example/debian http://second.example/debian
Suites: bookworm
 bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian.gpg

Types: deb-src
URIs: http://sources.example/debian
Suites: bookworm

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: bookworm

Types: deb
URIs: http://inline.example/tool
Suites: stable
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
"""


def test_one_line_sources() -> None:
    assert parse_apt_sources({"sources.list": ONE_LINE}) == [
        AptSource("http://mirror.example/debian-security", ("bookworm-security",), ""),
        AptSource("http://mirror.example/debian/", ("bookworm",), "/usr/share/keyrings/k.gpg"),
    ]


def test_stanza_sources() -> None:
    suites = ("bookworm", "bookworm-updates")
    assert parse_apt_sources({"debian.sources": STANZAS}) == [
        AptSource("http://mirror.example/debian", suites, "/usr/share/keyrings/debian.gpg"),
        AptSource("http://second.example/debian", suites, "/usr/share/keyrings/debian.gpg"),
        AptSource("http://inline.example/tool", ("stable",), ""),
    ]


def test_the_main_archive_is_chosen_not_its_updates_nor_a_third_party() -> None:
    sources = parse_apt_sources({"other.sources": STANZAS.replace("debian\n", "tool\n"), "sources.list": ONE_LINE})
    chosen = find_distribution_source(sources, "debian", "bookworm")
    assert chosen is not None
    assert chosen.uri == "http://mirror.example/debian"
    assert find_distribution_source(sources, "debian", "trixie") is None
    assert find_distribution_source(sources, "ubuntu", "bookworm") is None


def test_what_is_there_is_not_installed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[list[str]] = []
    monkeypatch.setattr(provision, "install_packages", lambda packages, why: installed.append(list(packages)))
    monkeypatch.setattr(provision, "find_program", lambda name: f"/usr/sbin/{name}")
    provision.provision_databases()
    assert installed == []
    monkeypatch.setattr(provision, "find_program", lambda name: None if name == "memcached" else name)
    provision.provision_databases()
    assert installed == [["memcached"]]
    monkeypatch.setattr(provision, "find_program", lambda name: None)
    provision.provision_databases("mariadbd")
    assert installed[1:] == [["mariadb-server"]], "the demo needs no Redis"


def test_steps_that_fail_are_all_reported_with_the_first_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fail(text: str, code: int) -> None:
        raise ProvisionFailed(text, code)

    monkeypatch.setenv("FRESHNESS_CACHE", str(tmp_path))
    steps = {"one": partial(fail, "no first", 3), "two": partial(fail, "no second", 4), "three": lambda: None}
    monkeypatch.setattr(provision, "STEPS", steps)
    assert provision.main(["three", "one", "two"]) == 3
    output = capsys.readouterr().err
    assert "error: no first" in output
    assert "error: no second" in output


def test_the_browser_and_its_driver_are_two_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[list[str]] = []
    monkeypatch.setattr(provision, "install_packages", lambda packages, why: installed.append(list(packages)))
    monkeypatch.setattr(provision, "find_program", lambda name: name if name == "chromium" else None)
    provision.provision_browser()
    assert installed == [["chromium-driver"]]
    assert "browser" not in provision.ALL, "slow tests alone need it"


def test_a_driver_is_compiled_with_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[list[str]] = []
    monkeypatch.setattr(provision, "install_packages", lambda packages, why: installed.append(list(packages)))
    provision.provision_compiler(Path(sys.executable))
    assert installed == [], "this environment has been made with it"
    monkeypatch.setattr(provision, "find_program", lambda name: None)
    provision.provision_compiler(Path(sys.executable))
    assert installed == [["gcc", "libc6-dev", "pkg-config", "libmariadb-dev"]]


def test_without_root_the_command_to_run_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("FRESHNESS_CACHE", str(tmp_path))
    monkeypatch.setattr(provision, "find_root_prefix", lambda: None)
    monkeypatch.setattr(provision, "find_program", lambda name: None)
    assert provision.main(["databases"]) == 4
    output = capsys.readouterr()
    assert "sudo apt-get install --no-install-recommends mariadb-server memcached redis-server haproxy" in output.err
    assert output.out == ""


def test_mysql_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FRESHNESS_CACHE", str(tmp_path))
    with pytest.raises(ProvisionFailed, match="not provisioned"):
        provision.find_mysql()


def test_newer_servers_that_are_not_there_are_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FRESHNESS_CACHE", str(tmp_path))
    with pytest.raises(ProvisionFailed, match="newer servers are not provisioned"):
        provision.find_newer()
    assert "newer" not in provision.ALL, "`make test` needs none of them"


@pytest.mark.parametrize("arguments", [[], ["postgres"], ["venv", "all"]])
def test_a_step_that_does_not_exist_is_a_usage_error(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert provision.main(arguments) == 2
    assert "usage:" in capsys.readouterr().err
