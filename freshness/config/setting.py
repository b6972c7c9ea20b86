"""A setting: a field of a frozen dataclass with its default, its bounds and its meaning for docs/config.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, field, fields
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

Columns: TypeAlias = Annotated[tuple[str, ...], "text or array of text"]
"""Names of columns. The file may have one name without the brackets of an array."""


def setting(
    doc: str,
    default: Any = MISSING,
    *,
    bounds: tuple[float, float] | None = None,
    default_text: str | None = None,
    default_factory: Any = MISSING,
    later: str = "",
    is_secret: bool = False,
) -> Any:
    """A field that is a key of the file. ``bounds``: the least and the greatest number. ``later``: a value that users
    expect and this version does not support. ``is_secret``: no message or repr may show the value."""
    metadata = {"doc": doc, "bounds": bounds, "default_text": default_text, "later": later, "is_secret": is_secret}
    return field(default=default, default_factory=default_factory, metadata=metadata, repr=not is_secret)


def settings_of(kind: type) -> Iterator[tuple[Field[Any], Any]]:
    """The fields of a dataclass that are keys of the file, each with its type."""
    hints = get_type_hints(kind, include_extras=True)
    return ((item, hints[item.name]) for item in fields(kind) if "doc" in item.metadata)


def describe_type(hint: Any) -> str:
    """A type in words for people who write TOML."""
    if get_origin(hint) is Literal:
        return " | ".join(f'"{choice}"' for choice in get_args(hint))
    arguments = [argument for argument in get_args(hint) if argument not in (type(None), ...)]
    if get_origin(hint) is Annotated:
        return str(arguments[1])
    if get_origin(hint) is tuple:
        return f"array of {describe_type(arguments[0])}"
    if get_origin(hint) is Mapping:
        return f"table of {describe_type(arguments[1])}"
    if arguments:
        return describe_type(arguments[0])
    kinds = {int: "whole number", float: "number", bool: "true | false", str: "text"}
    return "URL" if hasattr(hint, "parse") else kinds[hint]
