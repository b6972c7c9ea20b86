"""One shard becomes two by the verb ``invalidator reshard`` alone, while rows are written and read through the cache.

The test does what is the operator's: it moves the data, stops the writes, routes them and loads the file in readers.
Every change of the invalidators' file is the verb's. Before each step of the operator ``next`` is refused, and the
call that swaps is killed behind the writing of the file, and made again.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from freshness.config.config import load_config
from integration.harness import call_cli, wait_for_hits, wait_until
from integration.invalidator.test_reshard import (
    CUSTOMERS,
    SOME,
    Deployment,
    Reader,
    deployment,
    lineage_of,
    open_cache,
)
from integration.servers import Flavor
from integration.servers.program import CHECKOUT
from integration.shards import (
    Shard,
    catch_up,
    prepare_copied,
    prepare_replicated,
    promote,
    stop_writes,
    switch,
    writing,
)

OPERATOR_NEEDED = 4


class Verb:
    """``invalidator reshard`` between two files, as an operator runs it."""

    def __init__(self, made: Deployment, destinations: Sequence[Shard]) -> None:
        self.live = made.path
        self.previous = made.folder / "previous.toml"
        self.final = made.folder / "final.toml"
        shutil.copy(self.live, self.previous)
        # written over the invalidators' file, and put back: nobody loads it before a signal
        made.configure(destinations)
        self.live.replace(self.final)
        shutil.copy(self.previous, self.live)
        assert made.invalidator is not None
        self.reload = f"kill -HUP {made.invalidator.pid}"

    def arguments(self, action: str, *options: str) -> list[str]:
        files = str(self.previous), str(self.final), "--config", str(self.live)
        return ["reshard", action, *files, *options]

    def run(self, action: str, *options: str) -> subprocess.CompletedProcess[str]:
        return call_cli(*self.arguments(action, *options))

    def status(self) -> dict[str, Any]:
        done = self.run("status", "--json")
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def due(self) -> str:
        return next((each["step"] for each in self.status()["steps"] if each["state"] == "due"), "")

    def next(self, *options: str) -> None:
        done = self.run("next", "--reload", self.reload, *options)
        assert done.returncode == 0, done.stderr

    def assert_refused(self, step: str, *options: str) -> str:
        """The step is due and not this program's: nothing changes."""
        before = self.live.read_bytes()
        done = self.run("next", "--reload", self.reload, *options)
        assert done.returncode == OPERATOR_NEEDED, done.stdout + done.stderr
        assert f"'{step}' is the operator's" in done.stderr
        assert "→" in done.stderr
        assert self.live.read_bytes() == before
        assert self.due() == step
        return done.stderr

    def kill_behind_the_file(self) -> None:
        """`next` writes the file, and is killed before any invalidator has loaded it."""
        before = self.live.read_bytes()
        killed = subprocess.Popen(
            [sys.executable, "-m", "invalidator.cli", *self.arguments("next", "--reload", "sleep 600")],
            cwd=CHECKOUT,
            start_new_session=True,
        )
        try:
            wait_until(lambda: self.live.read_bytes() != before, "the file is written")
        finally:
            os.killpg(killed.pid, signal.SIGKILL)
            killed.wait()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("flavor", "keeps_gtids"),
    [
        pytest.param("mysql", True, id="mysql-replicated"),
        pytest.param("mysql", False, id="mysql-copied", marks=pytest.mark.long),
        pytest.param("mariadb", True, id="mariadb-replicated", marks=pytest.mark.long),
        pytest.param("mariadb", False, id="mariadb-copied"),
    ],
)
def test_one_shard_becomes_two_by_the_verb(flavor: Flavor, tmp_path: Path, keeps_gtids: bool) -> None:
    with deployment(flavor, tmp_path, ["-"]) as (made, router), writing(router) as writer:
        writer.wait_for(SOME)
        previous = router.shards
        old = Reader(made.path, writer)
        old.start()
        prepare = prepare_replicated if keeps_gtids else prepare_copied
        reshard = prepare(made.cluster, previous, ["-80", "80-"])
        if keeps_gtids:
            for shard in reshard.destinations:
                made.continues[shard.number] = tuple(map(lineage_of, reshard.sources_of(shard)))
        verb = Verb(made, reshard.destinations)
        planned = verb.run("plan")
        assert planned.returncode == 0, planned.stderr
        assert verb.due() == "follow"
        verb.next()
        writer.wait_for(SOME)
        old.wait_hit()
        assert "is writable" in verb.assert_refused("close", "--done")
        with writer.paused():  # a write waits for its shard no longer than a wait of a test
            stop_writes(reshard)
            if keeps_gtids:
                assert "still follows" in verb.assert_refused("promote", "--done")
            else:
                verb.assert_refused("compare")
            catch_up(reshard)
            promote(reshard)
            verb.kill_behind_the_file() if keeps_gtids else verb.next("--done")
            if keeps_gtids:
                assert verb.due() == "swap", "no invalidator has loaded it"
                verb.next()
            verb.assert_refused("switch")
            switch(reshard, router)
        young = Reader(verb.final, writer)
        young.start()
        writer.wait_for(SOME)
        verb.next("--done")
        made.config = load_config(verb.live)
        assert verb.live.read_bytes() == verb.final.read_bytes()
        writer.wait_for(SOME)
        assert verb.due() == "stop", "the old reader's cache is still open"
        old.stop()
        young.stop()
        servers = [server for shard in previous for server in shard.servers]
        # A server still shows the session of the look before for a moment
        wait_until(
            lambda: verb.run("next", "--reload", verb.reload).returncode == 0,
            "nobody is left on the sources",
            lambda: str([server.execute("SHOW FULL PROCESSLIST") for server in servers]),
        )
        assert verb.due() == ""
        made.cluster.stop(previous)
        with writer.paused():
            made.assert_none_stale(router.shards, writer)
        writer.stop()
        cache = open_cache(made.path)
        try:
            for name in ("customer", "profile"):
                wait_for_hits(cache, name, CUSTOMERS, made.describe)
        finally:
            cache.close()
        assert made.assert_none_stale(router.shards, writer) > 0
