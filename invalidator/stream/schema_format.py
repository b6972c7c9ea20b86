"""A schema as a JSON Schema (draft 2020-12) of the rows in the lines, and as an Avro schema of the same rows.

The JSON Schema fits ``key``, ``before`` and ``after`` of every line that names the schema's id: an image may leave
columns out (``binlog_row_image``, or those that a consumer did not ask for), so none is required. The Avro record
holds whole rows. No I/O.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, TypeAlias

from freshness.stream.lines import SchemaLine, encode_line
from freshness.stream.schema import TableColumn
from freshness.values.json import INTEGER_MAX
from invalidator.charset import find_codec

SchemaFormat: TypeAlias = Literal["line", "json-schema", "avro"]

Document: TypeAlias = dict[str, Any]

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

_INTEGER_BITS: Final = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_AVRO_INT_BITS: Final = 32
_TEXTS: Final = frozenset(("char", "varchar", "tinytext", "text", "mediumtext", "longtext"))
_BASE64: Final = r"^[A-Za-z0-9+/]*={0,2}$"
_DATE: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"


def format_schema(line: SchemaLine, form: SchemaFormat) -> Document:
    """The document, ready for JSON; "line": as the stream sends it."""
    if form == "line":
        document: Document = json.loads(encode_line(line))
        return document
    return make_json_schema(line) if form == "json-schema" else make_avro_schema(line)


def make_json_schema(line: SchemaLine) -> Document:
    return {
        "$schema": DIALECT,
        "$id": f"urn:freshness:schema:{line.id}",
        "title": f"{line.keyspace}.{line.table}",
        "description": "A row of the table, as `key`, `before` and `after` of a line hold it.",
        "type": "object",
        "properties": {column.name: _describe(column) for column in line.columns},
        "additionalProperties": False,
        "x-primary-key": None if line.key is None else list(line.key),
        "x-primary-key-source": line.key_source,
    }


def _describe(column: TableColumn) -> Document:
    if column.type == "json":
        return {"x-type": "json"}  # any document; also JSON's null
    forms = [*_forms(column), _form("$unreadable", {"const": True})]
    if column.nullable:
        forms.insert(0, {"type": "null"})
    return {"anyOf": forms, "x-type": _declare(column)}


def _forms(column: TableColumn) -> list[Document]:
    """The values of a column, but for NULL and those that cannot be read."""
    bits = _INTEGER_BITS.get(column.type)
    if bits is not None:
        low, high = (0, (1 << bits) - 1) if column.unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
        return [{"type": "integer", "minimum": low, "maximum": high}]
    if column.type in _TEXTS:
        return _text_forms(column)
    found = _FORMS.get(column.type)
    # The source shows a type that has no form here as bytes, or as unreadable
    return [_BYTES] if found is None else found(column)


def _text_forms(column: TableColumn) -> list[Document]:
    if find_codec(column.charset or "") is None:
        return [_BYTES]
    text: Document = {"type": "string"}
    if column.length is not None:
        text["maxLength"] = column.length  # bytes: no text has more characters
    return [text, _form("$text", {"type": "string", "pattern": _BASE64})]


def _enum_forms(column: TableColumn) -> list[Document]:
    if column.labels is None:
        return [{"type": "string"}, _BYTES]
    return [{"enum": ["", *column.labels]}]  # "": what the server stores for a value that is not a label


def _set_forms(column: TableColumn) -> list[Document]:
    items: Document = {"enum": list(column.labels)} if column.labels is not None else {}
    return [_form("$set", {"type": "array", "items": items, "uniqueItems": True})]


def _pattern(name: str, pattern: str) -> Callable[[TableColumn], list[Document]]:
    return lambda _: [_form(name, {"type": "string", "pattern": pattern})]


def _form(name: str, value: Document) -> Document:
    return {"type": "object", "properties": {name: value}, "required": [name], "additionalProperties": False}


_BYTES: Final = _form("$bytes", {"type": "string", "pattern": _BASE64})
_FORMS: Final[Mapping[str, Callable[[TableColumn], list[Document]]]] = {
    **dict.fromkeys(("float", "double"), lambda _: [{"type": "number"}]),
    # Python's text of a Decimal has an exponent if it is small: 0E-10
    "decimal": _pattern("$decimal", r"^-?[0-9]+(\.[0-9]+)?(E[+-]?[0-9]+)?$"),
    "year": lambda _: [{"type": "integer", "minimum": 0, "maximum": 2155}],
    "bit": lambda column: [{"type": "string", "pattern": rf"^[01]{{{column.length}}}$"}],
    "date": _pattern("$date", f"^{_DATE}$"),
    **dict.fromkeys(
        ("datetime", "timestamp"),
        _pattern("$datetime", rf"^{_DATE}T[0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(\.[0-9]{{6}})?$"),
    ),
    "time": lambda _: [_form("$timedelta_us", {"type": "integer"})],
    "enum": _enum_forms,
    "set": _set_forms,
}


def _declare(column: TableColumn) -> str:
    """As in SQL, but that lengths are bytes."""
    numbers = [column.length] if column.length is not None else []
    numbers += [column.scale] if column.scale else []
    size = f"({','.join(map(str, numbers))})" if numbers else ""
    return f"{column.type}{size}{' unsigned' if column.unsigned else ''}"


_OTHER: Final = "freshness.Other"
_NOT_OF_A_NAME: Final = re.compile(r"[^A-Za-z0-9_]")


def make_avro_schema(line: SchemaLine) -> Document:
    """Every value has a branch of its own kind; ``freshness.Other`` holds one that this kind does not (unreadable,
    text that is not Unicode) as the JSON of its form in the line. A name that Avro does not allow is spelled with
    underscores; ``column`` has the column's."""
    fields: list[Document] = []
    names: set[str] = set()
    other: Document | str = {"type": "record", "name": _OTHER, "fields": [{"name": "json", "type": "string"}]}
    for column in line.columns:
        branches: list[Any] = [_avro_type(column), other]
        other = _OTHER  # a type is defined at its first mention
        if column.nullable:
            branches.insert(0, "null")
        name = _find_name(column.name, names)
        names.add(name)
        fields.append({"name": name, "type": branches, "column": column.name, "sql": _declare(column)})
    return {
        "type": "record",
        "name": _find_name(line.table, set()),
        "namespace": f"freshness.{_find_name(line.keyspace, set())}",
        "doc": f"A whole row of {line.keyspace}.{line.table}, schema {line.id}.",
        "schema_id": line.id,
        "primary_key": None if line.key is None else list(line.key),
        "primary_key_source": line.key_source,
        "fields": fields,
    }


def _avro_type(column: TableColumn) -> Any:
    bits = _INTEGER_BITS.get(column.type)
    if bits is not None:
        if column.unsigned and bits > _AVRO_INT_BITS:
            return _avro_decimal(len(str(INTEGER_MAX)), 0)
        return "int" if bits + column.unsigned <= _AVRO_INT_BITS else "long"
    match column.type:
        case "year":
            return "int"
        case "float" | "double":
            return column.type
        case "decimal":
            assert column.length is not None, "both sources tell the digits"
            return _avro_decimal(column.length, column.scale or 0)
        case "date":
            return {"type": "int", "logicalType": "date"}
        case "datetime":
            return {"type": "long", "logicalType": "local-timestamp-micros"}
        case "timestamp":
            return {"type": "long", "logicalType": "timestamp-micros"}
        case "time":
            return "long"  # microseconds: it may be negative, and longer than a day
        case "bit" | "json":
            return "string"
        case "enum":
            return "string"  # its labels may be other than the names that Avro allows
        case "set":
            return {"type": "array", "items": "string"}
    return "string" if column.type in _TEXTS and find_codec(column.charset or "") is not None else "bytes"


def _avro_decimal(precision: int, scale: int) -> Document:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def _find_name(name: str, taken: set[str]) -> str:
    plain = _NOT_OF_A_NAME.sub("_", name)
    if not plain or plain[0].isdigit():
        plain = f"_{plain}"
    found, number = plain, 2
    while found in taken:
        found, number = f"{plain}_{number}", number + 1
    return found
