"""``[objects.NAME]``: a kind of cached object, and the columns by which it is found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from freshness.config.keyspace import Keyspace
from freshness.config.setting import Columns, setting
from freshness.config.table import Table, shown


def parse_order(text: str) -> tuple[str, bool]:
    """The column that a part of ``order_by`` names, and whether its highest value comes first."""
    column, _, direction = text.rpartition(" ")
    if column and direction.lower() in ("asc", "desc"):
        return column, direction.lower() == "desc"
    return text, False


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectConfig:
    """``[objects.NAME]``: one kind of cached object: a row, a list of rows, or a value built from several tables."""

    name: str
    keyspace: str = setting("The keyspace that the object lives in.", default_text="the only keyspace")
    table: str | None = setting("For an object that is one row, or a list of rows: its table.", None)
    key: Columns = setting(
        "For an object that is one row: the columns of a unique key that finds it. For a list: the columns that its "
        "rows have in common. For a composite object: the name of its key, or the names of its key columns.",
        (),
        default_text="the primary key of table",
    )
    members: Mapping[str, Columns] = setting(
        "For a composite object: each table that it is built from = the column of that table with the key, or as "
        "many columns as the key has, in its order.",
        default_text="{}",
        default_factory=dict,
    )
    order_by: Columns = setting(
        'For a list: the columns that order it, from the lowest value, or from the highest as in "created_at desc". '
        "The primary key decides between equal rows.",
        (),
        default_text="none",
    )
    limit: int = setting(
        "For a list: maximum of rows, from the first on.", 0, bounds=(1, 100_000), default_text="none"
    )
    fill_from_log: bool = setting(
        "For a row by its primary key: a change replaces an entry by the row as the log has it, so that it stays a "
        "hit. Costs the invalidator more. Not with flavor vitess.",
        default=False,
    )
    local_copy_seconds: float = setting(
        "How long a process serves its own copy of a hit without asking the node. At most "
        "cache.node_refresh_seconds.",
        0.0,
        bounds=(0, 3600),
    )
    stale_while_revalidate_seconds: float = setting(
        "How old a copy of a hit may be that a process serves while another reader fills the key again. "
        "At most cache.max_staleness_seconds.",
        0.0,
        bounds=(0, 86_400),
    )
    database_reads_per_second: float = setting(
        "How many reads of this object a process sends to the database in a second; 0: no limit. Others "
        "wait, then get the copy that stale_while_revalidate_seconds allows, or fail.",
        0.0,
        bounds=(0, 1e9),
    )

    @property
    def is_composite(self) -> bool:
        return self.table is None

    @property
    def is_list(self) -> bool:
        return bool(self.order_by)

    @property
    def order(self) -> tuple[tuple[str, bool], ...]:
        """``order_by`` as (column, whether its highest value comes first)."""
        return tuple(map(parse_order, self.order_by))

    @property
    def is_primary_row(self) -> bool:
        """Whether it is one row by the primary key of its table, whose whole value the log always has."""
        return self.table is not None and not self.key

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables whose changes invalidate the object, in the order of the file."""
        return tuple(self.members) if self.table is None else (self.table,)


def read_objects(tables: Table, keyspaces: Mapping[str, Keyspace]) -> dict[str, ObjectConfig]:
    objects: dict[str, ObjectConfig] = {}
    for name, table in tables.named_tables():
        values = table.values(ObjectConfig)
        _check_object(table, values)
        if "keyspace" not in table and len(keyspaces) == 1:
            values["keyspace"] = next(iter(keyspaces))
        elif "keyspace" not in table and keyspaces:
            table.report("keyspace", "nothing", f"one of {', '.join(keyspaces)}")
        elif "keyspace" in values and keyspaces and values["keyspace"] not in keyspaces:
            table.report("keyspace", shown(values["keyspace"]), f"one of {', '.join(keyspaces)}")
        keyspace = keyspaces.get(values.get("keyspace", ""))
        if values.get("fill_from_log") and keyspace is not None and keyspace.flavor == "vitess":
            table.report("fill_from_log", "true", 'false with flavor "vitess": vttablet sends keys alone')
        if table.is_valid and "keyspace" in values:
            objects[name] = ObjectConfig(**{**values, "name": name})
    return objects


def _check_object(table: Table, values: Mapping[str, Any]) -> None:
    has_table, has_key, has_members = (key in table for key in ("table", "key", "members"))
    kinds = 'either "table" (one row, or a list) or "key" and "members" (composite)'
    if has_table and has_members:
        table.report("", "both", kinds)
    elif not has_table and not has_key and not has_members:
        table.report("", "neither", kinds)
    elif not has_table and not has_members:
        expected = '"members" (composite) or "table" (one row, or a list) beside "key"'
        table.report("members", "nothing", expected)
    elif has_members and not has_key:
        table.report("key", "nothing", '"key" and "members" together')
    if "table" in values:
        table.check_identifier("table", values["table"])
    if "key" in values:
        _check_columns(table, "key", values["key"])
        if not values["key"]:
            table.report("key", "an empty array", "at least one column")
    if values.get("fill_from_log"):
        if "table" not in values:
            table.report("fill_from_log", "true", "false for a composite: no log has its value")
        elif "order_by" in table:
            table.report("fill_from_log", "true", "false for a list: no log has its value")
        elif has_key:
            reason = "with unique_checks = 0 two rows can have it, and the log tells one"
            table.report("fill_from_log", "true", f"false beside a key: {reason}")
    _check_list(table, values)
    _check_members(table, values)


def _check_list(table: Table, values: Mapping[str, Any]) -> None:
    if "order_by" not in table and "limit" not in table:
        return
    for needed in ("order_by", "limit", "key", "table"):
        if needed not in table:
            expected = '"table", "key", "order_by" and "limit" together: a list of rows'
            table.report(needed, "nothing", expected)
    if "order_by" in values:
        _check_columns(table, "order_by", tuple(parse_order(each)[0] for each in values["order_by"]))
        if not values["order_by"]:
            table.report("order_by", "an empty array", "at least one column")


def _check_members(table: Table, values: Mapping[str, Any]) -> None:
    members = values.get("members", {})
    if members == {} and "members" in values:
        table.report("members", "an empty table", "at least one table = column")
    for member, columns in members.items():
        key = f"members.{member}"
        table.check_identifier(key, member)
        for column in columns:
            if "." in column:
                way_out = "see docs/config.md#two-joins-away for the way out"
                table.report(key, shown(column), f"a column of {member} itself; {way_out}")
                return
        _check_columns(table, key, columns)
        names = values.get("key") or columns
        if len(columns) != len(names):
            found = ", ".join(columns) or "an empty array"
            table.report(key, found, f"a column for each of the key's, in their order: {', '.join(names)}")


def _check_columns(table: Table, key: str, columns: tuple[str, ...]) -> None:
    for column in columns:
        table.check_identifier(key, column)
    if len(set(columns)) < len(columns):
        table.report(key, "a column twice", "each column once")
