"""Which columns find one row: by what information_schema says of the indexes of a table."""

from __future__ import annotations

from typing import Any, Final, cast

import pytest

from freshness.database import schema
from freshness.database.connection import Connection
from freshness.database.schema import key_columns
from freshness.errors import ConfigError

COLUMNS: Final = [
    ("id", "int", None, None, None, 0, None, "auto_increment"),
    ("tenant", "int", None, None, None, 0, None, ""),
    ("email", "varchar", "utf8mb4", "utf8mb4_general_ci", 320, None, None, ""),
    ("hidden", "int", None, None, None, 0, None, "INVISIBLE"),
    ("seen", "timestamp", None, None, None, 0, None, ""),
    ("until", "timestamp", None, None, None, 6, "ROW END", "STORED GENERATED"),
]
INDEXES: Final = [
    ("PRIMARY", "id", None),
    ("PRIMARY", "until", None),
    ("by_email", "tenant", None),
    ("by_email", "email", None),
    ("by_part", "email", 4),
    ("by_rest", "tenant", None),
    ("by_rest", None, None),  # an expression
    ("by_hidden", "hidden", None),
    ("by_time", "seen", None),
]


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Connection:
    answers = {
        schema._TABLE: [("users", "BASE TABLE")],
        schema._COLUMNS: COLUMNS,
        schema._UNIQUE_KEYS: INDEXES,
        schema._PRIMARY_KEY: [("hidden", None)],
    }

    def read_rows(_: Any, sql: str, __: Any = ()) -> list[tuple[Any, ...]]:
        return cast("list[tuple[Any, ...]]", answers[sql])

    monkeypatch.setattr(schema, "read_rows", read_rows)
    return cast(Connection, None)


def test_the_other_tables_are_not_read(connection: Connection) -> None:
    """Each table would read all: of a thousand a million. The fixture knows no such query."""
    assert key_columns(connection, "shop", "users", ("id",))


def test_an_error_shows_how_the_name_is_spelled(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {schema._TABLE: [], schema._TABLES: [("Users", "BASE TABLE"), ("other", "BASE TABLE")]}
    monkeypatch.setattr(schema, "read_rows", lambda _, sql, __=(): answers[sql])
    with pytest.raises(ConfigError, match=r"no table shop\.users.*is spelled Users"):
        key_columns(connection, "shop", "users")


def test_a_primary_key_over_the_beginning_of_a_column_is_refused(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = vars(schema)["read_rows"]

    def read_rows(asked: Connection, sql: str, parameters: Any = ()) -> list[tuple[Any, ...]]:
        return [("email", 4)] if sql == schema._PRIMARY_KEY else read(asked, sql, parameters)

    monkeypatch.setattr(schema, "read_rows", read_rows)
    with pytest.raises(ConfigError, match=r"the primary key of shop\.users holds only 4 characters of email"):
        key_columns(connection, "shop", "users")


@pytest.mark.parametrize("names", [("email", "tenant"), ("tenant", "email"), ("id",), ("tenant", "id")])
def test_columns_that_a_unique_index_lies_within_find_one_row(connection: Connection, names: tuple[str, ...]) -> None:
    found = key_columns(connection, "shop", "users", names, True)
    assert tuple(column.name for column in found) == names


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (("email",), "several rows of shop.users can have the same email"),
        (("tenant",), "several rows of shop.users can have the same tenant"),
        (("hidden",), "column shop.users.hidden is invisible"),
        (("hidden", "id"), "column shop.users.hidden is invisible"),
        (("seen",), "timestamp cannot be a key"),
        (("mail",), "shop.users has no column mail"),
        ((), "column shop.users.hidden is invisible"),
    ],
)
def test_other_columns_are_refused_as_the_key_of_a_row(
    connection: Connection, names: tuple[str, ...], says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        key_columns(connection, "shop", "users", names, True)
    assert says in str(refused.value)
    assert refused.value.hint


def test_the_refusal_names_the_unique_indexes(connection: Connection) -> None:
    with pytest.raises(ConfigError) as refused:
        key_columns(connection, "shop", "users", ("tenant",), True)
    assert "by_email (tenant, email), by_part (email(4)), by_rest (tenant, an expression)" in refused.value.hint
    assert "or give a list order_by and limit" in refused.value.hint


def test_a_member_may_have_any_column(connection: Connection) -> None:
    for name in ("email", "tenant", "hidden"):
        assert key_columns(connection, "shop", "users", (name,))[0].name == name


def test_a_member_without_the_key_is_told_the_way_out(connection: Connection) -> None:
    with pytest.raises(ConfigError, match=r"shop\.users has no column customer_id") as refused:
        key_columns(connection, "shop", "users", ("customer_id",))
    assert "it has email, hidden" in refused.value.hint
    assert "a list of their own, see docs/config.md#two-joins-away" in refused.value.hint


def test_a_list_may_be_ordered_by_any_column_that_is_there(connection: Connection) -> None:
    assert key_columns(connection, "shop", "users", ("tenant",), False, ("seen", "hidden"))[0].name == "tenant"
    with pytest.raises(ConfigError, match=r"shop\.users has no column placed"):
        key_columns(connection, "shop", "users", ("tenant",), False, ("seen", "placed"))
    with pytest.raises(ConfigError, match=r"column shop\.users\.hidden is invisible"):
        key_columns(connection, "shop", "users", ("hidden",), False, ("seen",))
