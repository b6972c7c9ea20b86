"""From images to rows: a row as a client reads it, or nothing for the whole transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from freshness.algorithm.rule import ObjectPolicy
from freshness.config.object import ObjectConfig
from freshness.errors import SourceUnavailable
from freshness.keys.cachekey import KeyBuilder
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.objects.registry import ObjectDefinition
from freshness.position import MysqlGtidSet
from freshness.stream.source import UNREADABLE, Operation, RowChange, Shape, Transaction
from freshness.values.codec import decode_value, encode_value
from freshness.values.compression import PACKED, compressing
from invalidator.binlog.rows.layout import Layout, Layouts
from invalidator.process.row_finder import RowFinder
from invalidator.stream.layout_book import LayoutBook

LINEAGE = "shop/-"
SAME = Shape("same")
SHAPES = {"id": SAME, "hidden": SAME, "name": SAME}
LAYOUT = Layout(("id",), frozenset(SHAPES), frozenset({"id", "name"}))
POSITION = MysqlGtidSet.of("3e11fa47-71ca-11e1-9e33-c80aa9429562", 1)


def definition(name: str = "customer", column: KeyColumn | None = None, **policy: Any) -> ObjectDefinition:
    columns = (column or KeyColumn("id", ColumnKind.INTEGER),)
    return ObjectDefinition(
        ObjectConfig(name=name, keyspace="shop", table="customers", fill_from_log=True),
        replace(ObjectPolicy(name, 7, ("customers",), (LINEAGE,), 60), **policy),
        KeyBuilder("shop", name, columns),
        {"customers": columns},
    )


class Books:
    """The layouts of the primary; ``reads`` counts how often it was asked."""

    def __init__(self, layouts: Layouts | None = None) -> None:
        self.layouts = {"customers": LAYOUT} if layouts is None else layouts
        self.reads = 0

    def read(self, _: str) -> Layouts:
        self.reads += 1
        return self.layouts


def image(key: object, name: object = "x", **columns: object) -> dict[str, object]:
    return {"id": key, "hidden": 1, "name": name, **columns}


def change(
    op: Operation, before: Mapping[str, object] | None, after: Mapping[str, object] | None, table: str = "customers"
) -> RowChange:
    return RowChange(table, op, before, after, SHAPES)


ROW = {"id": 1, "name": "x"}


def transaction(*changes: RowChange, **parts: Any) -> Transaction:
    return Transaction(POSITION, 0, changes, **parts)


def find(
    *changes: RowChange, objects: tuple[ObjectDefinition, ...] = (), books: Books | None = None
) -> dict[bytes, Any]:
    """By item, the value that a reader would get."""
    definitions = {each.config.name: each for each in objects or (definition(),)}
    finder = RowFinder(LINEAGE, definitions, LayoutBook((books or Books()).read))
    rows = finder.find(transaction(*changes))
    assert all(item == row.lookup.item for item, row in rows.items())
    return {item: row.payload and decode_value(row.payload) for item, row in rows.items()}


def test_a_row_holds_the_visible_columns_in_their_order() -> None:
    found = find(change("insert", None, image(1)))
    assert found == {b"shop:customer:1": {"id": 1, "name": "x"}}
    assert list(found[b"shop:customer:1"]) == ["id", "name"]


def test_a_deleted_row_is_no_such_row() -> None:
    assert find(change("delete", image(1), None)) == {b"shop:customer:1": None}


def test_a_row_that_moves_is_gone_from_its_previous_key() -> None:
    found = find(change("update", image(1), image(2, "y")))
    assert found == {b"shop:customer:1": None, b"shop:customer:2": {"id": 2, "name": "y"}}


def test_the_last_change_of_a_key_counts() -> None:
    changes = [
        change("update", image(1), image(1, "y")),
        change("update", image(1, "y"), image(2, "y")),
        change("insert", None, image(1, "z")),
        change("delete", image(2, "y"), None),
    ]
    assert find(*changes) == {b"shop:customer:1": {"id": 1, "name": "z"}, b"shop:customer:2": None}


def test_a_row_that_takes_several_items_is_left_out_alone() -> None:
    """Its key is invalidated as any other, even if an earlier change of the same row would have fitted."""
    finder = RowFinder(
        LINEAGE, {"customer": definition()}, LayoutBook(Books().read), payload_bytes_max=len(encode_value(ROW))
    )
    changes = [change("insert", None, image(1)), change("insert", None, image(2, "longer"))]
    assert finder.find(transaction(*changes)).keys() == {b"shop:customer:1"}
    changes = [change("insert", None, image(1)), change("update", image(1), image(1, "longer"))]
    assert finder.find(transaction(*changes)) == {}
    changes = [change("insert", None, image(1, "longer")), change("update", image(1, "longer"), image(1))]
    assert finder.find(transaction(*changes)).keys() == {b"shop:customer:1"}


def test_a_row_is_compressed_as_a_reader_would() -> None:
    finder = RowFinder(LINEAGE, {"customer": definition()}, LayoutBook(Books().read), compressing(encode_value, 64))
    (row,) = finder.find(transaction(change("insert", None, image(1, "long" * 50)))).values()
    assert row.payload is not None
    assert row.payload[:1] == PACKED
    assert decode_value(row.payload) == {"id": 1, "name": "long" * 50}


def test_each_object_of_the_table_gets_the_row() -> None:
    objects = (definition(), definition("client"))
    assert find(change("insert", None, image(1)), objects=objects).keys() == {b"shop:customer:1", b"shop:client:1"}


def test_the_identity_is_that_of_the_definition() -> None:
    finder = RowFinder(LINEAGE, {"customer": definition()}, LayoutBook(Books().read))
    (row,) = finder.find(transaction(change("insert", None, image(1)))).values()
    assert row.lookup.identity == (7).to_bytes(4, "big") + b"1"


@pytest.mark.parametrize(
    "spoiled",
    [
        pytest.param(change("insert", None, {"id": 2, "name": "x"}), id="a column is left out"),
        pytest.param(change("insert", None, image(2, more=1)), id="a column that the layout lacks"),
        pytest.param(change("insert", None, image(2, UNREADABLE)), id="a value that the log does not tell"),
        pytest.param(change("update", image(2, UNREADABLE), image(2)), id="before is not told"),
        pytest.param(change("insert", None, image("no number")), id="no key of the object"),
        pytest.param(replace(change("insert", None, image(2)), shapes=None), id="no shapes"),
        pytest.param(change("insert", None, image(2, object())), id="a value that no entry can hold"),
    ],
)
def test_one_row_in_doubt_leaves_out_all(spoiled: RowChange) -> None:
    assert find(change("insert", None, image(1)), spoiled) == {}
    assert find(spoiled, change("insert", None, image(1))) == {}


def test_other_tables_are_none_of_its_business() -> None:
    other = change("insert", None, {"no": UNREADABLE}, "orders")
    assert find(other, change("insert", None, image(1))).keys() == {b"shop:customer:1"}


def test_without_the_layouts_there_are_no_rows() -> None:
    def fail(_: str) -> Layouts:
        raise SourceUnavailable("the primary is down")

    finder = RowFinder(LINEAGE, {"customer": definition()}, LayoutBook(fail))
    assert finder.find(transaction(change("insert", None, image(1)))) == {}
    assert find(change("insert", None, image(1)), books=Books({})) == {}


def test_a_key_that_is_hidden_from_clients_gives_no_row() -> None:
    hidden = Layout(("id",), frozenset(SHAPES), frozenset({"name"}))
    assert find(change("insert", None, image(1)), books=Books({"customers": hidden})) == {}


def test_an_object_whose_key_does_not_name_the_shard_is_never_told() -> None:
    spread = definition(lineages=(LINEAGE, "shop/x"))
    assert find(change("insert", None, image(1)), objects=(spread,)) == {}


def test_a_key_of_several_spellings_is_told_while_it_stays() -> None:
    loose = definition(column=KeyColumn("id", ColumnKind.STRING, collation="utf8mb4_general_ci"))
    assert not loose.builder.is_exact
    assert len(find(change("update", image("a"), image("a", "y")), objects=(loose,))) == 1
    assert find(change("delete", image("a"), None), objects=(loose,)) == {}
    assert find(change("update", image("a"), image("b")), objects=(loose,)) == {}


def test_layouts_are_read_again_after_a_raise() -> None:
    books = Books()
    finder = RowFinder(LINEAGE, {"customer": definition()}, LayoutBook(books.read))
    finder.find(transaction(change("insert", None, image(1))))
    finder.find(transaction(change("insert", None, image(2))))
    assert books.reads == 1
    changed = transaction(change("insert", None, image(3)), raised_tables=frozenset({"customers"}))
    assert finder.find(changed) == {}
    finder.find(transaction(change("insert", None, image(4))))
    assert books.reads == 2
