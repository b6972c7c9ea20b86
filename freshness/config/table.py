"""A table of ``freshness.toml`` as a section's reader sees it: it becomes settings, and all problems one report.

Each problem says the file, the key, what was found and what is expected. Unknown keys are refused, with the
nearest known one. A value that may be a secret is never shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from freshness.config.setting import describe_type, settings_of

Read = TypeVar("Read")

NAME_EXPECTED = "1 to 60 of the characters A-Z a-z 0-9 _ . -"
NAME = re.compile(r"[A-Za-z0-9_.-]{1,60}")
_IDENTIFIER = re.compile(r"[^\x00-\x1f\x7f`./\\]{1,64}")
IDENTIFIER_EXPECTED = (
    "a name of 1 to 64 characters, without its database, and without dots, backticks, slashes, backslashes and"
    " control characters: rename such a table or column"
)
_SHOWN_CHARACTERS_MAX = 60
_GONE = {
    "cache.tombstone_ttl_seconds": "there are no tombstones any more; delete the line (see cache.stripes)",
    "http.consumers": 'write [http.clients.NAME], with scopes = ["stream"] beside the rest',
}


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of one file. ``is_application``: see `load_config`. ``problems``: a line each, in their order."""

    path: Path
    environ: Mapping[str, str]
    is_application: bool
    problems: list[str] = field(default_factory=list)


class Table:
    """A table, and its place in the file. A method returns None, or leaves something out, if it reports a problem.

    ``where``: the place, empty at the top. ``found``: the keys as they stand in the file.
    """

    def __init__(self, reading: Reading, where: str, found: dict[str, Any]) -> None:
        self.reading, self.where, self.found = reading, where, found
        self._before = len(reading.problems)

    def __contains__(self, key: str) -> bool:
        return key in self.found

    @property
    def is_valid(self) -> bool:
        """Whether no problem was reported since the table was opened."""
        return len(self.reading.problems) == self._before

    @property
    def folder(self) -> Path:
        """Where relative paths start."""
        return self.reading.path.parent

    def _place(self, key: str) -> str:
        return ".".join(filter(None, (self.where, key)))

    def report(self, key: str, found: str, expected: str) -> None:
        """A problem with a key of this table; with an empty key, with the table itself."""
        place = f"{self.reading.path.name}: {self._place(key)}"
        self.reading.problems.append(f"{place}: found {found}; expected {expected}")

    def read(
        self, key: str, reader: Callable[[Table], Read | None], *, required: bool = False, expected: str = ""
    ) -> Read | None:
        """The value that a reader makes of the table under a key, which is empty if it is left out. ``expected``:
        text of the report for another value than a table."""
        where, found = self._place(key), self.found.get(key, {})
        if isinstance(found, dict) and (key in self or not required):
            return reader(Table(self.reading, where, found))
        self.report(key, kind_of(found) if key in self else "nothing", expected or f"a section [{where}]")
        return None

    def part(self, keys: Collection[str]) -> Table:
        """This table with only these keys."""
        return Table(self.reading, self.where, {key: self.found[key] for key in self.found if key in keys})

    def named_tables(self) -> Iterator[tuple[str, Table]]:
        """The tables in this one, by the names that the user gave them."""
        for name, found in self.found.items():
            self.check_name(name, name, f"a name of {NAME_EXPECTED}")
            if not isinstance(found, dict):
                self.report(name, kind_of(found), f"a table [{self.where}.{name}]")
        for name, found in self.found.items():
            if isinstance(found, dict):
                yield name, Table(self.reading, f"{self.where}.{name}", found)

    def array(self, key: str, expected: str) -> Iterator[Table]:
        """The tables of an array. ``expected``: text of the report for another value."""
        found = self.found.get(key, [])
        if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
            self.report(key, kind_of(found), expected)
            return
        for index, each in enumerate(found):
            yield Table(self.reading, f"{self.where}.{key}[{index}]", each)

    def build(self, kind: type[Read]) -> Read | None:
        """The dataclass of a section whose keys are all settings."""
        before = len(self.reading.problems)
        values = self.values(kind)
        return kind(**values) if len(self.reading.problems) == before else None

    def values(self, kind: type, *, also: Collection[str] = (), raw: Collection[str] = ()) -> dict[str, Any]:
        """The valid settings. ``also``: keys that are not settings; ``raw``: keys that are not converted here."""
        settings = list(settings_of(kind))
        self._refuse_unknown([*(item.name for item, _ in settings), *also])
        values: dict[str, Any] = {}
        for item, hint in settings:
            if item.name in raw:
                continue
            if item.name in self:
                value = self._convert(self.found[item.name], item, hint)
                if value is not None:
                    values[item.name] = value
            elif is_required(item):
                self.report(item.name, "nothing", describe_type(hint))
        return values

    def check_text(self, key: str, text: str, pattern: re.Pattern[str], expected: str) -> None:
        if not pattern.fullmatch(text):
            self.report(key, shown(text), expected)

    def check_name(self, key: str, text: str, expected: str = NAME_EXPECTED) -> None:
        self.check_text(key, text, NAME, expected)

    def check_identifier(self, key: str, text: str) -> None:
        """Check the name of a table or column of the database."""
        self.check_text(key, text, _IDENTIFIER, IDENTIFIER_EXPECTED)

    def _convert(self, value: object, item: Field[Any], hint: Any) -> Any:
        """The value as the type that the setting has, or None after a report."""
        expected = describe_type(hint)
        hint = int if hint == int | None else hint
        later = f" ({item.metadata['later']})" if item.metadata["later"] else ""
        if get_origin(hint) is Literal:
            if isinstance(value, str) and value in get_args(hint):
                return value
        elif get_origin(hint) is tuple:
            choices = get_args(get_args(hint)[0])  # none of a plain text
            if isinstance(value, list) and all(
                part in choices if choices else isinstance(part, str) for part in value
            ):
                return tuple(value)
        elif get_origin(hint) is Annotated:
            if (columns := _as_columns(value)) is not None:
                return columns
        elif get_origin(hint) is Mapping:
            found = {name: _as_columns(part) for name, part in value.items()} if isinstance(value, dict) else {}
            if isinstance(value, dict) and None not in found.values():
                return found
        elif hint is bool:
            if isinstance(value, bool):
                return value
        elif hint in (int, float):
            minimum, maximum = item.metadata["bounds"]
            expected += f" from {minimum:_} to {maximum:_}"
            is_number = type(value) is int or (hint is float and type(value) is float)
            if is_number and minimum <= value <= maximum:  # NaN is in no range
                return hint(value)
        elif isinstance(value, str):
            if value.strip():
                return value
            expected += " that is not empty"
        self.report(item.name, kind_of(value) if item.metadata["is_secret"] else shown(value), expected + later)
        return None

    def _refuse_unknown(self, known: Collection[str]) -> None:
        for key in self.found:
            if key in known:
                continue
            if gone := _GONE.get(f"{self.where}.{key}"):
                self.report(key, "a setting of a previous release", f"none: {gone}")
            elif nearest := get_close_matches(key, known, n=1, cutoff=0.5):
                self.report(key, "an unknown key", f'a known one; did you mean "{nearest[0]}"?')
            else:
                self.report(key, "an unknown key", f"one of {', '.join(sorted(known))}")


def _as_columns(value: object) -> tuple[str, ...] | None:
    """The names of columns: one text, or an array of them. None for anything else."""
    names: list[Any] = value if isinstance(value, list) else [value]
    return tuple(names) if all(isinstance(name, str) for name in names) else None


def is_required(item: Field[Any]) -> bool:
    has_default = item.default is not MISSING or item.default_factory is not MISSING
    return not has_default and item.metadata.get("default_text") is None


def shown(value: object) -> str:
    """A found value for a message; only its kind if it is not a scalar or may hold a password."""
    if isinstance(value, str):
        if "@" in value or "://" in value:
            return "a text that may hold a password"
        return repr(value[:_SHOWN_CHARACTERS_MAX]) + ("..." if len(value) > _SHOWN_CHARACTERS_MAX else "")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    return kind_of(value)


def kind_of(value: object) -> str:
    """The kind of a value in TOML's words, without the value."""
    kinds = {str: "a text", bool: "a boolean", int: "a number", float: "a number", list: "an array"}
    return kinds.get(type(value), "a table" if isinstance(value, dict) else "a date or time")
