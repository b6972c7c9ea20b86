"""Values of several items, and compressed ones, on real nodes: by threads and by tasks, on memcached and on Redis."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final, cast

import pytest

from appclient import Cache, ReadOutcome
from freshness.algorithm.envelope import Filled
from freshness.algorithm.parts import Manifest
from freshness.algorithm.request import Delete, Get, Item, Reply, Request
from freshness.errors import FormatError
from freshness.nodes.open import open_node
from freshness.values.compression import PACKED, unpack
from integration.appclient.tasks import LoopCache, loop_cache
from integration.harness import System, call_cli, running_system, wait_for_hits, wait_for_outcome
from integration.servers import Memcached, Pair
from integration.servers.redis import Redis

NOTES_TABLE: Final = "CREATE TABLE notes (id INT PRIMARY KEY, body LONGTEXT)"
LOGS_TABLE: Final = "CREATE TABLE logs (id INT PRIMARY KEY, body LONGTEXT)"
OBJECTS: Final = '[objects.note]\ntable = "notes"\n' + '[objects.log]\ntable = "logs"\nfill_from_log = true\n'
VALUE_BYTES_MAX: Final = 5_000_000
COMPRESS_ABOVE_BYTES: Final = 1000
NOISE: Final = Random(1).randbytes(1_700_000).hex()
"""3.4 million characters, which zstd makes half as long: still more than an item holds."""


@pytest.fixture(scope="module", params=["memcached", "redis"])
def system(
    request: pytest.FixtureRequest, mariadb_pair: Pair, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[System]:
    mariadb_pair.primary.execute("DROP DATABASE IF EXISTS shop")
    mariadb_pair.primary.execute("CREATE DATABASE shop")
    nodes: list[Any] = [Memcached(memory_mb=256) if request.param == "memcached" else Redis() for _ in "12"]
    settings = {
        "backend": request.param,
        "value_bytes_max": VALUE_BYTES_MAX,
        "compress_above_bytes": COMPRESS_ABOVE_BYTES,
    }
    with running_system(
        mariadb_pair,
        tmp_path_factory.mktemp(request.param),
        nodes=cast("list[Memcached]", nodes),
        tables=(NOTES_TABLE, LOGS_TABLE),
        objects=OBJECTS,
        cache=settings,
    ) as running:
        yield running


@pytest.fixture(params=["threads", "tasks"])
def cache(request: pytest.FixtureRequest, system: System) -> Iterator[Cache | LoopCache]:
    if request.param == "tasks":
        with loop_cache(system.config_path) as on_loop:
            yield on_loop
        return
    opened = system.open_cache()
    yield opened
    opened.close()


def perform(system: System, address: str, *requests: Request) -> list[Reply]:
    node = open_node(system.config.cache.access, address)
    try:
        return node.perform(requests)
    finally:
        node.close()


def entry_of(system: System, name: str, key: int) -> Filled:
    subject = system.subject(name, key)
    (item,) = perform(system, subject.node, Get(subject.item))
    assert isinstance(item, Item)
    return Filled.decode(item.value)


def manifest_of(system: System, key: int) -> Manifest:
    entry = entry_of(system, "note", key)
    assert entry.is_parted
    assert entry.value is not None
    return Manifest.decode(entry.value)


def write(system: System, table: str, key: int, body: str) -> None:
    system.execute(f"REPLACE INTO {table} VALUES (%s, %s)", key, body)
    system.settle()


def test_a_large_value_is_a_hit_and_is_invalidated(system: System, cache: Any) -> None:
    write(system, "notes", 1, NOISE)
    wait_for_hits(cache, "note", [1], system.describe)
    assert cache.get("note", 1) == {"id": 1, "body": NOISE}
    assert manifest_of(system, 1).count == 2
    changed = NOISE[::-1]
    write(system, "notes", 1, changed)
    assert cache.get("note", 1)["body"] == changed
    wait_for_hits(cache, "note", [1], system.describe)
    assert cache.get("note", 1)["body"] == changed
    write(system, "notes", 1, "small")
    wait_for_hits(cache, "note", [1], system.describe)
    assert cache.get("note", 1)["body"] == "small"
    assert not entry_of(system, "note", 1).is_parted


def test_many_keys_large_and_small(system: System, cache: Any) -> None:
    bodies = {key: f"{key} {NOISE}" if key % 2 else f"{key}" for key in range(10, 16)}
    for key, body in bodies.items():
        write(system, "notes", key, body)
    wait_for_hits(cache, "note", list(bodies), system.describe)
    found = cache.get_many("note", [*bodies, 99], explain=True)
    assert {key: found[key].value["body"] for key in bodies} == bodies
    assert {found[key].outcome for key in bodies} == {ReadOutcome.HIT}


@pytest.mark.parametrize("lost", [0, 1])
def test_a_part_that_is_gone_is_no_hit(system: System, cache: Any, lost: int) -> None:
    write(system, "notes", 2, NOISE)
    wait_for_hits(cache, "note", [2], system.describe)
    subject, manifest = system.subject("note", 2), manifest_of(system, 2)
    perform(system, subject.node, Delete(manifest.keys(system.namespace)[lost]))
    first = cache.get("note", 2, explain=True)
    assert first.outcome in (ReadOutcome.FILLED, ReadOutcome.PARTS)
    assert first.value["body"] == NOISE
    wait_for_hits(cache, "note", [2], system.describe)
    assert cache.get_many("note", [2])[2]["body"] == NOISE


def test_above_the_maximum_nothing_is_stored(system: System, cache: Any) -> None:
    body = Random(2).randbytes(VALUE_BYTES_MAX + 100_000).hex()
    write(system, "notes", 3, body)
    wait_for_outcome(cache, "note", 3, [ReadOutcome.TOO_LARGE], system.describe)
    assert cache.get("note", 3)["body"] == body
    subject = system.subject("note", 3)
    (item,) = perform(system, subject.node, Get(subject.item))
    assert not isinstance(item, Item)


def test_a_row_document_is_compressed(system: System, cache: Any) -> None:
    body = "a line of text that comes again and again; " * 400
    write(system, "notes", 4, body)
    wait_for_hits(cache, "note", [4], system.describe)
    payload = entry_of(system, "note", 4).value
    assert payload is not None
    assert payload[:1] == PACKED
    assert len(payload) < len(unpack(payload)) / 10
    assert cache.get("note", 4)["body"] == body


def test_rows_from_the_log_are_compressed_and_never_in_parts(system: System, cache: Any) -> None:
    """The entry of a row that has become large is removed; one that fits again is replaced by what the log has."""
    body = "a line of text that comes again and again; " * 400
    write(system, "logs", 5, "small")
    wait_for_hits(cache, "log", [5], system.describe)
    write(system, "logs", 5, body)
    payload = entry_of(system, "log", 5).value
    assert payload is not None
    assert payload[:1] == PACKED
    assert cache.get("log", 5, explain=True).outcome is ReadOutcome.HIT
    write(system, "logs", 5, NOISE)
    read = cache.get("log", 5, explain=True)
    assert (read.outcome is ReadOutcome.HIT, read.value["body"]) == (False, NOISE)
    wait_for_hits(cache, "log", [5], system.describe)
    assert entry_of(system, "log", 5).is_parted
    write(system, "logs", 5, body)
    again = cache.get("log", 5, explain=True)
    assert (again.outcome, again.value["body"]) == (ReadOutcome.HIT, body)


def test_processes_with_other_settings_read_each_others_values(system: System, tmp_path: Path) -> None:
    """One stores in parts of 1 MB and compressed, the other one in parts of 200 kB and plain."""
    text = system.config_path.read_text()
    other = tmp_path / "freshness.toml"
    other.write_text(
        text.replace(f"compress_above_bytes = {COMPRESS_ABOVE_BYTES}", "part_bytes = 200_000").replace(
            f"value_bytes_max = {VALUE_BYTES_MAX}", "value_bytes_max = 10_000_000"
        )
    )
    caches = [Cache.open(system.config_path), Cache.open(other)]
    for writer, reader in (caches, caches[::-1]):
        bodies = {20: NOISE, 21: "again and again " * 200, 22: "small"}
        for key, body in bodies.items():
            write(system, "notes", key, body)
        wait_for_hits(writer, "note", list(bodies), system.describe)
        for key, body in bodies.items():
            read = reader.get("note", key, explain=True)
            assert (read.outcome, read.value["body"]) == (ReadOutcome.HIT, body)
    for each in caches:
        each.close()


def test_a_process_without_zstandard_reads_the_database(
    system: System, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    body = "again and again " * 200
    write(system, "notes", 30, body)
    cache = system.open_cache()
    wait_for_hits(cache, "note", [30], system.describe)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with caplog.at_level(logging.WARNING):
        read = cache.get("note", 30, explain=True)
    assert (read.outcome, read.value["body"]) == (ReadOutcome.FOREIGN, body)
    assert cache.get_many("note", [30])[30]["body"] == body
    with pytest.raises(FormatError):
        unpack(entry_of(system, "note", 30).value or b"")
    monkeypatch.undo()
    assert cache.get("note", 30, explain=True).outcome is ReadOutcome.HIT, "the entry was left alone"
    cache.close()


def test_without_zstandard_an_application_that_compresses_does_not_start(system: System) -> None:
    code = (
        "import sys; sys.modules['zstandard'] = None; from appclient import Cache\n"
        "try: Cache.open(sys.argv[1])\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(system.config_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == (
        "ConfigError cache.compress_above_bytes is set, and the Python package zstandard is not installed "
        "(pip install 'freshness[compression]')\n"
    )


def test_inspect_shows_a_value_in_parts(system: System) -> None:
    write(system, "notes", 40, NOISE)
    cache = system.open_cache()
    wait_for_hits(cache, "note", [40], system.describe)
    cache.close()
    shown = call_cli("inspect", "--config", system.config_path, "--json", "note", "40")
    assert shown.returncode == 0, shown.stderr
    assert '"entry": "live"' in shown.stdout
    assert '"equals_primary": true' in shown.stdout
    subject, manifest = system.subject("note", 40), manifest_of(system, 40)
    perform(system, subject.node, Delete(manifest.keys(system.namespace)[0]))
    shown = call_cli("inspect", "--config", system.config_path, "--json", "note", "40")
    assert '"entry": "parts"' in shown.stdout
    assert "parts of a value of" in shown.stdout
