"""The invalidator as a process: which workers run, what a new configuration changes, and when it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from freshness.config.config import Config, load_config
from freshness.errors import ConfigError, FreshnessError, SourceUnavailable, SourceUnsuitable, StreamStopped
from invalidator.process import app
from invalidator.process.app import Invalidator
from invalidator.process.supervisor import Supervisor
from invalidator.process.worker import ShardWorker
from invalidator.replica.promotion import PrimaryMoved

HEAD = """
[cache]
nodes = ["127.0.0.1:11211"]
namespace = "shop"
[keyspaces.shop]
flavor = "mysql"
sharding = { column = "id", function = "hash" }
"""
WAIT_SECONDS = 60.0


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def shards(*names: str, ports: int = 3306) -> str:
    return "".join(
        f'[[keyspaces.shop.shards]]\nname = "{name}"\nprimary = "mysql://a@127.0.0.1:{ports + place}/shop"\n'
        for place, name in enumerate(names)
    )


class Scene:
    """Workers that only wait to be stopped, or fail on request."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "freshness.toml"
        self.started: list[str] = []
        self.failures: dict[str, FreshnessError] = {}
        self.errors: list[BaseException] = []

    def config(self, text: str) -> Config:
        self.path.write_text(text)
        return load_config(self.path, {})

    def run_worker(self, worker: ShardWorker) -> None:
        name = worker.assignment.shard.name
        self.started.append(name)
        while not worker._is_stopping:
            if name in self.failures:
                raise self.failures.pop(name)
            time.sleep(0.005)

    def start(self, invalidator: Invalidator) -> threading.Thread:
        def run() -> None:
            try:
                invalidator.run()
            except FreshnessError as error:
                self.errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    made = Scene(tmp_path)
    monkeypatch.setattr(ShardWorker, "_follow", lambda worker: made.run_worker(worker))
    monkeypatch.setattr(app, "load_registry", lambda *_: {})
    monkeypatch.setattr(app, "RESTART_SECONDS", 0.05)
    monkeypatch.setattr(app, "WATCH_SECONDS", 0.01)
    return made


def test_a_worker_for_each_shard_until_the_end(scene: Scene) -> None:
    invalidator = Invalidator(scene.config(HEAD + shards("-80", "80-")))
    thread = scene.start(invalidator)
    wait_until(lambda: len(scene.started) == 2)
    assert sorted(scene.started) == ["-80", "80-"]
    invalidator.stop()
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive()
    assert scene.errors == []


def test_what_the_recorder_of_the_history_drops_is_counted(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "open_recorder", lambda _, on_drop: on_drop(3))
    invalidator = Invalidator(scene.config(HEAD + shards("-")))
    thread = scene.start(invalidator)
    wait_until(lambda: bool(scene.started))
    invalidator.stop()
    thread.join(WAIT_SECONDS)
    assert invalidator.metrics.registry.get_sample_value("freshness_history_dropped_total") == 3


def test_workers_that_hang_are_waited_for_together(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """One bound covers all workers, however many: a supervisor that stops the process gives it limited time."""
    invalidator = Invalidator(scene.config(HEAD + shards("-80", "80-")))
    now, waited = 0.0, []

    def join(seconds: float) -> None:
        nonlocal now
        now += seconds
        waited.append(seconds)

    shard = SimpleNamespace(shard=SimpleNamespace(lineage="shop/-"))
    worker = SimpleNamespace(stop=lambda: None, has_repeated=False, assignment=shard)
    hung = cast(Any, SimpleNamespace(worker=worker, thread=SimpleNamespace(join=join)))
    invalidator._running = dict.fromkeys(("first", "second", "third"), hung)
    monkeypatch.setattr(app, "running_clock", lambda: now)
    invalidator._stop(list(invalidator._running))
    assert waited == [app.WORKER_STOP_SECONDS, 0.0, 0.0]


class Notes(Supervisor):
    """Keeps what is sent to a supervisor."""

    def __init__(self) -> None:
        super().__init__({"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "1"})
        self.sent: list[str] = []

    def _send(self, *states: str) -> None:
        self.sent.append(states[0])


def test_a_supervisor_hears_of_the_life_and_of_loops_that_take_steps(scene: Scene) -> None:
    notes = Notes()
    invalidator = Invalidator(scene.config(HEAD + shards("-80", "80-")), supervisor=notes)
    thread = scene.start(invalidator)
    wait_until(lambda: bool(notes.sent))
    assert notes.sent[0] == "WATCHDOG=1", "while the configuration is loaded"
    wait_until(lambda: notes.sent.count("WATCHDOG=1") > 1)  # no loop has begun
    told = [each for each in notes.sent if each != "WATCHDOG=1"]
    assert told[:2] == ["READY=1", "STATUS=shop/-80 connecting, shop/80- connecting"]
    stuck, working = invalidator.workers
    stuck.steps = 1
    wait_until(lambda: notes._steps.get("shop/-80") == 1)
    before = notes.sent.count("WATCHDOG=1")
    for step in range(1, 100):
        working.steps = step
        time.sleep(0.001)
    assert notes.sent.count("WATCHDOG=1") == before
    stuck.steps = 2
    wait_until(lambda: notes.sent.count("WATCHDOG=1") > before)
    invalidator.reload(scene.config("topology = 2\n" + HEAD + shards("-80", "80-")))
    notes.reload()
    wait_until(lambda: notes.sent.count("READY=1") == 2)
    assert invalidator.config.topology == 2
    invalidator.stop()
    thread.join(WAIT_SECONDS)
    assert notes.sent[-1] == "STOPPING=1"


def test_only_the_shards_that_it_is_given(scene: Scene) -> None:
    config = scene.config(HEAD + shards("-80", "80-"))
    invalidator = Invalidator(config, shards=["80-"])
    thread = scene.start(invalidator)
    wait_until(lambda: bool(scene.started))
    invalidator.stop()
    thread.join(WAIT_SECONDS)
    assert scene.started == ["80-"]
    with pytest.raises(ConfigError, match="there is no shard '40-80'"):
        Invalidator(config, shards=["40-80"]).run()


def test_only_the_nodes_that_it_is_given(scene: Scene) -> None:
    config = scene.config(HEAD.replace('"]', '", "127.0.0.1:11212"]') + shards("-"))
    invalidator = Invalidator(config, nodes=["127.0.0.1:11212"])
    thread = scene.start(invalidator)
    wait_until(lambda: bool(scene.started))
    (worker,) = invalidator.workers
    assert worker.assignment.nodes == ("127.0.0.1:11212",)
    assert worker.assignment.cache.nodes == config.cache.nodes, "all of them make the ring"
    invalidator.stop()
    thread.join(WAIT_SECONDS)
    with pytest.raises(ConfigError, match="there is no cache node 'n9'"):
        Invalidator(config, nodes=["n9"]).run()


def test_a_new_configuration_exchanges_what_it_concerns_and_nothing_else(scene: Scene) -> None:
    invalidator = Invalidator(scene.config(HEAD + shards("-80", "80-")))
    thread = scene.start(invalidator)
    wait_until(lambda: len(scene.started) == 2)
    kept = {each.assignment.shard.name: each for each in invalidator.workers}["-80"]
    invalidator.reload(scene.config(HEAD + shards("-80") + shards("80-c0", "c0-", ports=4000)))
    wait_until(lambda: len(scene.started) == 4)
    now = {each.assignment.shard.name: each for each in invalidator.workers}
    assert now.keys() == {"-80", "80-c0", "c0-"}
    assert now["-80"] is kept
    invalidator.stop()
    thread.join(WAIT_SECONDS)
    assert sorted(scene.started) == ["-80", "80-", "80-c0", "c0-"]


def test_what_was_sent_again_is_not_sent_again_by_the_next_worker(scene: Scene) -> None:
    invalidator = Invalidator(scene.config(HEAD + shards("-80", "80-")), since_us=5)
    thread = scene.start(invalidator)
    wait_until(lambda: len(scene.started) == 2)
    workers = {each.assignment.shard.name: each for each in invalidator.workers}
    assert [each.since_us for each in workers.values()] == [5, 5]
    workers["-80"].invalidator = cast(Any, SimpleNamespace(since="there", unrepeated=set()))
    workers["80-"].invalidator = cast(Any, SimpleNamespace(since="there", unrepeated={"n1"}))
    invalidator.reload(scene.config(HEAD + shards("-80", "80-", ports=4000)))
    wait_until(lambda: len(scene.started) == 4)
    assert {each.assignment.shard.name: each.since_us for each in invalidator.workers} == {"-80": None, "80-": 5}
    invalidator.stop()
    thread.join(WAIT_SECONDS)


def test_a_shard_that_serves_no_more_gets_another_worker(scene: Scene) -> None:
    text = HEAD + shards("-80", "80-")
    invalidator = Invalidator(scene.config(text))
    thread = scene.start(invalidator)
    wait_until(lambda: len(scene.started) == 2)
    closing = text + '[[keyspaces.shop.shards]]\nname = "-"\nserving = false\nprimary = "mysql://a@h/shop"\n'
    invalidator.reload(scene.config(closing))
    wait_until(lambda: len(scene.started) == 3)
    invalidator.reload(scene.config(closing.replace("serving = false", 'serving = false\nlineage = "other"')))
    wait_until(lambda: len(scene.started) == 4)
    invalidator.stop()
    thread.join(WAIT_SECONDS)


def test_one_shard_that_stops_leaves_the_others_running(scene: Scene) -> None:
    invalidator = Invalidator(scene.config(HEAD + shards("-80", "80-")))
    thread = scene.start(invalidator)
    wait_until(lambda: len(scene.started) == 2)
    scene.failures["-80"] = StreamStopped("event 99 cannot be handled")
    failed = invalidator.metrics.shard_failed.labels("shop/-80")
    wait_until(lambda: failed._value.get() == 1)
    assert thread.is_alive()
    assert {each.last_error for each in invalidator.workers} == {"", "event 99 cannot be handled"}
    scene.failures["80-"] = StreamStopped("event 98 cannot be handled")
    thread.join(WAIT_SECONDS)
    assert len(scene.errors) == 1
    assert isinstance(scene.errors[0], StreamStopped)


def test_a_primary_that_is_down_at_the_start_is_tried_again_beside_others(scene: Scene) -> None:
    scene.failures["-80"] = SourceUnavailable("127.0.0.1:3306: connecting: refused")
    invalidator = Invalidator(scene.config(HEAD + shards("-80", "80-")))
    thread = scene.start(invalidator)
    wait_until(lambda: scene.started.count("-80") == 2)
    invalidator.stop()
    thread.join(WAIT_SECONDS)
    assert scene.errors == []


OTHER = """
[keyspaces.other]
flavor = "mysql"
[[keyspaces.other.shards]]
primary = "mysql://a@127.0.0.1:9/other"
"""


class Databases:
    """Stands for `load_registry`: the keyspaces in ``down`` do not answer."""

    def __init__(self, *down: str) -> None:
        self.down = set(down)
        self.asked: list[str] = []
        self.error: FreshnessError = SourceUnavailable("127.0.0.1:9: connecting: refused")

    def load(self, _: Config, keyspaces: list[str], *__: object) -> dict[str, object]:
        self.asked += keyspaces
        if self.down & set(keyspaces):
            raise self.error
        return {}


@pytest.fixture
def databases(monkeypatch: pytest.MonkeyPatch) -> Databases:
    made = Databases("other")
    monkeypatch.setattr(app, "load_registry", made.load)
    return made


def test_a_database_that_is_down_at_the_start_keeps_no_other_keyspace_waiting(
    scene: Scene, databases: Databases
) -> None:
    invalidator = Invalidator(scene.config(HEAD + shards("-80", "80-") + OTHER))
    thread = scene.start(invalidator)
    wait_until(lambda: databases.asked.count("other") > 3)
    assert sorted(scene.started) == ["-80", "80-"]
    waiting = {each.assignment.shard.lineage: each for each in invalidator.workers}["other/-"]
    assert "refused" in waiting.last_error
    assert waiting.metrics.shard_waiting._value.get() == 1
    assert invalidator.metrics.shard_failed.labels("other/-")._value.get() == 0
    databases.down.clear()
    wait_until(lambda: len(scene.started) == 3)
    assert {each.assignment.registry is None for each in invalidator.workers} == {False}
    invalidator.stop()
    thread.join(WAIT_SECONDS)
    assert scene.errors == []


def test_a_process_waits_where_no_database_is_there(scene: Scene, databases: Databases) -> None:
    invalidator = Invalidator(scene.config(HEAD[: HEAD.index("[keyspaces")] + OTHER))
    thread = scene.start(invalidator)
    wait_until(lambda: databases.asked.count("other") > 3)
    assert thread.is_alive()
    databases.down.clear()
    wait_until(lambda: len(scene.started) == 1)
    invalidator.stop()
    thread.join(WAIT_SECONDS)
    assert scene.errors == []


def test_a_database_that_refuses_leaves_the_others_running_and_ends_the_last(
    scene: Scene, databases: Databases
) -> None:
    databases.error = SourceUnsuitable("127.0.0.1:9: connecting: Access denied")
    invalidator = Invalidator(scene.config(HEAD + shards("-80", "80-") + OTHER))
    thread = scene.start(invalidator)
    failed = invalidator.metrics.shard_failed.labels("other/-")
    wait_until(lambda: failed._value.get() == 1 and len(scene.started) == 2)
    scene.failures |= {"-80": StreamStopped("event 99"), "80-": StreamStopped("event 98")}
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive()
    assert len(scene.errors) == 1


def test_the_pause_before_a_restart_grows(
    scene: Scene, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "RESTART_MAX_SECONDS", 0.15)
    invalidator = Invalidator(scene.config(HEAD + shards("-") + OTHER))
    thread = scene.start(invalidator)
    pauses: list[float] = []

    def is_longest() -> bool:
        pauses.append(invalidator._running["other/-"].pause_seconds)
        return pauses[-1] == 0.15

    wait_until(lambda: "other/-" in invalidator._running)
    wait_until(is_longest)
    assert set(pauses) <= {0.05, 0.1, 0.15}
    invalidator.stop()
    thread.join(WAIT_SECONDS)


def test_errant_transactions_are_remembered_over_a_restart(scene: Scene, databases: Databases) -> None:
    """Else the worker that follows adopts the server that the previous one refused (F53)."""
    invalidator = Invalidator(scene.config(HEAD + shards("-") + OTHER))
    thread = scene.start(invalidator)
    wait_until(lambda: "other/-" in invalidator._running)
    previous = invalidator._running["other/-"].worker
    previous.errant["a server"] = "0-2-7"
    wait_until(lambda: invalidator._running["other/-"].worker is not previous)
    assert invalidator._running["other/-"].worker.errant == {"a server": "0-2-7"}
    invalidator.stop()
    thread.join(WAIT_SECONDS)


def test_a_configuration_is_used_although_another_database_never_was_there(
    scene: Scene, databases: Databases
) -> None:
    invalidator = Invalidator(scene.config(HEAD + shards("-80", "80-") + OTHER))
    thread = scene.start(invalidator)
    wait_until(lambda: len(scene.started) == 2)
    wait_until(lambda: any(each.last_error for each in invalidator.workers))
    invalidator.reload(scene.config(HEAD + shards("-", ports=4000) + OTHER))
    wait_until(lambda: {each.assignment.shard.lineage for each in invalidator.workers} == {"shop/-", "other/-"})
    invalidator.stop()
    thread.join(WAIT_SECONDS)


def test_a_schema_that_cannot_be_read_leaves_the_configuration_as_it_was(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    invalidator = Invalidator(scene.config(HEAD + shards("-80", "80-")))
    thread = scene.start(invalidator)
    wait_until(lambda: len(scene.started) == 2)
    asked = threading.Event()

    def refuse(*_: object) -> None:
        asked.set()
        raise SourceUnavailable("127.0.0.1:4000: connecting: refused")

    monkeypatch.setattr(app, "load_registry", refuse)
    invalidator.reload(scene.config(HEAD + shards("-")))
    assert asked.wait(WAIT_SECONDS)
    invalidator.stop()
    thread.join(WAIT_SECONDS)
    assert sorted(scene.started) == ["-80", "80-"]
    assert len(invalidator.config.keyspaces["shop"].shards) == 2


def test_another_topology_is_held_to_the_rules_of_the_file(scene: Scene) -> None:
    invalidator = Invalidator(scene.config(HEAD + shards("-80", "80-")))
    thread = scene.start(invalidator)
    wait_until(lambda: len(scene.started) == 2)
    half = {"name": "-80", "primary": "mysql://a@127.0.0.1:3306/shop"}
    rest = {"name": "80-", "primary": "mysql://a@127.0.0.1:4000/shop"}
    sharding = {"column": "id", "function": "hash"}
    torn = {"shop": {"flavor": "mysql", "sharding": sharding, "shards": [half]}}
    with pytest.raises(ConfigError, match="serving shards up to 80"):
        invalidator.change_topology({"topology": 2, "keyspaces": torn})
    with pytest.raises(ConfigError, match=r"the topology has the keys \['cache'\]"):
        invalidator.change_topology({"cache": {}})
    whole = {"shop": {"flavor": "mysql", "sharding": sharding, "shards": [half, rest]}}
    with pytest.raises(ConfigError, match="topology = 1, the present one is 1"):
        invalidator.change_topology({"topology": 1, "keyspaces": whole})
    answer = invalidator.change_topology({"topology": 2, "keyspaces": whole})
    assert answer == {"topology": 2, "lineages": ["shop/-80", "shop/80-"]}
    wait_until(lambda: len(scene.started) == 4)
    assert sorted(scene.started[2:]) == ["-80", "80-"], "each record gets the new number"
    invalidator.stop()
    thread.join(WAIT_SECONDS)


def test_a_previous_topology_is_not_loaded(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """The file as it was before `PUT /v1/topology`, or as it was before an editor's mistake."""
    invalidator = Invalidator(scene.config("topology = 2" + HEAD + shards("-80", "80-", ports=4000)))
    thread = scene.start(invalidator)
    wait_until(lambda: len(scene.started) == 2)
    invalidator.reload(scene.config(HEAD + shards("-80", "80-")))
    wait_until(lambda: "the new configuration is not used" in caplog.text)
    invalidator.stop()
    thread.join(WAIT_SECONDS)
    assert "topology = 1, this process has 2" in caplog.text
    assert len(scene.started) == 2
    assert invalidator.config.topology == 2


def test_nodes_change_only_under_a_new_number(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    def config(topology: int, *nodes: str, previous: tuple[str, ...] = ()) -> Config:
        read = scene.config(f"topology = {topology}" + HEAD + shards("-"))
        return replace(read, cache=replace(read.cache, nodes=nodes, previous_nodes=previous))

    invalidator = Invalidator(config(1, "a", "b"))
    thread = scene.start(invalidator)
    wait_until(lambda: len(scene.started) == 1)
    for refused in (config(1, "a"), config(1, "b", "a", previous=("a",))):
        caplog.clear()
        invalidator.reload(refused)
        wait_until(lambda: "cache.previous_nodes changes, and topology = 1 does not" in caplog.text)
    invalidator.reload(config(1, "b", "a"))
    wait_until(lambda: invalidator.config.cache.nodes == ("b", "a"))
    invalidator.reload(config(2, "a", previous=("a", "b")))
    wait_until(lambda: invalidator.config.topology == 2)
    invalidator.stop()
    thread.join(WAIT_SECONDS)


def test_what_serves_changes_only_under_a_new_number(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    def text(topology: int, *, has_moved: bool) -> str:
        whole, halves = shards("-", ports=3306), shards("-80", "80-", ports=4000)
        waiting = whole if has_moved else halves
        waiting = waiting.replace("]]\n", "]]\nserving = false\n")
        return f"topology = {topology}" + HEAD + (waiting + halves if has_moved else waiting + whole)

    invalidator = Invalidator(scene.config(text(1, has_moved=False)))
    thread = scene.start(invalidator)
    wait_until(lambda: len(scene.started) == 3)
    invalidator.reload(scene.config(text(1, has_moved=True)))
    wait_until(lambda: "the new configuration is not used" in caplog.text)
    assert "set topology = 2" in caplog.text
    assert len(scene.started) == 3
    invalidator.reload(scene.config(text(2, has_moved=True)))
    wait_until(lambda: len(scene.started) == 6)
    invalidator.stop()
    thread.join(WAIT_SECONDS)


def test_a_promoted_server_is_the_primary_until_the_file_names_another(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def text(primary: str, replica: str, more: str = "") -> str:
        servers = f'primary = "mysql://a@{primary}/shop"\nreplicas = ["mysql://r@{replica}/shop"]\n'
        shard = f'[[keyspaces.shop.shards]]\nname = "-"\nadopt_promotions = true\n{servers}'
        return f"{HEAD}{shard}{more}"

    def primary() -> str:
        [worker] = invalidator.workers
        assert invalidator.config.keyspaces["shop"].shards[0] == worker.assignment.shard
        return str(worker.assignment.shard.primary)

    monkeypatch.setattr(ShardWorker, "run", lambda worker: worker._follow())  # it looks at no server
    invalidator = Invalidator(scene.config(text("b:1", "b:2")))
    thread = scene.start(invalidator)
    wait_until(lambda: len(scene.started) == 1)
    assert primary() == "a@b:1/shop"
    [worker] = invalidator.workers
    scene.failures["-"] = PrimaryMoved("moved", worker.assignment.shard.replicas[0])
    wait_until(lambda: len(scene.started) == 2)
    assert primary() == "a@b:2/shop", "with the account of the primary"
    [worker] = invalidator.workers
    assert [str(each) for each in worker.assignment.shard.replicas] == ["a@b:1/shop"]
    # Another change of the file does not bring the previous one back
    invalidator.reload(scene.config(text("b:1", "b:2", "[stream]\nheartbeat_seconds = 0.5\n")))
    wait_until(lambda: len(scene.started) == 3)
    assert primary() == "a@b:2/shop"
    invalidator.reload(scene.config(text("b:3", "b:1")))
    wait_until(lambda: len(scene.started) == 4)
    assert primary() == "a@b:3/shop"
    invalidator.stop()
    thread.join(WAIT_SECONDS)
    assert scene.errors == []
