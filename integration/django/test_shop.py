"""The shop of examples/django_shop under gunicorn, with new workers half way: the short form of `make examples`."""

from __future__ import annotations

from pathlib import Path

from examples.scoreboard.run import run_shop
from integration.servers import Pair, database_pair

READS = 4000
SEED = 7


def test_no_page_shows_the_past_and_nothing_old_is_kept(own_pair: Pair, tmp_path: Path) -> None:
    score = run_shop(own_pair, "freshness", tmp_path, reads=READS, seed=SEED)
    assert (score.own_past, score.old, score.withdrawn, score.poisoned) == (0, 0, 0, 0), score
    assert score.reads >= READS
    assert score.orders > 0
    assert score.failures > 0  # views that fail after their commit are among the orders


def test_the_same_load_finds_the_past_in_a_cache_that_is_invalidated_by_signals(tmp_path: Path) -> None:
    with database_pair("mariadb") as pair:
        score = run_shop(pair, "signals", tmp_path, reads=READS, seed=SEED)
    assert score.own_past > 0
    assert score.poisoned > 0
