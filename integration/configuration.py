"""Writes ``freshness.toml`` for a system on private servers, for tests, the demo and the benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

CUSTOMER: Final = '[objects.customer]\ntable = "customers"\n'
STRIPES: Final = 1024
"""Of each shard on each node, in tests: they start many invalidators, and each puts all stripes in their place."""

PROFILE: Final = '[objects.profile]\nkey = "customer_id"\nmembers = { customers = "id", orders = "customer_id" }\n'


def write_config(
    folder: Path,
    flavor: str,
    primary: str,
    nodes: Sequence[str],
    *,
    replicas: Sequence[str] = (),
    shard: Mapping[str, Any] = {},
    objects: str = CUSTOMER,
    cache: Mapping[str, Any] = {},
    stream: Mapping[str, Any] = {},
    stripes: int | None = STRIPES,
    extra: str = "",
) -> Path:
    """Write the file and return its path. ``primary`` and ``replicas`` are URLs, ``nodes`` addresses.

    ``shard``, ``cache`` and ``stream`` are keys of those sections, else as by default; ``stripes`` None: as by
    default; ``extra`` is appended.
    """
    path = folder / "freshness.toml"
    path.write_text(
        _section("cache", _cache_section(nodes, stripes, cache))
        + _section("keyspaces.shop", {"flavor": flavor})
        + _section("[keyspaces.shop.shards]", {"primary": primary, "replicas": replicas, **shard})
        + _section("stream", stream)
        + objects
        + extra
    )
    return path


def write_sharded_config(
    folder: Path,
    flavor: str,
    shards: Sequence[Mapping[str, Any]],
    nodes: Sequence[str],
    *,
    column: str,
    topology: int = 1,
    function: str = "hash",
    objects: str = CUSTOMER,
    cache: Mapping[str, Any] = {},
    stream: Mapping[str, Any] = {},
) -> Path:
    """The same for a sharded keyspace; ``shards``: the keys of each shard's table."""
    path = folder / "freshness.toml"
    text = f"topology = {topology}\n" + _section("cache", _cache_section(nodes, STRIPES, cache))
    text += _section("keyspaces.shop", {"flavor": flavor})
    text += f'sharding = {{ column = "{column}", function = "{function}" }}\n'
    text += "".join(_section("[keyspaces.shop.shards]", shard) for shard in shards)
    # In one piece: a process that loads it again must not find half of it
    draft = path.with_suffix(".draft")
    draft.write_text(text + _section("stream", stream) + objects)
    return draft.replace(path)


def _cache_section(nodes: Sequence[str], stripes: int | None, cache: Mapping[str, Any]) -> dict[str, Any]:
    few = {} if stripes is None else {"stripes": stripes}
    return {"nodes": nodes, "namespace": "shop", **few, **cache}


def _section(name: str, settings: Mapping[str, Any]) -> str:
    return f"[{name}]\n" + "".join(f"{key} = {_toml_value(value)}\n" for key, value in settings.items())


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, Sequence):
        return f"[{', '.join(map(_toml_value, value))}]"
    return str(value)
