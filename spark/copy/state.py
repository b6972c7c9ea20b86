"""The state of a copy: its published tables, and the position up to which the stream is applied.

A copy in a folder has it as ``state.json``, which is replaced as a whole, and names for each table the folder that
readers get. A copy in a database has it as a row. Programs that use a copy in a folder call `read_copy`; the targets,
`spark.copy.folder` and `spark.copy.database`, read and write the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from freshness.errors import ConfigError, FormatError, SourceUnavailable
from freshness.history.durable import publish
from freshness.position import parse_position
from spark.copy.table import KEY

STATE: Final = "state.json"
PARQUET: Final = "parquet"
VERSION: Final = 4
GENERATIONS_KEPT: Final = 2
"""The published one and the one before it, for those that read it."""


@dataclass(slots=True)
class TableState:
    """``folder``: dump being made, as the target names it; ``published``: dump that readers get, "" for none yet.
    ``until``: by lineage, the head after the dump, before which it is not published. ``needs_dump``: not dumped yet,
    or changed as a whole. ``layout``: the columns of the dump, as `spark.copy.table.CopyTable.to_json` gives them."""

    needs_dump: bool = True
    folder: str = ""
    published: str = ""
    until: dict[str, str] = field(default_factory=dict)
    generation: int = 0
    layout: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class CopyState:
    """``begin``: by lineage the token from which the stream is applied; ``position``: up to where. ``former``: by
    lineage of a shard that is not copied, the end of what the archive had of it when the copy began; more of it ends
    the copy."""

    keyspace: str
    flavor: str
    begin: dict[str, str]
    position: dict[str, str]
    tables: dict[str, TableState]
    former: dict[str, str] = field(default_factory=dict)
    version: int = VERSION

    def contains(self, position: Mapping[str, str]) -> bool:
        """True if the stream was applied up to there, in every lineage."""
        return all(
            parse_position(self.flavor, self.position.get(lineage, "")).contains(parse_position(self.flavor, text))
            for lineage, text in position.items()
        )


def decode_state(text: str, where: str) -> CopyState:
    """Read what `encode_state` gave. ``where`` it was found. Raises `FormatError`."""
    try:
        found = json.loads(text)
        if found["version"] != VERSION:
            raise FormatError(
                f"{where}: version {found['version']}",
                hint=f"this program reads version {VERSION}; begin anew in another folder or database",
            )
        tables = {name: TableState(**each) for name, each in found.pop("tables").items()}
        return CopyState(tables=tables, **found)
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(
            f"{where} is no state of a copy: {error}", hint="move it away and run the copy again: it starts over"
        ) from error


def encode_state(state: CopyState) -> str:
    return json.dumps(asdict(state), indent=1)


def read_state(out: Path) -> CopyState | None:
    """None if there is none yet. Raises `FormatError`."""
    path = out / STATE
    try:
        return decode_state(path.read_text(), str(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FormatError(f"{path} cannot be read: {error}", hint="is it the folder of a copy?") from error


def write_state(out: Path, state: CopyState) -> None:
    """As a whole, or not at all."""
    draft = out / f".{STATE}.draft"
    draft.write_text(encode_state(state))
    publish(draft, out / STATE)


def read_copy(session: SparkSession, out: str | Path, table: str, file_format: str = PARQUET) -> DataFrame:
    """The published copy of a table. Raises `ConfigError` if there is none."""
    published = find_published(Path(out), table).tables[table].published
    return session.read.format(file_format).load(str(Path(out) / published)).drop(KEY)


def find_published(out: Path, table: str) -> CopyState:
    """The state of a copy that has published the table. Raises `ConfigError` if there is none."""
    state = read_state(out)
    if state is None or table not in state.tables or not state.tables[table].published:
        raise ConfigError(
            f"{out} has no published copy of {table}", hint="run `freshness-spark copy` until it ends with 0"
        )
    return state


def require_kept(out: Path, published: str) -> None:
    """Raises `SourceUnavailable` if a generation of a table may have been removed while it was read, because there
    are too many newer ones. ``published``: its folder, as the state names it."""
    folder = out / published
    newer = [path for path in folder.parent.glob("0*") if path.name > folder.name]
    if len(newer) >= GENERATIONS_KEPT or not folder.is_dir():
        raise SourceUnavailable(
            f"{folder} was replaced {len(newer)} times while it was read", hint="run it again, with the newest copy"
        )
