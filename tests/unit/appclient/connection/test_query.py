"""A loader's view of its connection: which statements it may send, whose turn it is, and when it is over."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any
from weakref import ref

import pymysql
import pytest

from appclient.connection.query import LoaderConnection, LoaderError, run_loader
from appclient.connection.statement import SessionWatch, calls_stored_function, changes_session, require_read
from freshness.errors import ConfigError, SourceUnsuitable


class Rows(LoaderConnection):
    """``run`` answers each query."""

    __slots__ = ("run",)

    def __init__(self, run: Callable[[str], list[Any]] = lambda _: []) -> None:
        super().__init__()
        self.run = run

    def _run(self, sql: str, params: Any) -> list[Any]:
        return self.run(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "select 1",
        "  (SELECT 1) UNION (SELECT 2)",
        "/* name */ SELECT 1",
        "-- name\n# more\nSELECT 1",
        "WITH c AS (SELECT 1) SELECT * FROM c",
        "VALUES (1), (2)",
        "VALUES ROW(1)",
        "TABLE customers",
        "SHOW TABLES",
        "EXPLAIN SELECT 1",
        "SELECT ';', \"; SET\", `;` /* ; */ FROM t -- ; the end\n ; ",
        "SELECT 'it''s; it' # ;",
        r"SELECT 'it\'s' ; ",
    ],
)
def test_a_statement_that_reads(sql: str) -> None:
    require_read(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SET time_zone = '-05:00'",
        "set sql_select_limit = 2",
        "/* name */ SET NAMES latin1",
        "/*!50000 SET time_zone = '-05:00' */",
        "/*M! SET time_zone = '-05:00' */ SELECT 1",
        "USE tenant_b",
        "CREATE TEMPORARY TABLE customers (id INT)",
        "LOCK TABLES customers READ",
        "START TRANSACTION",
        "COMMIT",
        "CALL change()",
        "PREPARE s FROM 'SELECT 1'",
        "DO GET_LOCK('a', 1)",
        "SELECTED",
        "SELECT 1; SET time_zone = '-05:00'",
        "SELECT ''; USE tenant_b",
        r"SELECT '\'; USE tenant_b -- '",
        "SELECT 1 /*! ; USE tenant_b */",
        "--\nSET time_zone = '-05:00' -- \nSELECT 1",
        "",
    ],
)
def test_a_statement_that_may_change_the_session_is_refused(sql: str) -> None:
    opened = Rows()
    with pytest.raises(SourceUnsuitable, match="a read of the cache sent"):
        opened.query(sql)
    assert opened.failure is None, "it is the loader's own error"
    assert opened.is_in_step


@pytest.mark.parametrize(
    ("sql", "changes"),
    [
        ("USE tenant_b", True),
        ("SET time_zone = '+05:00'", True),
        ("SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE", True),
        ("set names latin1", True),
        ("SET foreign_key_checks = 0, time_zone = '+05:00'", True),
        ("CREATE TEMPORARY TABLE customers (id INT)", True),
        ("/* name */ LOCK TABLES customers READ", True),
        ("PREPARE s FROM 'SET time_zone = 1'", True),
        ("SELECT GET_LOCK('a', 1)", True),
        ("SELECT id, get_lock (name, 1) FROM customers", True),
        ("SELECT 1; USE tenant_b", True),
        (r"SELECT '\'; USE tenant_b -- '", True),
        ("/*!50000 SET time_zone = '+05:00' */", True),
        ("/*M! USE tenant_b */", True),
        ("--\nUSE tenant_b -- \nSELECT 1", True),
        ("CREATE /* a */ TEMPORARY TABLE t (id INT)", True),
        ("CREATE /*! OR REPLACE */ TEMPORARY TABLE t (id INT)", True),
        ("LOCK/**/TABLE customers READ", True),
        ("EXECUTE IMMEDIATE CONCAT('SET time', '_zone = 1')", True),
        ("CALL prepare_tenant(5)", True),
        ("SET STATEMENT max_statement_time = 1 FOR CALL prepare_tenant(5)", True),
        ("BEGIN NOT ATOMIC SET time_zone = '+05:00'; END", True),
        ("IF 1 THEN SET time_zone = '+05:00'; END IF", True),
        ("SET STATEMENT max_statement_time = 1 FOR SET time_zone = '+05:00'", True),
        ("SELECT GET_LOCK/**/('a', 1)", True),
        ("BEGIN", False),
        ("SELECT ';', '; USE tenant_b' /* ; USE tenant_b */", False),
        (r"INSERT INTO notes VALUES ('it\'s; that is all')", False),
        ("SET foreign_key_checks = 0", False),
        ("SET @tenant = 5", False),
        ("SET SESSION innodb_lock_wait_timeout = 5", False),
        ("SET STATEMENT max_statement_time = 1 FOR SELECT 1", False),
        ("SELECT 1", False),
        ("UPDATE customers SET name = 'USE'", False),
        ("CALLED", False),
        ("CREATE TABLE customers (id INT)", False),
    ],
)
def test_a_statement_after_which_others_mean_other_rows(sql: str, changes: bool) -> None:
    assert changes_session(sql) is changes


class Driver:
    """Methods of all drivers by which a session is changed."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def query(self, sql: Any, unbuffered: bool = False) -> int:
        self.sent.append(sql)
        return 5

    def select_db(self, name: str) -> None:
        self.sent.append(name)


class Connector(Driver):
    cmd_query = Driver.query


@pytest.mark.parametrize("sql", ["USE tenant_b", b"USE tenant_b", bytearray(b"SET time_zone = '+05:00'")])
def test_a_change_of_the_session_is_seen_whoever_sends_it(sql: Any) -> None:
    driver = Driver()
    watch = SessionWatch(driver)
    assert driver.query("SELECT 1", unbuffered=True) == 5
    assert not watch.is_special
    driver.query(sql)
    assert watch.is_special
    assert driver.sent == ["SELECT 1", sql]


def test_a_change_without_a_text_is_seen() -> None:
    driver = Driver()
    watch = SessionWatch(driver)
    driver.select_db("tenant_b")
    assert (watch.is_special, driver.sent) == (True, ["tenant_b"])


def test_a_lock_of_each_read_ends_with_the_option_that_asked_for_it() -> None:
    driver = Driver()
    watch = SessionWatch(driver)
    for level, locks in (("SERIALIZABLE", True), ("READ COMMITTED", False)):
        driver.query(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
        assert watch.is_special is locks


def test_autocommit_by_the_method_of_a_driver_changes_no_session() -> None:
    for driver, changes in ((Connector(), False), (Driver(), True)):
        watch = SessionWatch(driver)
        driver.query("SET @@session.autocommit = OFF")
        assert watch.is_special is changes


@pytest.mark.parametrize("kind", [Driver, Connector])
def test_a_connection_that_is_watched_twice_ends_with_its_last_user(kind: type[Driver]) -> None:
    driver = kind()
    watches = [SessionWatch(driver), SessionWatch(driver)]
    sent = driver.sent
    driver.query("USE tenant_b")
    assert [watch.changes for watch in watches] == [1, 1]
    assert sent == ["USE tenant_b"]
    known = ref(driver)
    gc.disable()
    try:
        del driver
        assert known() is None
    finally:
        gc.enable()


class Traced:
    """As tools that trace wrap a connection."""

    def __init__(self, traced: Any) -> None:
        self.traced = traced

    def __getattr__(self, name: str) -> Any:
        return getattr(self.traced, name)


def test_a_connection_that_a_tool_has_wrapped_is_watched() -> None:
    driver = Driver()
    traced: Any = Traced(driver)
    watch = SessionWatch(traced)
    assert not watch.is_special
    traced.query("USE tenant_b")
    assert (watch.is_special, driver.sent) == (True, ["USE tenant_b"])


class Closed:
    __slots__ = ()

    def query(self, sql: Any) -> None:
        """Its methods cannot be replaced."""


@pytest.mark.parametrize("driver", [object(), Closed()])
def test_a_connection_that_cannot_be_watched_counts_as_changed(driver: Any) -> None:
    assert SessionWatch(driver).is_special


@pytest.mark.parametrize(
    ("sql", "calls"),
    [
        ("SELECT lock_account(42)", True),
        ("select shop.lock_account (42)", True),
        ("SELECT 1", False),
        ("SELECT NOW(), CONCAT('a', VERSION())", False),
        ("SELECT COUNT(*) FROM customers WHERE f(id)", False),
    ],
)
def test_a_function_that_may_lock(sql: str, calls: bool) -> None:
    assert calls_stored_function(sql) is calls


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT @n := 5",
        "SELECT 1 INTO @n",
        "SELECT 1 INTO@n",
        "SELECT 1 INTO/**/@n",
        "SELECT GET_LOCK('a', 1)",
        "SELECT GET_LOCK/**/('a', 1)",
        "SELECT LAST_INSERT_ID(7)",
        "SELECT LAST_INSERT_ID/**/(7)",
    ],
)
def test_a_connection_with_something_left_in_its_session_is_not_lent_again(sql: str) -> None:
    opened = Rows()
    opened.query("SELECT LAST_INSERT_ID()")
    assert opened.is_reusable
    opened.query(sql)
    assert not opened.is_reusable


def test_threads_of_one_loader_take_turns() -> None:
    running, most = [0], [0]
    both = threading.Barrier(8)

    def run(sql: str) -> list[str]:
        running[0] += 1
        most[0] = max(most[0], running[0])
        threading.Event().wait(0.001)
        running[0] -= 1
        return [sql]

    opened = Rows(run)
    found: dict[str, list[Any]] = {}

    def ask(number: int) -> None:
        both.wait()
        found[f"SELECT {number}"] = opened.query(f"SELECT {number}")

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert most[0] == 1
    assert found == {sql: [sql] for sql in found}
    assert len(found) == 8


def test_a_query_after_the_loaders_end_is_refused() -> None:
    opened = Rows()
    opened.end()
    with pytest.raises(ConfigError, match="after the loader's end"):
        opened.query("SELECT 1")


def test_the_end_waits_for_a_query_that_is_under_way() -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def run(_: str) -> list[Any]:
        begun.set()
        goes_on.wait()
        return []

    opened = Rows(run)
    orphan = threading.Thread(target=opened.query, args=("SELECT SLEEP(4)",))
    orphan.start()
    begun.wait()
    ender = threading.Thread(target=opened.end)
    ender.start()
    while not opened._gate.waiting:
        threading.Event().wait(0.001)
    assert ender.is_alive()
    goes_on.set()
    ender.join()
    orphan.join()
    assert not opened.is_in_step, "its answer is nobody's"


def test_after_an_interruption_nothing_is_asked() -> None:
    def run(_: str) -> list[Any]:
        raise KeyboardInterrupt

    opened = Rows(run)
    with pytest.raises(KeyboardInterrupt):
        opened.query("SELECT 1")
    with pytest.raises(ConfigError, match="after an interruption"):
        opened.query("SELECT 1")
    assert not opened.is_in_step


@pytest.mark.parametrize(
    ("code", "expected"),
    [(1054, SourceUnsuitable), (1064, SourceUnsuitable), (1242, SourceUnsuitable), (1053, pymysql.OperationalError)],
    ids=["unknown column", "syntax", "several rows", "shutdown"],
)
def test_a_wrong_statement_is_no_failure_of_the_server(code: int, expected: type[Exception]) -> None:
    def run(_: str) -> list[Any]:
        raise pymysql.OperationalError(code, "why")

    with pytest.raises(expected, match="why"):
        run_loader(lambda opened: opened.query("SELECT 1"), Rows(run))
    own = pymysql.OperationalError(code, "of another database")

    def load(_: LoaderConnection) -> Any:
        raise own

    assert run_loader(load, Rows()) == LoaderError(own)


def test_parameters_that_do_not_fit_their_statement_are_no_failure_of_the_server() -> None:
    """The driver says so itself, without a number."""

    def run(_: str) -> list[Any]:
        raise pymysql.ProgrammingError("not enough arguments for format string")

    with pytest.raises(SourceUnsuitable, match=r"wrong statement: not enough.*give each %s one parameter"):
        run_loader(lambda opened: opened.query("SELECT %s"), Rows(run))
