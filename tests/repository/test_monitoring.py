"""The alert rules and the dashboard for operators: expressions parse, and name metrics and labels that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import promql_parser
import pytest
import yaml
from prometheus_client import Counter, Gauge, Histogram
from promql_parser import AggregateExpr, Expr, VectorSelector

from docs.generate import PAGES, describe_client_metrics
from freshness.algorithm.rule import ReadOutcome
from invalidator.probe.metrics import ProbeMetrics
from invalidator.probe.tally import ProbeTally
from invalidator.process.metrics import Metrics
from spark.sink.metrics import SinkMetrics
from tests.repository.test_docs import SUFFIXES, _anchors

MONITORING: Final = Path(__file__).resolve().parents[2] / "compose" / "monitoring"
SEVERITIES: Final = {"critical", "warning", "info"}
OF_PROMETHEUS: Final = {"job", "instance"}
"""Labels that Prometheus itself gives to what it scrapes."""

_OUTCOME_LABELS: Final = {"outcome", "cause"}


def known_metrics() -> dict[str, set[str]]:
    """By the name of a sample: its labels."""
    known: dict[str, set[str]] = {}
    metrics = Metrics()
    registered = {*metrics.registry._collector_to_names}
    for each in registered:
        assert isinstance(each, (Counter, Gauge, Histogram))
        for metric in each.describe():
            for suffix in SUFFIXES[metric.type]:
                known[metric.name + suffix] = {*each._labelnames}
    for registry in (SinkMetrics().registry, ProbeMetrics(ProbeTally()).registry):
        for metric in registry.collect():
            for suffix in SUFFIXES[metric.type]:
                known[metric.name + suffix] = {*getattr(metric, "_labelnames", ())}
    for metric, labels in describe_client_metrics():
        for suffix in SUFFIXES[metric.type]:
            known[metric.name + suffix] = {*labels}
    for name, its in known.items():
        its |= OF_PROMETHEUS | ({"le"} if name.endswith("_bucket") else set())
    return known


KNOWN: Final = known_metrics()


def load_rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    assert [set(group) for group in groups] == [{"name", "rules"}] * 4
    return [rule for group in groups for rule in group["rules"]]


def load_panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    return found


RULES: Final = load_rules()
QUERIES: Final = [
    (panel["title"], target["expr"], target["legendFormat"])
    for panel in load_panels()
    for target in panel.get("targets", ())
]


def parse(text: str) -> Expr:
    """A dashboard's variables stand for a duration, or inside a text."""
    return promql_parser.parse(text.replace("$__rate_interval", "5m"))


def find_problems(text: str) -> list[str]:
    """Names of metrics, labels and outcomes in an expression that do not exist."""
    problems: list[str] = []
    selected: list[VectorSelector] = []
    grouped: set[str] = set()

    def look(expr: Expr) -> None:
        if isinstance(expr, VectorSelector):
            selected.append(expr)
        if isinstance(expr, AggregateExpr) and expr.modifier is not None:
            grouped.update(expr.modifier.labels)

    promql_parser.walk(parse(text), look)
    if not selected:
        return ["it asks for no metric"]
    possible: set[str] = set()
    for each in selected:
        name = each.name or ""
        if name not in KNOWN:
            problems.append(f"there is no {name}")
            continue
        possible |= KNOWN[name]
        for matcher in each.matchers.matchers:
            if matcher.name not in KNOWN[name]:
                problems.append(f"{name} has no label {matcher.name}")
            if matcher.name in _OUTCOME_LABELS:
                outcomes = {*ReadOutcome.__members__}
                problems += [f"there is no {one}" for one in matcher.value.split("|") if one not in outcomes]
    problems += [f"no metric in it has a label {label}" for label in sorted(grouped - possible)]
    return problems


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["alert"]))
class TestEveryAlert:
    def test_it_parses_and_asks_for_what_exists(self, rule: Mapping[str, Any]) -> None:
        assert find_problems(rule["expr"]) == []
        if "for" in rule:
            assert promql_parser.parse_duration(rule["for"]).total_seconds() > 0

    def test_it_has_a_severity_a_sentence_and_a_page(self, rule: Mapping[str, Any]) -> None:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"Freshness[A-Za-z]+", rule["alert"])
        assert rule["labels"]["severity"] in SEVERITIES
        assert set(rule["annotations"]) == {"summary", "runbook"}
        path, _, anchor = rule["annotations"]["runbook"].partition("#")
        page = PAGES.parent / path
        assert page.is_file()
        assert anchor in _anchors(page)

    def test_its_sentence_names_labels_that_it_has(self, rule: Mapping[str, Any]) -> None:
        for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
            assert label in set(labels_in(rule["expr"])), label


def labels_in(text: str) -> Iterator[str]:
    """The labels that the answers to an expression can have."""
    expr = parse(text)
    grouped: list[set[str]] = []

    def look(expr: Expr) -> None:
        if isinstance(expr, AggregateExpr) and expr.modifier is not None:
            grouped.append({*expr.modifier.labels})

    promql_parser.walk(expr, look)
    if grouped:
        yield from set().union(*grouped)
        return

    def look_at_selectors(expr: Expr) -> None:
        if isinstance(expr, VectorSelector):
            grouped.append(KNOWN[expr.name or ""])

    promql_parser.walk(expr, look_at_selectors)
    yield from set().union(*grouped)


def test_alerts_have_names_of_their_own() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len({*names}) == len(names) > 0


@pytest.mark.parametrize(("title", "expr", "legend"), QUERIES)
def test_each_query_of_the_dashboard_asks_for_what_exists(title: str, expr: str, legend: str) -> None:
    assert find_problems(expr) == []
    assert {*re.findall(r"{{(\w+)}}", legend)} <= {*labels_in(expr)}, title


def test_the_dashboard_shows_every_metric() -> None:
    """But the numbers that the configuration itself says."""
    asked = {name for _, expr, _ in QUERIES for name in re.findall(r"\bfreshness_[a-z_]+", expr)}
    shown = {re.sub(r"_(bucket|count|sum|total)$", "", name) for name in asked}
    there = {re.sub(r"_(bucket|count|sum|total)$", "", name) for name in KNOWN}
    assert there - shown == {"freshness_stripes_configured"}


def test_the_variables_of_the_dashboard_are_labels_of_their_metric() -> None:
    document = json.loads((MONITORING / "dashboard.json").read_text())
    variables = [one for one in document["templating"]["list"] if one["type"] == "query"]
    assert [one["name"] for one in variables] == ["namespace", "lineage"]
    for one in variables:
        metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", one["query"]["query"]).groups()  # type: ignore[union-attr]
        assert label == one["name"]
        assert label in KNOWN[metric]
    used = {name for _, expr, _ in QUERIES for name in re.findall(r"\$(\w+)", expr)}
    assert used == {"namespace", "lineage", "__rate_interval"}


@pytest.mark.parametrize(
    ("planted", "problem"),
    [
        ("freshness_lag == 1", "there is no freshness_lag"),
        ("freshness_lag_seconds_total == 1", "there is no freshness_lag_seconds_total"),
        ('freshness_stream_open{shard="-"} == 0', "freshness_stream_open has no label shard"),
        ("sum by (node) (freshness_stream_open)", "no metric in it has a label node"),
        ('freshness_client_reads_total{outcome=~"HIT|HITS"}', "there is no HITS"),
        ("vector(1)", "it asks for no metric"),
    ],
)
def test_a_wrong_name_is_found(planted: str, problem: str) -> None:
    assert find_problems(planted) == [problem]


def test_an_expression_that_does_not_parse_is_an_error() -> None:
    with pytest.raises(ValueError, match="unclosed left parenthesis"):
        find_problems("sum by (lineage (freshness_stream_open)")
