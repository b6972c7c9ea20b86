"""What a consumer asks for of each row, and may see of it."""

from __future__ import annotations

import pytest

from freshness.errors import FormatError
from invalidator.stream.selection import WHOLE, Selection, read_names

ROW = {"id": 1, "email": "a@b", "note": None}


@pytest.mark.parametrize(
    ("selection", "left"),
    [
        (WHOLE, {"id", "email", "note"}),
        (Selection(("id",)), {"id"}),
        (Selection(("customers.email", "orders.note")), {"email"}),
        (Selection(("orders.*",)), set()),
        (Selection(("*.id", "n*")), {"id", "note"}),
        (Selection(hidden=("email",)), {"id", "note"}),
        (Selection(hidden=("orders.email",)), {"id", "email", "note"}),
        (Selection(("email", "id"), hidden=("customers.*mail",)), {"id"}),
        (Selection(images="keys"), {"id"}),
        (Selection(("note",), images="keys"), {"id"}),
        (Selection(hidden=("id",), images="keys"), set()),
    ],
)
def test_an_image_is_cut(selection: Selection, left: set[str]) -> None:
    assert selection.cut_image("customers", ROW, ["id"]) == {name: ROW[name] for name in ROW if name in left}
    assert selection.cut_image("customers", None, ["id"]) is None


def test_a_row_without_a_key_comes_whole_where_keys_are_asked_for() -> None:
    assert Selection(images="keys").cut_image("customers", ROW, ()) == ROW
    assert Selection(hidden=("note",), images="keys").cut_image("customers", ROW, ()) == {"id": 1, "email": "a@b"}


def test_a_key_is_whole_or_none() -> None:
    key = {"shop": 1, "id": 2}
    assert Selection(("note",)).cut_key("customers", key) == key
    assert Selection(hidden=("shop",)).cut_key("customers", key) is None
    assert Selection(hidden=("orders.shop",)).cut_key("customers", key) == key
    assert WHOLE.cut_key("customers", None) is None


def test_names_stand_between_commas() -> None:
    assert read_names(None, "tables") == ()
    assert read_names("a, b*", "tables") == ("a", "b*")
    for wrong in ("", " ", "a,,b", "a,"):
        with pytest.raises(FormatError, match=r"tables .* has an empty name"):
            read_names(wrong, "tables")
