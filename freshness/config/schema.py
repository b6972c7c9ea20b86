"""The JSON Schema of ``freshness.toml``, for editors. `load_config` also checks settings together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

from freshness.config.access import NodeLogin
from freshness.config.config import Config
from freshness.config.login import LoginConfig
from freshness.config.setting import settings_of
from freshness.config.table import NAME, is_required

_TEXT: Final = {"type": "string"}
_NAMES: Final = {"type": "array", "items": _TEXT}


def describe_file() -> dict[str, Any]:
    """The schema of a whole file, in draft 4, which editors of TOML know."""
    return {"$schema": "http://json-schema.org/draft-04/schema#", "title": "freshness.toml", **_section(Config)}


def _section(kind: type) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    required = []
    settings = {item.name: hint for item, hint in settings_of(kind)}
    hints = get_type_hints(kind)
    for item in fields(kind):
        name, hint = item.name, hints[item.name]
        if name in settings:
            properties[name] = _setting(item, settings[name])
        elif hint is NodeLogin:
            properties |= _section(LoginConfig)["properties"]
        elif inner := _inner(hint):
            properties[name] = inner
        if name in properties and is_required(item):
            required.append(name)
    section = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**section, "required": required} if required else section


def _inner(hint: Any) -> dict[str, Any] | None:
    """The schema of the sections that a field of this type holds, if any: by name, as an array, or one."""
    kinds = [kind for kind in (hint, *get_args(hint)) if isinstance(kind, type) and is_dataclass(kind)]
    if not kinds:
        return None
    section = _section(kinds[0])
    if get_origin(hint) is Mapping:
        return {"type": "object", "patternProperties": {f"^{NAME.pattern}$": section}, "additionalProperties": False}
    return {"type": "array", "items": section} if get_origin(hint) is tuple else section


def _setting(item: Field[Any], hint: Any) -> dict[str, Any]:
    schema = {"description": item.metadata["doc"], **_value(hint)}
    if item.metadata["bounds"]:
        schema["minimum"], schema["maximum"] = item.metadata["bounds"]
    if item.metadata["default_text"] is None and item.default not in (MISSING, None, "", ()):
        schema["default"] = item.default
    return schema


def _value(hint: Any) -> dict[str, Any]:
    """The schema of what ``Table`` converts to this type."""
    if get_origin(hint) is Annotated:
        return {"anyOf": [_TEXT, _NAMES]}
    if get_origin(hint) is Literal:
        return {"enum": [*get_args(hint)]}
    if get_origin(hint) is tuple:
        part = get_args(hint)[0]
        return {"type": "array", "items": _value(part)} if get_origin(part) is Literal else _NAMES
    if get_origin(hint) is Mapping:
        return {"type": "object", "additionalProperties": _value(get_args(hint)[1])}
    kind = next(kind for kind in (*get_args(hint), hint) if kind is not type(None))
    kinds = {int: "integer", float: "number", bool: "boolean"}
    return {"type": kinds[kind]} if kind in kinds else {"type": "string", "pattern": r"\S"}
