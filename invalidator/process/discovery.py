"""The nodes that ``cache.nodes_from`` names: lines of a file, or SRV records of the DNS.

They are compared with ``cache.nodes`` and become part of it by `invalidator nodes discover` alone. If each process
took them when it starts, those that start at different times would have different rings.
"""

from __future__ import annotations

from pathlib import Path

from freshness.config.config import Config
from freshness.config.hostport import parse_host_port
from freshness.errors import ConfigError, NodeUnavailable, missing_package


def compare_nodes(config: Config) -> tuple[list[str], list[str]]:
    """(nodes that the source names and ``cache.nodes`` lacks, nodes of ``cache.nodes`` that the source lacks).

    Raises `ConfigError` for a source that is not as expected, and `NodeUnavailable` if the DNS does not answer.
    """
    source, present = config.cache.nodes_from, config.cache.nodes
    kind, _, place = source.partition(":")
    found = _read_lines(config.path.parent / place) if kind == "file" else _ask(place)
    spelled = {node.lower(): node for node in present}
    named = [spelled.get(node.lower(), node.lower()) for node in found]
    for node in named:
        try:
            parse_host_port(node)
        except ConfigError as error:
            raise ConfigError(f"{source} names {node!r}: {error.message}", hint="expected HOST:PORT") from None
        if named.count(node) > 1:
            raise ConfigError(f"{source} names {node} twice", hint="name each node once")
    if not named:
        raise ConfigError(f"{source} names no node", hint="nothing is changed; see what writes it")
    return [node for node in named if node not in present], [node for node in present if node not in named]


def _read_lines(path: Path) -> list[str]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cache.nodes_from: {error}", hint="it names a file of text, HOST:PORT in each line"
        ) from None
    stripped = (line.partition("#")[0].strip() for line in lines)
    return [line for line in stripped if line]


def _ask(name: str) -> list[str]:
    try:
        import dns.exception
        import dns.resolver
    except ModuleNotFoundError as error:
        raise missing_package(error, "srv") or error from None
    try:
        answer = dns.resolver.resolve(name, "SRV")
    except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer) as error:
        raise ConfigError(f"srv:{name}: {error}", hint="see cache.nodes_from; it is a whole name") from None
    except dns.exception.DNSException as error:
        raise NodeUnavailable(f"srv:{name}: {error}", hint="ask again when the DNS answers") from None
    return [f"{record.target.to_text().rstrip('.')}:{record.port}" for record in answer]
