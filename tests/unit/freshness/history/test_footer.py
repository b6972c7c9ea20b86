"""The footer of an archive file: read back as written; if it is unusable, its file is refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from freshness.errors import FormatError
from freshness.history.footer import ArchiveFooter, parse_footer, read_footer
from freshness.position import MysqlGtidSet
from freshness.position.token import EventToken

SOURCE = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def token(last: int) -> EventToken:
    return EventToken("shop/-80", "-80", 3, 7, MysqlGtidSet.parse(f"{SOURCE}:1-{last}"))


FOOTER = ArchiveFooter("shop", token(4), token(9), ("a", "order_*"))
SORTED = ArchiveFooter("shop", token(4), token(9), (), is_sorted_by_key=True)


def encoded(footer: ArchiveFooter, **changed: str | None) -> dict[bytes, bytes]:
    """The metadata, with some of its keys changed or left out."""
    metadata = footer.to_metadata() | {f"freshness.{name}": text for name, text in changed.items()}
    return {key.encode(): text.encode() for key, text in metadata.items() if text is not None}


@pytest.mark.parametrize("footer", [FOOTER, SORTED])
def test_a_footer_is_read_back(footer: ArchiveFooter, tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata(footer.to_metadata()), path)
    assert read_footer(path) == footer
    assert read_footer(str(path), pa.fs.LocalFileSystem()) == footer


def test_the_keys_are_the_documented_ones() -> None:
    assert FOOTER.to_metadata() == {
        "freshness.kind": "changes",
        "freshness.version": "1",
        "freshness.keyspace": "shop",
        "freshness.shard": "-80",
        "freshness.before": str(token(4)),
        "freshness.resume": str(token(9)),
        "freshness.tables": '["a", "order_*"]',
    }
    assert SORTED.to_metadata()["freshness.order"] == "keys"


def test_a_footer_tells_which_tables_the_file_carries() -> None:
    assert [FOOTER.carries(name) for name in ("a", "ab", "order_x")] == [True, False, True]
    assert not SORTED.carries("a")


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"kind": "actions"}, "kind 'actions' version '1'"),
        ({"version": "99"}, "kind 'changes' version '99'"),
        ({"kind": None}, "kind '' version '1'"),
        ({"keyspace": None}, "names no position"),
        ({"before": None}, "names no position"),
        ({"tables": None}, "names no tables"),
        ({"tables": "[1]"}, "names no tables"),
        ({"resume": ""}, "names no position"),
        ({"resume": "ft9.x"}, "is not an event token"),
    ],
)
def test_a_footer_that_will_not_do_is_refused_with_its_file(changed: dict[str, str | None], problem: str) -> None:
    with pytest.raises(FormatError, match=f"some.parquet: .*{problem}") as caught:
        parse_footer("some.parquet", encoded(FOOTER, **changed))
    assert caught.value.hint


def test_a_file_that_is_cut_or_no_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    with pytest.raises(FormatError, match="not readable as Parquet"):
        read_footer(path)
    path.write_bytes(b"PAR1")
    with pytest.raises(FormatError, match="not readable as Parquet"):
        read_footer(path)
    with pytest.raises(FormatError, match="kind ''"):
        parse_footer(path, None)
