"""The lists of limits are true: a test shows each bullet under a heading "Limits"."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

CHECKOUT: Final = Path(__file__).resolve().parents[2]

SHOWN_BY: Final = {
    "docs/django.md": {
        "Raw cursors": "integration/django/test_reads.py::test_all_else_is_read_by_the_orm",
        "On a server by a Unix socket": "tests/unit/appclient/test_django.py"
        "::test_databases_are_found_by_host_port_and_name",
    },
    "docs/read-your-writes.md": {
        "The token must be carried": "integration/appclient/test_read_your_writes.py"
        "::test_without_the_defence_some_read_their_past",
        "Behind vtgate": "tests/unit/appclient/database/test_demands.py"
        "::test_a_keyspace_behind_vtgate_gives_no_commit_token",
        "With an [on_stale]": "tests/schedules/test_at_least.py"
        "::test_a_caller_that_asks_for_a_commit_is_served_nothing_of_unknown_age",
        "A token of a shard that no longer serves": "tests/unit/appclient/database/test_demands.py"
        "::test_a_commit_of_a_shard_that_was_split_is_asked_of_all_shards_of_its_keyspace",
    },
    "docs/spark.md": {
        "Values of composites": "tests/unit/spark/audit/test_replay.py::test_a_composite_is_not_compared_with_a_row",
        "A client that does not record": "tests/unit/spark/audit/test_replay.py"
        "::test_where_actions_were_lost_a_missing_invalidation_is_unknown",
    },
    "docs/sqlalchemy.md": {
        "The engine's server": "tests/unit/appclient/test_sqlalchemy.py::test_sessions_that_do_not_fit",
        "Rows with a TIMESTAMP": "integration/appclient/test_sqlalchemy.py"
        "::test_a_timestamp_in_another_time_zone_is_read_from_the_database",
        "Listeners of an engine": "tests/unit/appclient/test_sqlalchemy_sessions.py"
        "::test_handlers_of_the_application_that_change_nothing",
    },
    "docs/testing-your-application.md": {
        "The application's SQL": "tests/unit/appclient/test_testing.py::test_the_sql_is_that_of_sqlite",
        "The schema is given once": "tests/unit/appclient/test_testing.py"
        "::test_a_later_change_of_the_schema_is_not_replicated",
        "Two transactions that write": "tests/unit/appclient/test_testing.py"
        "::test_tasks_wait_for_the_locks_of_others",
        "A hit is not a turn": "tests/unit/appclient/test_testing.py"
        "::test_tasks_take_turns_within_a_read_of_the_database",
    },
}
"""The page -> the beginning of a bullet -> the test that shows it."""


def find_limits(text: str) -> list[str]:
    """The bullets under the headings "Limits" of a page."""
    sections = re.findall(r"^##+ Limits\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    return [bullet for section in sections for bullet in re.findall(r"^\* (.*)", section, re.MULTILINE)]


def find_problems(page: str, text: str) -> list[str]:
    """The bullets without a test, tests without a bullet, and tests that are not there."""
    shown, bullets = SHOWN_BY.get(page, {}), find_limits(text)
    problems = [bullet for bullet in bullets if sum(bullet.startswith(begin) for begin in shown) != 1]
    problems += [begin for begin in shown if not any(bullet.startswith(begin) for bullet in bullets)]
    for test in shown.values():
        path, _, name = test.partition("::")
        tree = ast.parse((CHECKOUT / path).read_text())
        if name not in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}:
            problems.append(test)
    return problems


def test_a_test_shows_each_limit() -> None:
    pages = {str(path.relative_to(CHECKOUT)): path.read_text() for path in (CHECKOUT / "docs").glob("*.md")}
    assert SHOWN_BY.keys() <= pages.keys()
    assert [problem for page, text in pages.items() for problem in find_problems(page, text)] == []


def test_a_limit_without_a_test_is_found() -> None:
    text = "# Page\n\n## Limits\n\n* One:\n  more.\n\nNo bullet.\n\n### Other\n\n* None.\n"
    assert find_problems("docs/page.md", text) == ["One:"]
    assert "Raw cursors" in find_problems("docs/django.md", text)
