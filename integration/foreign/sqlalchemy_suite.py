"""Files of SQLAlchemy's ORM suite on a private server, with or without cached reads.

``python -m integration.foreign.sqlalchemy_suite ROOT PORT RESULT plain|cached FILE …``; ROOT is the folder of
the source distribution, each FILE the name of one below ``test/orm``. The sessions that tests get of SQLAlchemy's own
fixtures read the cache, which has all tables with a primary key that a test begins with. Called by ``__main__``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Generator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pymysql
import pytest

from integration.foreign.outcome import PASSED, Outcome
from integration.foreign.system import running_cache

SCHEMA: Final = "foreign_sqlalchemy"
TABLES: Final = """
    SELECT table_name, GROUP_CONCAT(CONCAT_WS(' ', column_name, column_type, collation_name, column_key)
        ORDER BY ordinal_position)
    FROM information_schema.columns JOIN information_schema.tables USING (table_schema, table_name)
    WHERE table_schema = DATABASE() AND engine = 'InnoDB'
    GROUP BY table_name HAVING SUM(column_key = 'PRI') > 0
"""
outcome: Final = Outcome()


class Recorder:
    """A plugin of pytest that notes how each test ended."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        name = item.nodeid.removeprefix("test/orm/").replace(".py::", "::", 1)
        test = re.sub(r"_mysql\+pymysql[_\d]*", "", name)
        if report.failed:
            assert call.excinfo is not None
            outcome.note(test, call.excinfo.exconly())
        elif report.skipped:
            outcome.tests[test] = "skipped"
        else:
            outcome.tests.setdefault(test, PASSED)
        return report


class CachedSessions:
    """A plugin that has a cache of the tables that there are, as each test begins."""

    def __init__(self, port: str) -> None:
        self._stack = ExitStack()
        self._primary = f"mysql://app:app@127.0.0.1:{port}/{SCHEMA}"
        self.beside = connect(port, SCHEMA)
        self._served: Mapping[str, str] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self) -> None:
        there = dict(self.ask(TABLES))
        if not there.items() <= self._served.items():
            self._open(there)

    def _open(self, tables: Mapping[str, str]) -> None:
        from sqlalchemy import orm
        from sqlalchemy.testing import config
        from sqlalchemy.testing.fixtures import orm as fixtures

        from appclient import Cache
        from appclient.sqlalchemy import CachedReads

        self._stack.close()
        path = self._stack.enter_context(running_cache(self._primary, tables))
        cache = Cache.open(path, on_read=count)
        self._stack.callback(cache.close)
        maker = orm.sessionmaker(config.db)
        CachedReads(cache, maker)
        vars(fixtures)["orm"] = SimpleNamespace(**vars(orm) | {"Session": maker.class_})
        self._served = tables

    def ask(self, sql: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        """On a connection whose statements no test counts."""
        with self.beside.cursor() as cursor:
            cursor.execute(sql, parameters)
            return list(cursor.fetchall())

    def compare_reads(self) -> None:
        """Compare each answer with the database's, with all commits that there are. Ask the cache twice, since the
        second read of a row is a hit."""
        from appclient.sqlalchemy.own import SessionState
        from appclient.sqlalchemy.reads import CachedReads
        from appclient.sqlalchemy.replay import _run

        kind: Any = CachedReads
        find_result, find = kind._find_result, kind._find_rows
        asked: list[Any] = []

        def find_asked(reads: Any, site: Any, shown: Any, orm: Any) -> Any:
            def note(_: Any, sql: str, parameters: Any) -> list[Any]:
                asked[:] = sql, parameters
                return []

            _run(orm, site.replay, note, None)
            [(gtids,)] = self.ask("SELECT @@global.gtid_executed")
            database = reads.cache.database(site.keyspace.name)
            SessionState.of(orm.session).add(database.commit_token_of(gtids, shard=site.shard))
            return find_result(reads, site, shown, orm)

        def find_compared(reads: Any, plan: Any, session: Any, keys: Any) -> Any:
            sql, parameters = asked
            found = find(reads, plan, session, keys)
            rows = self.ask(sql, parameters)
            for answer in (found, find(reads, plan, session, keys)):
                outcome.compared += 1
                if sorted(map(repr, answer)) != sorted(map(repr, rows)):
                    outcome.different.append(f"{sql} {parameters}: the cache has {answer}, the database {rows}")
            return found

        kind._find_result, kind._find_rows = find_asked, find_compared


def count(read: Any) -> None:
    outcome.hits += read.is_hit


def connect(port: str, schema: str | None = None) -> Any:
    return pymysql.connect(
        host="127.0.0.1",
        port=int(port),
        user="app",
        password="app",
        database=schema,
        charset="utf8mb4",
        ssl_disabled=True,
        autocommit=True,
    )


def main(root: str, port: str, result: str, mode: str, *files: str) -> int:
    with connect(port) as connection, connection.cursor() as cursor:
        for schema in (SCHEMA, "test_schema"):
            cursor.execute(f"DROP DATABASE IF EXISTS {schema}")
            cursor.execute(f"CREATE DATABASE {schema} CHARACTER SET utf8mb4")
    plugins: list[object] = [Recorder()]
    if mode == "cached":
        sessions = CachedSessions(port)
        sessions.compare_reads()
        plugins.append(sessions)
    os.chdir(root)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    url = f"mysql+pymysql://app:app@127.0.0.1:{port}/{SCHEMA}?charset=utf8mb4&ssl_disabled=1"
    paths = [f"test/orm/{file}.py" for file in files]
    pytest.main(["-p", "no:cacheprovider", "--dburi", url, *paths], plugins=plugins)
    outcome.write(Path(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
