"""The schema of freshness.toml for editors: right files pass, wrong keys and values do not."""

from __future__ import annotations

import re
import tomllib
from datetime import date
from typing import Any

import jsonschema
import pytest

from docs.generate import Setting, describe_settings
from freshness.config.schema import describe_file

WHOLE = """
[cache]
nodes = ["127.0.0.1:11211"]
namespace = "shop"
[keyspaces.NAME]
flavor = "mysql"
sharding = { column = "id", function = "hash" }
[[keyspaces.NAME.shards]]
primary = "mysql://app@127.0.0.1:3306/shop"
[[keyspaces.NAME.shards.skip]]
gtid = "0-1-2"
reason = "of a test"
[objects.NAME]
table = "customers"
[http.clients.NAME]
token_file = "token"
scopes = ["read"]
[stream]
[archive]
[history]
"""
"""With every section."""

SECTIONS = sorted({setting.key.rpartition(".")[0] for setting in describe_settings()})


def find_errors(document: dict[str, Any]) -> list[tuple[str, str]]:
    """(place, broken keyword) of each breach of the schema."""
    errors = jsonschema.Draft4Validator(describe_file()).iter_errors(document)
    return [(error.json_path.removeprefix("$").lstrip("."), error.validator) for error in errors]


def find_section(document: dict[str, Any], path: str) -> dict[str, Any]:
    """The table at a place in a document with every section."""
    for part in filter(None, path.split(".")):
        document = document[part]
        document = document[0] if isinstance(document, list) else document
    return document


def errors_with(key: str, value: Any) -> list[tuple[str, str]]:
    """The breaches of a right file in which this setting has this value."""
    document = tomllib.loads(WHOLE)
    section, _, name = key.rpartition(".")
    find_section(document, section)[name] = value
    return [(place.replace("[0]", ""), keyword) for place, keyword in find_errors(document)]


def test_it_is_a_schema_and_takes_a_file_with_every_section() -> None:
    jsonschema.Draft4Validator.check_schema(describe_file())
    assert find_errors(tomllib.loads(WHOLE)) == []


@pytest.mark.parametrize("setting", describe_settings(), ids=lambda setting: setting.key)
def test_each_setting_takes_its_default_and_no_date(setting: Setting) -> None:
    ((place, keyword),) = errors_with(setting.key, date(2026, 1, 1))
    assert place == setting.key
    assert keyword == {"text or array of text": "anyOf"}.get(
        setting.type, "enum" if setting.type[0] == '"' else "type"
    )
    if re.fullmatch(r'".+"|\[]|[\d.]+|true|false', setting.default):
        assert errors_with(setting.key, tomllib.loads(f"default = {setting.default}")["default"]) == []


@pytest.mark.parametrize("section", SECTIONS)
def test_a_key_that_no_section_knows_is_refused(section: str) -> None:
    assert [keyword for _, keyword in errors_with(f"{section}.lease_secnods", 3)] == ["additionalProperties"]


@pytest.mark.parametrize("setting", [one for one in describe_settings() if one.default == "required"], ids=str)
def test_a_key_that_is_required_is_missed(setting: Setting) -> None:
    document = tomllib.loads(WHOLE)
    section, _, name = setting.key.rpartition(".")
    del find_section(document, section)[name]
    assert [keyword for _, keyword in find_errors(document)] == ["required"]


@pytest.mark.parametrize("missing", ["cache", "keyspaces", "keyspaces.NAME.shards"])
def test_a_section_that_is_required_is_missed(missing: str) -> None:
    document = tomllib.loads(WHOLE)
    section, _, name = missing.rpartition(".")
    del find_section(document, section)[name]
    assert [keyword for _, keyword in find_errors(document)] == ["required"]


@pytest.mark.parametrize(
    ("key", "value", "keyword"),
    [
        ("cache.lease_seconds", 1, "minimum"),
        ("cache.lease_seconds", 3601, "maximum"),
        ("cache.lease_seconds", 3.5, "type"),
        ("cache.lease_seconds", True, "type"),
        ("cache.compress_above_bytes", 63, "minimum"),
        ("cache.max_staleness_seconds", "10s", "type"),
        ("cache.max_staleness_seconds", float("inf"), "maximum"),
        ("cache.backend", "memcache", "enum"),
        ("cache.nodes", "127.0.0.1:11211", "type"),
        ("cache.nodes", [11211], "type"),
        ("cache.namespace", " ", "pattern"),
        ("http.clients.NAME.scopes", ["write"], "enum"),
        ("keyspaces.NAME.shards.primary", "", "pattern"),
        ("keyspaces.NAME.shards", {}, "type"),
        ("objects.NAME.key", [1], "anyOf"),
        ("objects.NAME.members", {"orders": 1}, "anyOf"),
        ("objects.a b", {}, "additionalProperties"),
        ("stream", [], "type"),
    ],
)
def test_a_wrong_value_is_refused(key: str, value: Any, keyword: str) -> None:
    assert [keyword for _, keyword in errors_with(key, value)] == [keyword]


def test_a_setting_takes_each_form_of_its_type() -> None:
    for value in ("id", ["id", "kind"]):
        assert errors_with("objects.NAME.key", value) == []
        assert errors_with("objects.NAME.members", {"orders": value}) == []
    assert errors_with("cache.max_staleness_seconds", 10) == []
    assert errors_with("http.clients.NAME.scopes", ["read", "stream"]) == []
