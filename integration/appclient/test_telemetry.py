"""The library's metrics and spans on real servers, of threads and of tasks: what they say is what was read."""

from __future__ import annotations

import asyncio
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from appclient import Cache, LoaderConnection, OpenTelemetry, PrometheusTelemetry, ReadOutcome
from appclient.connection.awaiting import await_
from integration.appclient.tasks import loop_cache
from integration.appclient.test_process_models import KEYS as WEB_KEYS
from integration.appclient.test_process_models import WORKERS, Gunicorn
from integration.configuration import CUSTOMER, PROFILE
from integration.harness import (
    CUSTOMERS_TABLE,
    ORDERS_TABLE,
    System,
    running_system,
    wait_for_hits,
    wait_for_outcome,
    wait_until,
)
from integration.servers import Pair

READERS = 20
Opening = Callable[..., AbstractContextManager[Cache]]


@pytest.fixture(scope="module")
def system(mariadb_pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    mariadb_pair.primary.execute("DROP DATABASE IF EXISTS shop")
    mariadb_pair.primary.execute("CREATE DATABASE shop")
    folder = tmp_path_factory.mktemp("telemetry")
    tables = (CUSTOMERS_TABLE, ORDERS_TABLE)
    with running_system(mariadb_pair, folder, tables=tables, objects=CUSTOMER + PROFILE) as made:
        made.execute("INSERT INTO customers VALUES " + ", ".join(f"({key}, 'n', 0)" for key in WEB_KEYS))
        made.settle()
        yield made


@pytest.fixture(params=["threads", "tasks"])
def opening(system: System, request: pytest.FixtureRequest) -> Opening:
    """Opens a cache with telemetry: of threads, or one whose reads are tasks."""

    @contextmanager
    def of_threads(**options: Any) -> Iterator[Cache]:
        with closing(Cache.open(system.config_path, **options)) as cache:
            yield cache

    @contextmanager
    def of_tasks(**options: Any) -> Iterator[Cache]:
        with loop_cache(system.config_path, **options) as cache:
            yield cast(Cache, cache)

    return of_threads if request.param == "threads" else of_tasks


class Seen:
    """A registry, and the sums of its samples."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.telemetry = PrometheusTelemetry(self.registry)

    def total(self, name: str, **labels: str) -> float:
        return sum(
            sample.value
            for metric in self.registry.collect()
            for sample in metric.samples
            if sample.name == f"freshness_client_{name}" and labels.items() <= sample.labels.items()
        )


def change(system: System, *keys: int) -> None:
    system.execute(f"UPDATE customers SET v = v + 1 WHERE id IN ({', '.join(map(str, keys))})")
    system.settle()


def test_each_key_is_counted_once_by_its_outcome(system: System, opening: Opening) -> None:
    seen = Seen()
    with opening(telemetry=seen.telemetry) as cache:
        wait_for_hits(cache, "customer", [1, 2, 3], system.describe)
        before = {name: seen.total("reads_total", outcome=name) for name in ("HIT", "FILLED")}
        fills = seen.total("fills_total", object="customer")
        reads = seen.total("database_seconds_count")
        change(system, 1, 2)
        assert cache.get("customer", 1, explain=True).outcome is ReadOutcome.FILLED
        assert cache.get("customer", 1)["v"] > 0
        outcomes = [each.outcome for each in cache.get_many("customer", [1, 2, 3], explain=True).values()]
        assert outcomes == [ReadOutcome.HIT, ReadOutcome.FILLED, ReadOutcome.HIT]
        assert seen.total("reads_total", outcome="HIT", object="customer") - before["HIT"] == 3
        assert seen.total("reads_total", outcome="FILLED", object="customer") - before["FILLED"] == 2
        assert seen.total("fills_total", object="customer") - fills == 2
        replica = f"127.0.0.1:{system.pair.replica.port}"
        assert seen.total("database_seconds_count") - reads == 2
        assert seen.total("database_seconds_count", server=replica) >= 2
        assert seen.total("read_seconds_count", keys="one", result="hit") == 1
        assert seen.total("read_seconds_count", keys="one", result="miss") == 1
        assert seen.total("read_seconds_count", keys="many", result="miss") >= 1
        assert seen.total("load_seconds_count", object="customer") >= 2
        for node in {system.subject("customer", key).node for key in (1, 2, 3)}:
            assert seen.total("node_seconds_count", node=node) > 0
        assert 0 < seen.total("server_heartbeat_age_seconds", server=replica) < 60


def test_a_refusal_is_counted_with_its_cause(system: System, opening: Opening) -> None:
    seen = Seen()
    with opening(telemetry=seen.telemetry) as cache:
        wait_for_hits(cache, "customer", [4], system.describe)
        found = cache.get("customer", 4, max_staleness_seconds=0.0, explain=True)
        assert found.outcome is ReadOutcome.STALE
        assert seen.total("fills_refused_total", object="customer", cause="STALE") == 1


def test_a_read_that_raises_is_counted_with_its_error(system: System, opening: Opening) -> None:
    seen = Seen()
    with opening(telemetry=seen.telemetry) as cache:

        @cache.loader("profile")
        def load(_: LoaderConnection, customer_id: int) -> Any:
            raise ZeroDivisionError(customer_id)

        with pytest.raises(ZeroDivisionError):
            cache.get("profile", 77)
        for name in ("read_errors_total", "load_errors_total"):
            assert seen.total(name, object="profile", error="ZeroDivisionError") == 1
        assert seen.total("reads_total", object="profile") == 0


def test_shared_loads_and_connections_in_use_are_seen_while_a_herd_reads(system: System, opening: Opening) -> None:
    seen = Seen()
    change(system, 5)
    go_on = threading.Event()
    with opening(telemetry=seen.telemetry) as cache:

        def load(_: LoaderConnection, customer_id: int) -> Any:
            while not go_on.is_set():
                if type(cache) is Cache:
                    time.sleep(0.01)
                else:
                    await_(asyncio.sleep(0.01))
            return {"id": customer_id}

        cache.loader("profile")(load)
        readers = [threading.Thread(target=cache.get, args=("profile", 5)) for _ in range(READERS)]
        for reader in readers:
            reader.start()
        wait_until(lambda: seen.total("connections_in_use", pool="nodes") == READERS, "all are reading")
        server = f"127.0.0.1:{system.pair.replica.port}"
        wait_until(lambda: seen.total("connections_in_use", pool=server) == 1, "one reads the database")
        go_on.set()
        for reader in readers:
            reader.join()
        assert seen.total("reads_total", object="profile") == READERS
        loads = seen.total("load_seconds_count", object="profile")
        shared = seen.total("loads_shared_total", object="profile")
        hits = seen.total("reads_total", object="profile", outcome="HIT")
        assert loads + shared + hits == READERS
        assert 1 <= loads <= 2
        assert seen.total("connections_in_use") == 0
        assert seen.total("connections_max", pool="nodes") == 32


def test_the_breaker_of_a_node_that_hangs_is_shown(system: System, opening: Opening) -> None:
    seen = Seen()
    node = system.nodes[0]
    own = [key for key in WEB_KEYS if system.subject("customer", key).node == node.address]
    with opening(telemetry=seen.telemetry) as cache:
        wait_for_hits(cache, "customer", own, system.describe)
        node.pause()
        try:
            assert cache.get("customer", own[0])["id"] == own[0]
            assert seen.total("breaker_open", node=node.address) == 1
            assert seen.total("breaker_open", node=system.nodes[1].address) == 0
            assert seen.total("node_failures_total", node=node.address) == 1
            assert seen.total("fills_refused_total", cause="NODE_DOWN") == 1
        finally:
            node.resume()
        wait_until(lambda: seen.total("breaker_open", node=node.address) == 0, "the probe has its answer")
        wait_for_hits(cache, "customer", own, system.describe)


def test_several_caches_of_a_process_share_a_telemetry(system: System) -> None:
    seen = Seen()
    with (
        closing(Cache.open(system.config_path, telemetry=seen.telemetry)) as one,
        closing(Cache.open(system.config_path, telemetry=seen.telemetry)) as other,
    ):
        for cache in (one, other):
            wait_for_hits(cache, "customer", [6], system.describe)
        before = seen.total("reads_total", outcome="HIT")
        assert one.get("customer", 6) == other.get("customer", 6)
        assert seen.total("reads_total", outcome="HIT") - before == 2
        assert seen.total("connections_max", pool="nodes") == 64
        assert {sample.labels["namespace"] for sample in samples(seen)} == {system.namespace}


def samples(seen: Seen) -> list[Any]:
    found = [sample for metric in seen.registry.collect() for sample in metric.samples]
    assert found
    return found


def test_workers_of_gunicorn_are_counted_together(system: System, tmp_path: Path) -> None:
    """prometheus_client's multiprocess mode: any worker answers for all."""
    folder = tmp_path / "metrics"
    folder.mkdir()
    with Gunicorn(
        system.config_path, "--worker-class=gthread", "--threads=4", environment={"PROMETHEUS_MULTIPROC_DIR": folder}
    ) as server:
        server.ask_all([server.ask(key % len(WEB_KEYS))["process"] for key in range(60)])

        def scrape() -> dict[str, float]:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=30) as response:
                text = response.read().decode()
            totals: dict[str, float] = {}
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    totals[sample.name] = totals.get(sample.name, 0) + sample.value
            return totals

        def is_counted() -> bool:
            # Each request reads a key twice
            return scrape().get("freshness_client_reads_total", 0) >= 2 * server.answers

        wait_until(is_counted, "the workers have written what they counted", system.describe)
        found = scrape()
        assert found["freshness_client_reads_total"] == 2 * server.answers
        assert found["freshness_client_read_seconds_count"] == 2 * server.answers
        # 32 for the connections to the nodes, as many to each server, of each worker and of the process that forked
        assert found["freshness_client_connections_max"] == 3 * 32 * (WORKERS + 1)


# -- OpenTelemetry -------------------------------------------------------------------------------------


class Traced:
    """An SDK for one test, and what it recorded."""

    def __init__(self, *, shows_keys: bool = False) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.telemetry = OpenTelemetry(
            meter_provider=MeterProvider([self.reader]), tracer_provider=self.provider, shows_keys=shows_keys
        )

    def take(self) -> list[ReadableSpan]:
        """The spans that have ended since the last time, in the order of their ends."""
        ended = list(self.exporter.get_finished_spans())
        self.exporter.clear()
        return ended

    def points(self, name: str) -> list[Any]:
        data = self.reader.get_metrics_data()
        assert data is not None
        return [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


def test_a_read_has_a_span_and_its_load_a_child(system: System, opening: Opening) -> None:
    traced = Traced()
    with opening(telemetry=traced.telemetry) as cache:
        wait_for_hits(cache, "customer", [7], system.describe)
        change(system, 7)
        traced.take()
        assert cache.get("customer", 7, explain=True).outcome is ReadOutcome.FILLED
        load, read = traced.take()
        assert load.name == "cache.load customer"
        assert read.name == "cache.get customer"
        assert load.parent is not None
        assert load.parent.span_id == read.context.span_id
        assert read.parent is None
        assert load.kind is SpanKind.CLIENT
        replica = system.pair.replica.port
        assert dict(read.attributes or {}) == {
            "freshness.namespace": system.namespace,
            "freshness.object": "customer",
            "freshness.keys": 1,
            "freshness.hit": False,
            "freshness.outcome": "FILLED",
            "freshness.node": system.subject("customer", 7).node,
            "freshness.server": f"127.0.0.1:{replica}",
            "freshness.server.role": "replica",
        }
        assert dict(load.attributes or {}) == {
            "freshness.namespace": system.namespace,
            "freshness.object": "customer",
            "freshness.keys": 1,
            "db.system.name": "mariadb",
            "server.address": "127.0.0.1",
            "server.port": replica,
        }
        cache.get("customer", 7)
        (hit,) = traced.take()
        assert (hit.attributes or {})["freshness.hit"] is True
        cache.get_many("customer", [7, 8])
        many = traced.take()[-1]
        assert (many.name, (many.attributes or {})["freshness.keys"]) == ("cache.get_many customer", 2)


def test_spans_stand_below_that_of_the_caller_and_a_loader_s_read_below_its_load(
    system: System, opening: Opening
) -> None:
    traced = Traced()
    with opening(telemetry=traced.telemetry) as cache:

        def load(_: LoaderConnection, customer_id: int) -> Any:
            return cache.get("customer", customer_id)

        cache.loader("profile")(load)
        wait_for_outcome(cache, "profile", 9, [ReadOutcome.FILLED, ReadOutcome.HIT], system.describe)
        change(system, 9)
        traced.take()
        cache.get("profile", 9)
        by_name = {span.name: span for span in traced.take()}
        inner, load_span = by_name["cache.get customer"], by_name["cache.load profile"]
        assert inner.parent is not None
        assert load_span.parent is not None
        assert load_span.parent.span_id == by_name["cache.get profile"].context.span_id
        if type(cache) is Cache:
            assert inner.parent.span_id == load_span.context.span_id


@pytest.mark.parametrize("shows_keys", [False, True])
def test_a_key_is_in_a_span_only_where_the_application_asks_for_it(system: System, shows_keys: bool) -> None:
    traced = Traced(shows_keys=shows_keys)
    with closing(Cache.open(system.config_path, telemetry=traced.telemetry)) as cache:

        @cache.loader("profile")
        def load(_: LoaderConnection, customer_id: int) -> Any:
            raise ValueError(f"no customer {customer_id}")

        cache.get("customer", 987654)
        with pytest.raises(ValueError, match="987654"):
            cache.get("profile", 987654)
        spans = traced.take()
        assert [span.status.status_code for span in spans].count(StatusCode.ERROR) == 2
        assert {(span.attributes or {}).get("error.type") for span in spans} == {None, "ValueError"}
        told = [f"{span.attributes} {span.events} {span.status.description}" for span in spans]
        assert [("987654" in text) for text in told] == [shows_keys] * len(told)
        metrics = traced.reader.get_metrics_data()
        assert metrics is not None
        assert "987654" not in metrics.to_json()


def test_metrics_by_opentelemetry_are_those_of_prometheus(system: System, opening: Opening) -> None:
    seen, traced = Seen(), Traced()
    with opening(telemetry=[seen.telemetry, traced.telemetry]) as cache:
        wait_for_hits(cache, "customer", [10, 11], system.describe)
        cache.get("customer", 10)
        cache.get("customer", 10, max_staleness_seconds=0.0)
        for name, ours in (
            ("freshness.client.reads", "reads_total"),
            ("freshness.client.fills", "fills_total"),
            ("freshness.client.fills.refused", "fills_refused_total"),
            ("freshness.client.loads.shared", "loads_shared_total"),
            ("db.client.connection.count", "connections_in_use"),
            ("db.client.connection.max", "connections_max"),
            ("freshness.client.breaker.open", "breaker_open"),
        ):
            assert sum(point.value for point in traced.points(name)) == seen.total(ours), name
        operations = traced.points("db.client.operation.duration")
        count_of = {
            kind: sum(point.count for point in operations if point.attributes["db.system.name"] == kind)
            for kind in ("memcached", "mariadb")
        }
        assert count_of["memcached"] == seen.total("node_seconds_count") > 0
        assert count_of["mariadb"] == seen.total("database_seconds_count") > 0
        reads = traced.points("freshness.client.read.duration")
        assert sum(point.count for point in reads) == seen.total("read_seconds_count")
        (age, *_) = traced.points("freshness.client.server.heartbeat.age")
        assert 0 < age.value < 60
