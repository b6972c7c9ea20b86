"""Writes the parts of the documentation that come from code, contracts and the catalogue of failures: ``make docs``.

A table stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``; everything else in a page is written by
hand. ``tests/repository/test_docs.py`` calls `render` and fails where a page is not what the code says.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, Field, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import Metric

from appclient.reading.refusal import REMEDIES
from appclient.telemetry.prometheus import PrometheusTelemetry
from docs import chaos, soak, where
from docs.figures import Results, figures
from freshness import errors
from freshness.algorithm.rule import ReadOutcome
from freshness.config.cache import CacheConfig
from freshness.config.config import Config
from freshness.config.http import HttpClient, HttpConfig
from freshness.config.keyspace import Keyspace, Shard, Sharding, SkippedTransaction
from freshness.config.login import LoginConfig
from freshness.config.object import ObjectConfig
from freshness.config.setting import describe_type, settings_of
from freshness.config.stream import ArchiveConfig, HistoryConfig, StreamConfig
from freshness.errors import FreshnessError
from invalidator.probe.metrics import ProbeMetrics
from invalidator.probe.tally import ProbeTally
from invalidator.process.metrics import Metrics
from invalidator.rules.rule import CAVEAT, SEVERITIES, Rule
from invalidator.rules.service import MEANINGS
from spark.sink.metrics import SinkMetrics

PAGES: Final = Path(__file__).resolve().parent
README: Final = PAGES.parent / "README.md"
CATALOGUE: Final = PAGES / "failure_modes.toml"
STATUSES: Final = ("defended", "detected", "documented", "later", "gone")
GROUPS: Final = {
    "reading": "Reading and filling",
    "marks": "The marks of invalidations",
    "nodes": "Nodes, records and leases",
    "log": "The log and its servers",
    "history": "Failovers, lost history and reshards",
    "application": "Connections and sessions of the application",
    "tools": "The tools beside the cache",
}
"""The sections of the catalogue of failures."""
PLANTED_BUGS: Final = "tests/simulation/bugs.py"
_BLOCK = re.compile(r"(<!-- generated: ([a-z]+) -->\n).*?(<!-- end -->)", re.DOTALL)


class Setting(NamedTuple):
    """One key of the file, as the documentation shows it. ``default``: TOML text, or "required"."""

    key: str
    type: str
    default: str
    meaning: str


def describe_section(section: str, kind: type) -> Iterator[Setting]:
    """The keys of a section, in the order of its dataclass. ``section``: name in TOML, empty for the top."""
    for item, hint in settings_of(kind):
        key = f"{section}.{item.name}".lstrip(".")
        yield Setting(key, describe_type(hint), _describe_default(item), item.metadata["doc"])


def describe_settings() -> list[Setting]:
    """Every key that the file may hold, in the order of the file."""
    sections: list[tuple[str, type]] = [
        ("", Config),
        ("cache", CacheConfig),
        ("cache", LoginConfig),
        ("keyspaces.NAME", Keyspace),
        ("keyspaces.NAME.sharding", Sharding),
        ("keyspaces.NAME.shards", Shard),
        ("keyspaces.NAME.shards.skip", SkippedTransaction),
        ("objects.NAME", ObjectConfig),
        ("stream", StreamConfig),
        ("http", HttpConfig),
        ("http.clients.NAME", HttpClient),
        ("archive", ArchiveConfig),
        ("history", HistoryConfig),
    ]
    return [each for section, kind in sections for each in describe_section(section, kind)]


def _describe_default(item: Field[Any]) -> str:
    if item.metadata["default_text"] is not None:
        return str(item.metadata["default_text"])
    if item.default is MISSING:
        return "required"
    if item.default is None:
        return "none"
    if isinstance(item.default, str):
        return f'"{item.default}"'
    if isinstance(item.default, bool):
        return str(item.default).lower()
    return "[]" if item.default == () else str(item.default)


def settings_table() -> str:
    rows = ((f"`{one.key}`", one.type, f"`{one.default}`", one.meaning) for one in describe_settings())
    return _table(("key", "type", "default", "meaning"), rows)


def metrics_table(metrics: Metrics | SinkMetrics | ProbeMetrics) -> str:
    # A counter is shown as it is scraped, with the suffix of its samples.
    rows = (
        (f"`{one.name}{'_total' if one.type == 'counter' else ''}`", one.type, one.documentation)
        for one in metrics.registry.collect()
    )
    return _table(("metric", "type", "meaning"), rows)


def outcomes_table() -> str:
    rows = ((f"`{one.name}`", one.value.replace("_", " ")) for one in ReadOutcome)
    return _table(("outcome", "meaning"), rows)


def remedies_table() -> str:
    """What many refusals of one cause mean, causes of one meaning together."""
    causes: dict[str, list[str]] = {}
    for one, remedy in REMEDIES.items():
        causes.setdefault(remedy, []).append(f"`{one.name}`")
    return _table(("many of", "mean"), ((", ".join(names), remedy) for remedy, names in causes.items()))


def describe_client_metrics() -> list[tuple[Metric, tuple[str, ...]]]:
    """Each metric of the application library, without samples, and its labels."""
    metrics = vars(PrometheusTelemetry(CollectorRegistry())._metrics).values()
    return [
        (metric, tuple(each._labelnames))
        for each in metrics
        if isinstance(each, Counter | Gauge | Histogram)
        for metric in each.describe()
    ]


def client_metrics_table() -> str:
    rows = (
        (
            f"`{one.name}{'_total' if one.type == 'counter' else ''}`",
            one.type,
            ", ".join(f"`{label}`" for label in labels if label != "namespace"),
            one.documentation,
        )
        for one, labels in describe_client_metrics()
    )
    return _table(("metric", "type", "labels", "meaning"), rows)


def errors_table() -> str:
    kinds: dict[tuple[int, str], list[str]] = {}
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, FreshnessError):
            retry = "yes" if kind.is_retryable else "no"
            kinds.setdefault((kind.exit_code, retry), []).append(f"`{kind.__name__}`")
    rows = ((str(code), retry, ", ".join(names)) for (code, retry), names in sorted(kinds.items()))
    return _table(("exit code", "worth a retry", "errors"), rows)


def rules_table() -> str:
    """All that `invalidator check` can find, a table for each severity."""
    return "\n".join(f"### {severity.capitalize()}s\n\n{_rules_of(severity)}" for severity in SEVERITIES)


def _rules_of(severity: str) -> str:
    rows = ((f"`{one.slug}`", _link_code(one.code), one.title) for one in Rule if one.severity == severity)
    return _table(("rule", "leads to", "what is found"), rows)


def _link_code(code: str) -> str:
    return f"[{code}]({code}.md)" if code == CAVEAT else f"[{code}](failure-modes.md#{code.lower()})"


def services_table() -> str:
    rows = ((name, meaning) for name, meaning in MEANINGS.items())
    return _table(("service", "what it means"), rows)


def layers_table() -> str:
    """The order of the folders, from the top, as the import contracts check it."""
    linter = tomllib.loads((PAGES.parent / "pyproject.toml").read_text())["tool"]["importlinter"]
    rows = (
        (f"`{package}`", " → ".join(layer.replace(" | ", ", ") for layer in contract["layers"]))
        for contract in linter["contracts"]
        if contract["type"] == "layers"
        for package in contract["containers"]
    )
    return _table(("in", "from the top"), rows)


# -- the catalogue of failures -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Failure:
    """One way for such a cache to go wrong, see the head of failure_modes.toml. ``number``: F1, F2, …"""

    number: str
    group: str
    title: str
    known_from: str
    what: str
    status: str
    tests: tuple[str, ...] = ()
    planted: tuple[str, ...] = ()
    unplanted: str = ""


def load_failures() -> list[Failure]:
    """The catalogue, in its order. An unknown field is a `TypeError`."""
    entries = tomllib.loads(CATALOGUE.read_text())
    return [
        Failure(number, tests=tuple(entry.pop("tests", ())), planted=tuple(entry.pop("planted", ())), **entry)
        for number, entry in entries.items()
    ]


def failures_table() -> str:
    failures = load_failures()
    return "\n".join(
        f"### {title}\n\n{_failures_of(one for one in failures if one.group == group)}"
        for group, title in GROUPS.items()
    )


def _failures_of(failures: Iterable[Failure]) -> str:
    rows = (
        (f'<a id="{one.number.lower()}"></a>{one.number}', one.title, f"{_status(one)}{one.what}") for one in failures
    )
    return _table(("#", "failure", "defence"), rows)


def _status(one: Failure) -> str:
    return "" if one.status == "defended" else f"*{one.status.capitalize()}.* "


TABLES: Final[dict[str, Callable[[], str]]] = {
    "settings": settings_table,
    "metrics": lambda: metrics_table(Metrics()),
    "sinkmetrics": lambda: metrics_table(SinkMetrics()),
    "probemetrics": lambda: metrics_table(ProbeMetrics(ProbeTally())),
    "clientmetrics": client_metrics_table,
    "outcomes": outcomes_table,
    "remedies": remedies_table,
    "errors": errors_table,
    "layers": layers_table,
    "where": lambda: _table(
        ("environment", "verified on (tests at least, last run)", "needs, or why not"), where.rows()
    ),
    "rules": rules_table,
    "services": services_table,
    "failures": failures_table,
    "figures": lambda: figures(Results.load()),
    "chaos": lambda: (
        _table(("servers", "seeds", "values read", "hits", "commits", "faults", "violations"), chaos.runs())
        + "\n"
        + chaos.sentence()
    ),
    "chaosfaults": lambda: _table(("fault", "times", "answered", "slowest read, s"), chaos.faults()),
    "chaosbugs": lambda: _table(("defence removed", "seed", "violations", "of"), chaos.bugs()),
    "chaossentence": chaos.sentence,
    "soak": lambda: _table(("process", "memory, MB", "files", "threads", "flat"), soak.rows()),
}


def render(text: str) -> str:
    """The page with its tables as the code has them now. An unknown name is a `KeyError`."""
    return _BLOCK.sub(lambda match: f"{match[1]}{TABLES[match[2]]()}{match[3]}", text)


def _table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    titles = list(titles)
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def main() -> None:
    for page in (README, *sorted(PAGES.glob("*.md"))):
        page.write_text(render(page.read_text()))


if __name__ == "__main__":
    main()
