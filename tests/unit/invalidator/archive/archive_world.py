"""An archive with a clock and objects of its own, and messages for it. For tests of the archive and of replay."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from freshness.config.config import Config, load_config
from freshness.database.sharding import keyspace_id
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.objects.keyfinder import KeyFinder
from freshness.objects.registry import ObjectDefinition, build_registry
from freshness.position import MysqlGtidSet
from freshness.position.token import EventToken
from freshness.stream.source import RowChange, Transaction
from invalidator.archive.reader import open_archive
from invalidator.archive.writer import ArchiveWriter, RotationPolicy
from invalidator.binlog.rows.layout import Layout
from invalidator.stream.layout_book import LayoutBook
from invalidator.stream.message import StreamMessage

SOURCE: Final = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
NODES: Final = ("127.0.0.1:21", "127.0.0.1:22")
CONFIG: Final = f"""[cache]
nodes = ["{NODES[0]}", "{NODES[1]}"]
namespace = "shop"
stripes = 1024
[keyspaces.shop]
flavor = "mysql"
[[keyspaces.shop.shards]]
primary = "mysql://app:s3cr3t@127.0.0.1:1/shop"
[objects.customer]
table = "customers"
[objects.profile]
key = "customer_id"
members = {{ customers = "id", orders = "customer_id" }}
"""
_COLUMNS: Final = frozenset(("id", "v"))
NOW_US: Final = 1_763_700_000_000_000


def make_config(folder: Path, text: str = CONFIG) -> Config:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "freshness.toml"
    path.write_text(text)
    return load_config(path, {})


def make_registry(config: Config) -> dict[str, ObjectDefinition]:
    """All keys are integers: ``id``, or as the configuration names them."""

    def find_columns(_: str, __: str, names: tuple[str, ...], *___: object) -> tuple[KeyColumn, ...]:
        return tuple(KeyColumn(name, ColumnKind.INTEGER, "", 0) for name in names or ("id",))

    return build_registry(config, find_columns, keyspace_id)


def token(number: int, shard: str = "-", *, epoch: int = 1, everything: bool = False) -> EventToken:
    position = MysqlGtidSet.of(SOURCE, number) if number else MysqlGtidSet()
    if everything and number:
        position = MysqlGtidSet.parse(f"{SOURCE}:1-{number}")
    return EventToken(f"shop/{shard}", shard, epoch, NOW_US + number, position)


def start(number: int, shard: str = "-") -> dict[str, EventToken]:
    return {f"shop/{shard}": token(number, shard, everything=True)}


def message(number: int, *changes: RowChange, shard: str = "-", epoch: int = 1, **options: Any) -> StreamMessage:
    place = {name: options.pop(name) for name in ("first_row", "is_last") if name in options}
    row_numbers = options.pop("row_numbers", None)
    own = token(number, shard, epoch=epoch)
    resume = token(number if place.get("is_last", True) else number - 1, shard, epoch=epoch, everything=True)
    transaction = Transaction(own.position, own.timestamp_us, changes, **place, **options)
    return StreamMessage(
        "shop", shard, own, transaction, {own.lineage: resume}, own.timestamp_us, row_numbers=row_numbers, **place
    )


class World:
    """``begins_at``: number of the transaction after which a new archive begins. ``is_reader``: only reads."""

    def __init__(
        self,
        folder: Path,
        policy: RotationPolicy | None = None,
        *,
        begins_at: int = 0,
        is_reader: bool = False,
        config: str = CONFIG,
    ) -> None:
        self.folder = folder
        self.config = config
        self.begins_at = begins_at
        self.policy = policy or RotationPolicy()
        self.now = 1000.0
        self.now_us = NOW_US
        if not is_reader:
            self.reopen()

    def reopen(self) -> None:
        names = {"customers": Layout(("id",), _COLUMNS, _COLUMNS)}
        self.writer = ArchiveWriter(
            self.folder,
            "shop",
            KeyFinder(make_registry(make_config(self.folder.parent / "config", self.config))),
            LayoutBook(lambda _: names),
            self.policy,
            tables=("customers",),
            clock=lambda: self.now,
            now_us=lambda: self.now_us,
        )
        self.writer.begin(start(self.begins_at))

    def read(self) -> list[StreamMessage]:
        return [each for lineage in open_archive(self.folder) for each in lineage.messages()]

    def close(self) -> None:
        self.writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
