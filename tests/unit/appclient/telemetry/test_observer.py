"""Telemetry without servers: no note is lost, observers get each event, and nothing is loaded or counted twice."""

from __future__ import annotations

import gc
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NoOpTracerProvider
from prometheus_client import CollectorRegistry, generate_latest

from appclient import Cache, OpenTelemetry, PrometheusTelemetry
from appclient.database.shard import ShardDatabase
from appclient.reading.loader import ObjectLoader
from appclient.telemetry.observer import ObservedNode, Observer, Vitals, find_observer
from appclient.telemetry.prometheus import NODE_BUCKETS, NOTED_MAX, _Histogram, _Noted
from freshness.algorithm.lookup import Loaded, Lookup
from freshness.algorithm.request import Get
from freshness.algorithm.rule import ReadOutcome
from freshness.algorithm.state import Demand, Read
from freshness.config.config import Config, load_config
from freshness.errors import ConfigError, NodeUnavailable
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.nodes.memory import MemoryNode, MemoryStore

CONFIG = """[cache]
nodes = ["127.0.0.1:21"]
namespace = "shop"
[keyspaces.shop]
flavor = "mysql"
[[keyspaces.shop.shards]]
primary = "mysql://app@127.0.0.1:1/shop"
[objects.customer]
table = "customers"
[objects.copy]
table = "customers"
"""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "freshness.toml"
    path.write_text(CONFIG)
    return load_config(path, {})


Opening = Callable[..., Cache]


@pytest.fixture
def opening(config: Config, monkeypatch: pytest.MonkeyPatch) -> Opening:
    """Opens caches of a node in memory and of a database in which no customer exists."""
    columns = (KeyColumn("id", ColumnKind.INTEGER),)
    monkeypatch.setattr(ShardDatabase, "run", lambda *_: columns)
    monkeypatch.setattr(ShardDatabase, "rows_with_token", lambda *_: ([], None))
    store = MemoryStore("127.0.0.1:21", clock=lambda: 1000.0)

    def open_cache(**options: Any) -> Cache:
        return Cache(config, open_node=lambda *_: MemoryNode(store), **options)

    return open_cache


def value_of(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    labels = {"namespace": "shop", **labels}
    return registry.get_sample_value(f"freshness_client_{name}", labels)


# -- Prometheus ----------------------------------------------------------------------------------------


@given(st.lists(st.one_of(st.floats(0, 4), st.sampled_from(NODE_BUCKETS))))
def test_times_that_are_put_in_together_are_those_put_in_one_by_one(seconds: list[float]) -> None:
    registries = CollectorRegistry(), CollectorRegistry()
    together, alone = (_Histogram("h", "Of a test.", registry=each, buckets=NODE_BUCKETS) for each in registries)
    for each in seconds:
        alone.observe(each)
    together.observe_all([*seconds])
    for sample in next(iter(alone.collect())).samples:
        if sample.name != "h_created":
            found = registries[0].get_sample_value(sample.name, sample.labels)
            assert found == pytest.approx(sample.value), sample


def test_what_is_noted_is_counted_when_it_is_much_and_when_it_is_asked_for() -> None:
    registry = CollectorRegistry()
    noted = _Noted(_Histogram("h", "Of a test.", registry=registry))
    for _ in range(NOTED_MAX + 1):
        noted.add(0.1)
    assert registry.get_sample_value("h_count") == NOTED_MAX
    noted.flush()
    assert registry.get_sample_value("h_count") == NOTED_MAX + 1


def test_a_scrape_shows_every_read_before_it(opening: Opening) -> None:
    registry = CollectorRegistry()
    with closing(opening(telemetry=PrometheusTelemetry(registry))) as cache:
        cache.get("customer", 1)
        cache.get_many("customer", [1, 2])
        text = generate_latest(registry).decode()
    assert 'freshness_client_reads_total{namespace="shop",object="customer",outcome="NO_RECORD"} 3.0' in text
    assert 'freshness_client_node_seconds_count{namespace="shop",node="127.0.0.1:21"}' in text


def test_an_entry_whose_value_does_not_decode_is_counted_as_what_it_is(
    opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = CollectorRegistry()
    with closing(opening(telemetry=PrometheusTelemetry(registry))) as cache:
        monkeypatch.setattr(
            "appclient.reading.reader.find_hit", lambda *_: Read(ReadOutcome.HIT, b"\xc1 is no beginning of a value")
        )
        monkeypatch.setattr(cache.lookups.loaders["customer"], "load", lambda *_: [Loaded({"id": 1}, {}, None)])
        assert cache.get("customer", 1) == {"id": 1}
    assert value_of(registry, "reads_total", object="customer", outcome="FOREIGN") == 1
    assert value_of(registry, "fills_refused_total", object="customer", cause="FOREIGN") == 1
    assert value_of(registry, "reads_total", object="customer", outcome="HIT") == 0


def test_a_hit_of_the_process_s_own_copy_is_counted_as_such(
    opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = CollectorRegistry()
    with closing(opening(telemetry=PrometheusTelemetry(registry))) as cache:
        answers = iter((ReadOutcome.LOCAL_HIT, ReadOutcome.HIT, ReadOutcome.LOCAL_HIT))
        monkeypatch.setattr("appclient.reading.reader.find_hit", lambda *_: Read(next(answers)))
        for _ in range(3):
            cache.get("customer", 1)
    for outcome, count in (("LOCAL_HIT", 2), ("HIT", 1)):
        assert value_of(registry, "reads_total", object="customer", outcome=outcome) == count
    assert value_of(registry, "read_seconds_count", object="customer", keys="one", result="hit") == 3
    assert value_of(registry, "fills_refused_total", object="customer", cause="LOCAL_HIT") is None


def test_a_second_set_of_metrics_in_a_registry_is_refused(opening: Opening) -> None:
    registry = CollectorRegistry()
    first = PrometheusTelemetry(registry)
    with pytest.raises(ConfigError, match="has these metrics already") as refused:
        PrometheusTelemetry(registry)
    assert "the same PrometheusTelemetry" in refused.value.hint
    with closing(opening(telemetry=first)) as cache:
        cache.get("customer", 1)
    assert value_of(registry, "reads_total", object="customer", outcome="NO_RECORD") == 1


def test_a_cache_that_is_gone_has_no_connections_and_its_reads_stay(opening: Opening) -> None:
    registry = CollectorRegistry()
    telemetry = PrometheusTelemetry(registry)
    cache = opening(telemetry=telemetry)
    cache.get("customer", 1)
    assert value_of(registry, "connections_max", pool="nodes") == 32
    del cache
    gc.collect()
    assert value_of(registry, "connections_max", pool="nodes") == 0
    assert value_of(registry, "reads_total", object="customer", outcome="NO_RECORD") == 1


def test_a_forked_process_does_not_count_what_its_parent_has_noted() -> None:
    program = """
import os
from prometheus_client import CollectorRegistry
from appclient.telemetry import prometheus
prometheus._refresh_again_and_again = lambda _: None  # so that nothing is put in before the fork
registry = CollectorRegistry()
telemetry = prometheus.PrometheusTelemetry(registry)
noted = telemetry._metrics.note_node("shop", "node")
noted.add(0.1)
child = os.fork()
telemetry.refresh()
labels = {"namespace": "shop", "node": "node"}
if child:
    os.waitpid(child, 0)  # so that the two lines do not mix
print("child" if child == 0 else "parent", registry.get_sample_value("freshness_client_node_seconds_count", labels))
"""
    found = run_program(program, PROMETHEUS_MULTIPROC_DIR="/dev/shm")
    assert sorted(found.split("\n")) == ["child 0.0", "parent 1.0"]


def run_program(program: str, **environment: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
        timeout=500,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


# -- OpenTelemetry -------------------------------------------------------------------------------------


def test_without_spans_of_the_library_the_caller_s_span_stays_the_current_one(
    opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    telemetry = OpenTelemetry(meter_provider=NoOpMeterProvider(), tracer_provider=NoOpTracerProvider())
    tracer = TracerProvider().get_tracer("test")
    seen: list[trace.Span] = []

    def load(*_: Any) -> list[Loaded]:
        seen.append(trace.get_current_span())
        return [Loaded(None, {}, ReadOutcome.NO_TOKEN)]

    monkeypatch.setattr(ObjectLoader, "load", load)
    with closing(opening(telemetry=telemetry)) as cache, tracer.start_as_current_span("caller") as caller:
        cache.get("customer", 1)
        assert trace.get_current_span() is caller
    assert seen[0].get_span_context().span_id == caller.get_span_context().span_id


# -- what is put in between ----------------------------------------------------------------------------


class Told(Observer):
    """Notes its calls in a list that several observers share."""

    def __init__(self, name: str, told: list[str]) -> None:
        self.name, self.told = name, told

    def observe(self, vitals: Vitals) -> Observer:
        return self

    def begin_read(self, lookups: Sequence[Lookup]) -> str:
        self.told.append(f"{self.name} begins")
        return self.name

    def end_read(self, begun: Any, lookups: Sequence[Lookup], reads: Sequence[Read], seconds: float) -> None:
        self.told.append(f"{self.name} ends what {begun} began")

    def node_timer(self, node: str) -> Callable[[float], None]:
        return lambda _: self.told.append(f"{self.name} hears of {node}")

    def fail_node(self, node: str, error: Any, seconds: float) -> None:
        self.told.append(f"{self.name} hears that {node} fails")


def test_several_telemetries_are_told_and_end_in_the_reverse_order(opening: Opening) -> None:
    told: list[str] = []
    with closing(opening(telemetry=[Told("one", told), Told("other", told)])) as cache:
        cache.get("customer", 1)
    assert told[:4] == ["one begins", "other begins", "one hears of 127.0.0.1:21", "other hears of 127.0.0.1:21"]
    assert told[-2:] == ["other ends what other began", "one ends what one began"]


def test_what_the_recorder_drops_is_told_to_all(opening: Opening, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Callable[[int], None] | None] = []
    monkeypatch.setattr("appclient.reading.pipeline.open_recorder", lambda _, on_drop: asked.append(on_drop))
    registry, reader = CollectorRegistry(), InMemoryMetricReader()
    telemetry = [PrometheusTelemetry(registry), OpenTelemetry(meter_provider=MeterProvider([reader]))]
    with closing(opening(telemetry=telemetry)), closing(opening()):
        told, silent = asked
    assert silent is None
    assert told is not None
    told(3)
    told(4)
    assert value_of(registry, "history_dropped_total") == 7
    assert counts_of(reader, "history.dropped") == [(7, {"freshness.namespace": "shop"})]


def counts_of(reader: InMemoryMetricReader, name: str) -> list[tuple[int, dict[str, str]]]:
    """The values of a counter, with their attributes."""
    read = reader.get_metrics_data()
    assert read is not None
    found = json.loads(read.to_json())["resource_metrics"][0]["scope_metrics"][0]["metrics"]
    (points,) = (each["data"]["data_points"] for each in found if each["name"].endswith(name))
    return [(point["value"], point["attributes"]) for point in points]


def test_a_read_of_several_objects_counts_for_each_and_says_how_it_was_answered(
    opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = ReadOutcome.HIT, ReadOutcome.TOGETHER, ReadOutcome.HIT

    def read(context: object, lookups: Sequence[Lookup], demand: Demand) -> Generator[Any, Any, list[Read]]:
        assert demand.served is not None
        demand.served.result = "more_looks"
        yield from ()
        return [Read(outcome) for outcome in outcomes]

    monkeypatch.setattr("appclient.reading.reader.read_together", read)
    registry, reader = CollectorRegistry(), InMemoryMetricReader()
    telemetry = [PrometheusTelemetry(registry), OpenTelemetry(meter_provider=MeterProvider([reader]))]
    with closing(opening(telemetry=telemetry)) as cache, cache.together() as view:
        assert view.get_all([("customer", 1), ("copy", 1), ("copy", 2)]) == [None, None, None]
    counts = {("customer", "HIT"): 1, ("copy", "TOGETHER"): 1, ("copy", "HIT"): 1}
    for (name, outcome), count in counts.items():
        assert value_of(registry, "reads_total", object=name, outcome=outcome) == count
    assert value_of(registry, "together_reads_total", result="more_looks") == 1
    shop = {"freshness.namespace": "shop"}
    assert counts_of(reader, "client.reads") == [
        (count, {**shop, "freshness.object": name, "freshness.outcome": outcome})
        for (name, outcome), count in counts.items()
    ]
    assert counts_of(reader, "together.reads") == [(1, {**shop, "freshness.together.result": "more_looks"})]


def test_without_telemetry_nothing_is_put_in_between(opening: Opening, config: Config) -> None:
    assert find_observer(None, Vitals(config)) is None
    assert find_observer([], Vitals(config)) is None
    with closing(opening()) as cache:
        assert cache._answer.__qualname__.startswith("Pipeline._reading_own_transactions")
        assert not isinstance(cache._pipeline.nodes.open_reader().nodes["127.0.0.1:21"]._node, ObservedNode)  # type: ignore[attr-defined]


class Dead:
    """A node that fails."""

    name, is_connected = "dead", False

    def _fail(self, *_: Any, **__: Any) -> Any:
        raise NodeUnavailable("dead is not there")

    send = receive = perform = find = connect = _fail

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    "ask",
    [
        lambda node: node.perform((Get(b"a"),)),
        lambda node: node.send((Get(b"a"),)),
        lambda node: node.receive(),
        lambda node: node.find(b"a"),
    ],
)
def test_a_node_that_fails_has_no_time_of_an_answer(ask: Callable[[Any], Any]) -> None:
    told: list[str] = []
    with pytest.raises(NodeUnavailable):
        ask(ObservedNode(Dead(), Told("it", told)))
    assert told == ["it hears that dead fails"]


# -- the log of refusals -------------------------------------------------------------------------------


def test_a_cache_says_once_in_the_log_why_its_values_are_not_stored(
    opening: Opening, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with closing(opening()) as cache:
        cache.get("customer", 1)
        cache.get_many("customer", [1, 2, 3])
    (line,) = [record.getMessage() for record in caplog.records if record.name == "appclient.refusal"]
    assert "customer: a value was read from the database and not stored, NO_RECORD" in line


# -- extras --------------------------------------------------------------------------------------------


def test_an_application_without_telemetry_loads_none_of_its_packages() -> None:
    program = "import sys, appclient; print(sorted({'prometheus_client', 'opentelemetry'} & {*sys.modules}))"
    assert run_program(program) == "[]"


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [("PrometheusTelemetry", "prometheus_client", "prometheus"), ("OpenTelemetry", "opentelemetry", "opentelemetry")],
)
def test_a_package_that_is_missing_is_named_with_its_extra(name: str, package: str, extra: str) -> None:
    program = f"""
import sys
sys.modules[{package!r}] = None
try:
    from appclient import {name}
except ModuleNotFoundError as error:
    print(error)
"""
    said = run_program(program)
    assert f"{package} is not installed" in said
    assert f"pip install 'freshness[{extra}]'" in said
