"""The live audit without Spark: which caches it can audit, and its result."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from freshness.comparison import comparison, entry
from freshness.comparison.comparison import EntryVerdict
from freshness.comparison.scope import ComparisonScope
from freshness.config.access import NodeAccess, NodeLogin
from freshness.config.config import load_config
from freshness.errors import ConfigError
from freshness.nodes.listing import require_listing
from spark.live import __main__ as command
from spark.live.report import (
    EXAMPLES_MAX,
    AuditSummary,
    Example,
    condense,
    find_condemned,
    print_summary,
)

CHECKOUT: Final = Path(__file__).resolve().parents[4]
NODE: Final = "127.0.0.1:11211"


def test_nodes_inside_a_program_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "freshness.toml"
    text = (CHECKOUT / "README.md").read_text().partition("```toml\n")[2].partition("```")[0]
    path.write_text(text.replace("[cache]\n", '[cache]\nbackend = "memory"\n'))
    with pytest.raises(ConfigError, match="nobody else lists them"):
        require_listing(load_config(path, {"SHOP_PASSWORD": "x"}).cache.access)


class ClusterSession:
    """A session of a cluster that encrypts nothing."""

    conf: Final = {"spark.master": "spark://127.0.0.1:1"}


def test_a_password_of_the_nodes_is_not_sent_to_a_cluster_that_does_not_encrypt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "freshness.toml"
    path.write_text((CHECKOUT / "README.md").read_text().partition("```toml\n")[2].partition("```")[0])
    monkeypatch.setenv("SHOP_PASSWORD", "x")
    scope = ComparisonScope(
        "shop", (NODE,), 1, (), {}, {}, NodeAccess("memcached", NodeLogin("cache", "hidden"))
    )
    monkeypatch.setattr(command, "load_scope", lambda *_, **options: scope)
    session = cast(SparkSession, ClusterSession())
    assert command.main(["--config", str(path)], session) == ConfigError.exit_code
    told = capsys.readouterr().err
    assert "spark.network.crypto.enabled" in told
    assert "hidden" not in told


# -- the result ------------------------------------------------------------------------------------------

CLEAN: Final = AuditSummary(1, 3, 2, 2, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, 0),
        ({"in_flight": 1}, 0),
        ({"live": 0, "compared": 0}, 0),
        ({"poisoned": 1, "unknown": 1, "unavailable": ("x",)}, 5),
        ({"unknown": 1}, 3),
        ({"unavailable": ("x",)}, 3),
        ({"compared": 0, "not_comparable": 2}, 3),
        ({"compared": 0, "in_flight": 2}, 3),
        ({"compared": 0, "in_flight": 1, "not_comparable": 1}, 3),
    ],
)
def test_the_exit_code(changes: dict[str, Any], code: int) -> None:
    assert replace(CLEAN, **changes).exit_code == code


def test_entries_in_flight_are_not_compared() -> None:
    """Each of them differed, and then changed: nothing was seen to be right."""
    counts = [
        counted("live", comparison.IN_FLIGHT, 34),
        counted("dead", comparison.NOT_SERVED, 2),
        replace(counted(entry.UNAVAILABLE, comparison.UNKNOWN, 1), error="silent"),
    ]
    summary = AuditSummary.of(2, counts)
    assert (summary.entries, summary.live, summary.compared, summary.in_flight) == (36, 34, 0, 34)
    assert (summary.unavailable, summary.exit_code) == (("silent",), 3)
    counts = [*counts[:2], counted("live", comparison.EQUAL, 1)]
    assert AuditSummary.of(2, counts).exit_code == 0


def counted(state: str, verdict: str, count: int) -> EntryVerdict:
    return EntryVerdict("", None, "", state, verdict, count=count)


def of_entry(number: int, verdict: str, **cells: Any) -> EntryVerdict:
    item = f"shop:customer:{number:03}".encode()
    return EntryVerdict(NODE, item, "customer", entry.LIVE, verdict, entry_digest=str(number), **cells)


def test_the_verdicts_of_a_task_become_few_rows() -> None:
    poisoned = [of_entry(number, comparison.POISONED, cached="old") for number in range(100)]
    silent = [of_entry(number, comparison.UNKNOWN, error="silent") for number in range(100, 200)]
    equal = [of_entry(number, comparison.EQUAL) for number in range(200, 300)]
    away = EntryVerdict(NODE, None, "", entry.UNAVAILABLE, comparison.UNKNOWN, error="away")
    rows = list(condense([*equal, *silent, *poisoned, away], 50))
    assert len(rows) == 20 + 50 + 1 + 3
    assert [each.item for each in find_condemned(rows)] == [each.item for each in poisoned[:50]]
    summary = AuditSummary.of(1, rows + rows)
    assert (summary.entries, summary.compared, summary.poisoned, summary.unknown) == (600, 400, 200, 200)
    assert summary.unavailable == ("away", "silent")
    assert {each.cached for each in summary.examples} == {"old"}
    assert len(list(condense(poisoned, 0))) == EXAMPLES_MAX + 1


def test_a_repair_that_was_not_made_is_told() -> None:
    summary = replace(CLEAN, poisoned=9).with_repairs({(True, ""): 5, (False, "node [x] is down"): 3})
    assert (summary.repaired, summary.exit_code) == (5, 5)
    assert [reason.split(":")[0] for reason in summary.not_repaired] == ["1", "3"]
    shown = io.StringIO()
    print_summary(summary, Console(width=160, file=shown))
    assert "not repaired: 3: node [x] is down" in shown.getvalue()
    assert replace(CLEAN, poisoned=5).with_repairs({(True, ""): 5}).not_repaired == ()


@pytest.mark.parametrize(
    ("changes", "conclusion"),
    [
        ({}, "2 of 2 live entries were compared, and all are equal to their rows"),
        ({"live": 3, "in_flight": 1}, "2 of 3 live entries were compared, and all are equal to their rows"),
        ({"live": 0, "compared": 0}, "no entry is live: there was nothing to compare"),
        ({"live": 34, "compared": 0, "in_flight": 34}, "nothing is proved: none of 34 live entries could be"),
        ({"live": 3, "unknown": 1}, "not known: 1 entries are unknown; 2 of 3 live entries are equal"),
        ({"poisoned": 1, "unknown": 1}, "1 poisoned; 2 of 2 live entries were compared"),
    ],
)
def test_the_conclusion_says_how_much_was_proved(changes: dict[str, Any], conclusion: str) -> None:
    summary = replace(CLEAN, **changes)
    assert summary.conclusion.startswith(conclusion)
    assert summary.to_json()["conclusion"] == summary.conclusion
    shown = io.StringIO()
    print_summary(summary, Console(width=300, file=shown))
    assert conclusion in shown.getvalue()


def test_the_report_shows_keys_as_they_are() -> None:
    example = Example(NODE, "shop:c:[red]1", "c", "poisoned", "p", "['old']", "['new']", "")
    shown = io.StringIO()
    summary = replace(CLEAN, poisoned=1, examples=(example,), unavailable=("node [x]",))
    print_summary(summary, Console(width=160, file=shown))
    text = shown.getvalue()
    for part in ("shop:c:[red]1", "['old']", "['new']", "no answer: node [x]", "not comparable"):
        assert part in text
