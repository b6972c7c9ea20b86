"""The nodes of a file, and those that a DNS server of the test answers with."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import dns.exception
import dns.flags
import dns.message
import dns.rcode
import dns.resolver
import dns.rrset
import pytest

from freshness.config.config import Config, load_config
from freshness.errors import ConfigError, FreshnessError, NodeUnavailable
from invalidator.process.checkup import Checkup
from invalidator.process.discovery import compare_nodes
from invalidator.rules.rule import Rule

NAME = "_memcached._tcp.cache.example."
Answer = Callable[[dns.message.Message], None]


def load(folder: Path, source: str, *nodes: str) -> Config:
    (folder / "freshness.toml").write_text(
        f"""[cache]
nodes = {list(nodes or ["a:1"])}
nodes_from = "{source}"
namespace = "shop"
backend = "memory"
[keyspaces.shop]
flavor = "mysql"
[[keyspaces.shop.shards]]
primary = "mysql://app@127.0.0.1:1/shop"
"""
    )
    return load_config(folder / "freshness.toml", {})


def compare(folder: Path, text: str, *nodes: str) -> tuple[list[str], list[str]]:
    (folder / "nodes").write_text(text)
    return compare_nodes(load(folder, "file:nodes", *nodes))


# -- a file ------------------------------------------------------------------------------------------------------


def test_the_lines_of_a_file(tmp_path: Path) -> None:
    text = "# of the cellar\n\n  B:1 \r\n[::1]:2  # new\nA:1\n"
    assert compare(tmp_path, text, "c:1", "a:1") == (["b:1", "[::1]:2"], ["c:1"])
    assert compare(tmp_path, "b:1\na:1", "A:1", "b:1") == ([], []), "neither order nor capitals matter"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "file:nodes names no node"),
        ("# a:1\n", "file:nodes names no node"),
        ("a:1\na:1\n", "file:nodes names a:1 twice"),
        ("a:1\nb:1\nB:1\n", "file:nodes names b:1 twice"),
        ("a:1\nb\n", "file:nodes names 'b': no port"),
        ("a:1 b:1\n", "file:nodes names 'a:1 b:1': more than one colon"),
        ("a:1\nb:0\n", "file:nodes names 'b:0': port 0 is not"),
        ('nodes = ["a:1"]\n', "the host is empty or holds a character"),
    ],
)
def test_a_file_that_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        compare(tmp_path, text)
    assert message in raised.value.message


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    config = load(tmp_path, "file:nodes")
    with pytest.raises(ConfigError, match=r"No such file.*/nodes"):
        compare_nodes(config)
    (tmp_path / "nodes").write_bytes(b"\xff:1")
    with pytest.raises(ConfigError, match="can't decode"):
        compare_nodes(config)


# -- SRV records -------------------------------------------------------------------------------------------------


class DnsServer:
    """It answers each question over UDP as ``answer`` fills it in, and does not answer if that is None."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answer: Answer | None = None
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        resolver = dns.resolver.Resolver(configure=False)
        resolver.nameservers, resolver.port = ["127.0.0.1"], self._socket.getsockname()[1]
        resolver.lifetime = 0.5
        monkeypatch.setattr(dns.resolver, "default_resolver", resolver)

    def _serve(self) -> None:
        while True:
            asked, place = self._socket.recvfrom(4096)
            if not asked:
                return
            question = dns.message.from_wire(asked)
            if self.answer is not None and question.question[0].name.to_text() == NAME:
                response = dns.message.make_response(question)
                self.answer(response)
                self._socket.sendto(response.to_wire(), place)

    def close(self) -> None:
        self._socket.sendto(b"", self._socket.getsockname())
        self._thread.join()
        self._socket.close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[DnsServer]:
    server = DnsServer(monkeypatch)
    yield server
    server.close()


def records(*places: str) -> Answer:
    def answer(response: dns.message.Message) -> None:
        response.answer.append(dns.rrset.from_text(NAME, 30, "IN", "SRV", *places))

    return answer


def failing(code: dns.rcode.Rcode) -> Answer:
    return lambda response: response.set_rcode(code)


def truncated(response: dns.message.Message) -> None:
    records("0 0 1 a.")(response)
    response.flags |= dns.flags.TC


SOURCE = f"srv:{NAME[:-1]}"


def test_the_records_of_a_name(tmp_path: Path, server: DnsServer) -> None:
    server.answer = records("0 5 11211 Cache-1.example.", "1 0 11212 cache-0.example.", "0 5 1 a.")
    config = load(tmp_path, SOURCE, "a:1", "c:1")
    added, missing = compare_nodes(config)
    assert (sorted(added), missing) == (["cache-0.example:11212", "cache-1.example:11211"], ["c:1"])


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (failing(dns.rcode.NXDOMAIN), ConfigError, "does not exist"),
        (lambda _: None, ConfigError, "does not contain an answer"),
        (failing(dns.rcode.SERVFAIL), NodeUnavailable, "SERVFAIL"),
        (truncated, NodeUnavailable, "DNS|resolution lifetime|nameservers"),
        (None, NodeUnavailable, "lifetime expired"),
        (records("0 0 1 a.", "1 0 1 a."), ConfigError, "names a:1 twice"),
        (records("0 0 1 ."), ConfigError, "the host is empty"),
        (records("0 0 0 a."), ConfigError, "port 0 is not"),
    ],
)
def test_an_answer_that_is_refused(
    tmp_path: Path, server: DnsServer, answer: Answer | None, kind: type[FreshnessError], message: str
) -> None:
    server.answer = answer
    with pytest.raises(kind, match=message) as raised:
        compare_nodes(load(tmp_path, SOURCE))
    assert SOURCE in raised.value.message


def test_without_the_package_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] == "dns"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(ConfigError) as raised:
        compare_nodes(load(tmp_path, SOURCE))
    assert raised.value.hint == "pip install 'freshness[srv]'"


# -- what `check` says -------------------------------------------------------------------------------------------


def test_check_compares_the_list_with_its_source(tmp_path: Path) -> None:
    def find(text: str) -> list[tuple[str, str]]:
        (tmp_path / "nodes").write_text(text)
        checkup = Checkup(load(tmp_path, "file:nodes", "a:1", "c:1"))
        checkup.run()
        return [(each.message, each.hint) for each in checkup.findings if each.rule is Rule.NODES_FROM]

    assert find("c:1\na:1") == []
    assert find("b:1\na:1") == [
        ("file:nodes names b:1, which cache.nodes lacks", "`invalidator nodes discover`"),
        ("file:nodes does not name c:1 of cache.nodes", "if it is to go: `invalidator nodes remove c:1`"),
    ]
    assert find("") == [("file:nodes names no node", "nothing is changed; see what writes it")]
