"""The part of each change that a consumer of the update stream asks for, or may see: columns, and how much of a row.

Used by ``invalidator.stream.json_lines``. The sources have left other tables out before. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from freshness.errors import FormatError
from freshness.stream.schema import TableSchema
from freshness.stream.tables import compile_patterns

Images: TypeAlias = Literal["full", "keys"]

Row: TypeAlias = Mapping[str, object]


def _compile(names: Iterable[str]) -> Callable[[str, str], bool]:
    """Whether one of the names is that of a column of a table."""
    match = compile_patterns(name if "." in name else f"*.{name}" for name in names).match
    return lru_cache(lambda table, column: match(f"{table}.{column}") is not None)


@dataclass(frozen=True, slots=True)
class Selection:
    """``columns``: names and patterns, ``COLUMN`` in every table or ``TABLE.COLUMN`` in some; empty for all of them.
    ``hidden``: such names, which are left out whatever is asked for. ``images``: "keys" leaves the primary key alone
    in both images, and whole rows of a table without one.

    The key of a row is always sent, unless one of its columns is hidden.
    """

    columns: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    images: Images = "full"
    _is_shown: Callable[[str, str], bool] = field(init=False, repr=False, compare=False)
    _is_hidden: Callable[[str, str], bool] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        shown = _compile(self.columns or ("*",))
        hidden = _compile(self.hidden)
        object.__setattr__(self, "_is_hidden", hidden)
        object.__setattr__(self, "_is_shown", lru_cache(lambda *name: shown(*name) and not hidden(*name)))

    def cut_image(self, table: str, image: Row | None, key: Iterable[str]) -> Row | None:
        """``key``: the names of the primary key's columns, empty if there is none or it is unknown."""
        if image is None or not (self.columns or self.hidden or self.images == "keys"):
            return image
        names = frozenset(key)
        if self.images == "keys" and names:
            return {name: image[name] for name in image if name in names and not self._is_hidden(table, name)}
        return {name: value for name, value in image.items() if self._is_shown(table, name)}

    def cut_key(self, table: str, key: Row | None) -> Row | None:
        """A part of a key names another row, so it is the whole or none."""
        if key is not None and any(self._is_hidden(table, name) for name in key):
            return None
        return key

    def cut_schema(self, table: str, schema: TableSchema) -> TableSchema:
        """The schema without hidden columns. It has all others, whichever are asked for: a layout has one id."""
        if not self.hidden:
            return schema
        columns = tuple(column for column in schema.columns if not self._is_hidden(table, column.name))
        is_whole = schema.key is not None and not any(self._is_hidden(table, name) for name in schema.key)
        return replace(schema, columns=columns, key=schema.key if is_whole else None)


WHOLE: Final = Selection()


def read_names(text: str | None, what: str) -> tuple[str, ...]:
    """Names between commas. Raises `FormatError` for an empty one. ``what``: how messages call them."""
    if text is None:
        return ()
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise FormatError(f"{what} {text!r} has an empty name", hint="expected NAME,NAME")
    return names
