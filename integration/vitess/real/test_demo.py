"""`make demo ARGS=--vitess`: the demo's table on a real Vitess."""

from __future__ import annotations

from integration.demo.test_demo import demonstrate


def test_the_demo_poisons_the_others_and_not_event_tokens() -> None:
    result = demonstrate("--vitess", "--seconds", "8")
    assert result["flavor"] == "vitess"
    strategies = result["strategies"]
    assert all(each["invalidations"] == result["writes"] > 0 for each in strategies.values())
    ours = strategies["event_tokens"]
    assert (ours["poisoned"], ours["stale_reads"]) == (0, 0)
    assert ours["hit_rate"] > 0
    assert strategies["delete_after_write"]["poisoned"] > 0
    assert strategies["delete_from_stream"]["poisoned"] > 0
