"""The command line of the jobs: argparse, the options of several jobs, and no option is empty."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from freshness.config.config import Config
from freshness.errors import ConfigError


def parse_arguments(parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the options of a job, and those of all jobs. An empty option ends the program with 2: an unset variable
    of the shell would mean the default, or the current folder."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--master", help="the Spark master; spark-submit's, or local[*]")
    parsed = parser.parse_args(arguments)
    for name, value in vars(parsed).items():
        if isinstance(value, str) and not value.strip():
            parser.error(f"{name.replace('_', '-')} is empty: is a variable of the shell not set?")
    return parsed


def add_source(parser: argparse.ArgumentParser) -> None:
    """The options of a job that follows the update stream."""
    parser.add_argument("--archive", help="follow an archive: a folder or URI")
    parser.add_argument("--url", help="follow the service of `invalidator run`, as http://HOST:PORT")
    parser.add_argument("--token-file", help="the access token of the service")
    parser.add_argument("--keyspace", help="which one, if there are several")


def read_source(options: argparse.Namespace) -> dict[str, str]:
    """`add_source` as options of the update stream, without the keyspace. Raises `ConfigError`."""
    if bool(options.archive) == bool(options.url):
        raise ConfigError("follow what?", hint="give either --archive or --url")
    if options.archive:
        return {"path": options.archive}
    return {"url": options.url} | ({"token_file": options.token_file} if options.token_file else {})


def choose_keyspace(config: Config, name: str | None) -> str:
    """The keyspace of this name; without a name, the only one. Raises `ConfigError`."""
    chosen = name or (next(iter(config.keyspaces)) if len(config.keyspaces) == 1 else "")
    if chosen not in config.keyspaces:
        raise ConfigError("which keyspace?", hint=f"give --keyspace, one of {', '.join(config.keyspaces)}")
    return chosen
