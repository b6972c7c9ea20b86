"""``invalidator run``: the process that follows the binlogs, with its HTTP service and its archive."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from freshness.config.config import Config, load_config
from freshness.errors import ConfigError, FreshnessError
from invalidator.cli.options import DEFAULT_CONFIG, ConfigPath
from invalidator.cli.signals import call_on_stop, reload_on_hangup
from invalidator.process.trouble import RecentTroubles, find_error

if TYPE_CHECKING:
    from invalidator.process.app import Invalidator


class JsonFormatter(logging.Formatter):
    """One object a line; its fields: docs/cli.md. A line that is about an error has its class and its hint apart."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "thread": record.threadName,
        }
        error = find_error(record)
        if error is not None:
            line["error"] = type(error).__name__
            if isinstance(error, FreshnessError) and error.hint:
                line["hint"] = error.hint
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


FORMATTERS: Final = {
    "text": logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"),
    "json": JsonFormatter(),
}
"""By the value of ``--log-format``."""


def run(
    config: ConfigPath = DEFAULT_CONFIG,
    shard: Annotated[
        list[str] | None, typer.Option(help="Take only this shard; may be repeated. Else all of them.")
    ] = None,
    node: Annotated[
        list[str] | None, typer.Option(help="Look after this cache node only; may be repeated. Else all of them.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Send everything again from this time on, or from the time of this token or resume text."),
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    log_format: Annotated[str, typer.Option(help="text, or json: one object a line.")] = "text",
) -> None:
    """Follow the binlogs and invalidate, until SIGTERM or SIGINT. SIGHUP loads the configuration again."""
    from invalidator.process.app import Invalidator
    from invalidator.process.supervisor import Supervisor
    from invalidator.stream.start import parse_past

    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        raise typer.BadParameter(f"unknown log level {log_level!r}")
    if log_format not in FORMATTERS:
        raise typer.BadParameter(f"unknown log format {log_format!r}: expected {' or '.join(FORMATTERS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FORMATTERS[log_format])
    troubles = RecentTroubles()
    logging.basicConfig(level=level, handlers=[handler, troubles])
    settings = load_config(config)
    since_us = None
    if since is not None:
        if settings.stream.start == "now":
            raise ConfigError(
                'stream.start = "now" and --since: nothing is left in the cache that could be repaired',
                hint='give one of them; start = "progress" is the default',
            )
        since_us = parse_past(since, now_us=time.time_ns() // 1000, rewind_seconds=settings.stream.rewind_seconds)
    supervisor = Supervisor(os.environ)
    invalidator = Invalidator(
        settings, shards=shard or (), nodes=node or (), since_us=since_us, supervisor=supervisor
    )
    reload_on_hangup(config, invalidator.reload, supervisor.reload)
    call_on_stop(invalidator.stop)
    with ExitStack() as stack:
        if settings.http.listen is not None:
            stack.callback(_start_service(invalidator, settings, settings.http.listen, troubles))
        if settings.archive.path is not None:
            from invalidator.archive.record import ArchiveRecorder
            from invalidator.stream.open import StreamOpener

            for keyspace in settings.keyspaces:
                recorder = ArchiveRecorder(StreamOpener(lambda: invalidator.config), keyspace)
                recorder.start()
                stack.callback(recorder.stop)
        invalidator.run()


def _start_service(
    invalidator: Invalidator, settings: Config, listen: str, troubles: RecentTroubles
) -> Callable[[], None]:
    """Serves HTTP. Returns the function that stops it."""
    # Only here: the web framework takes longer to import than all the rest
    from invalidator.http.connection import read_certificate
    from invalidator.http.gates import read_grants
    from invalidator.http.overview import OverviewFeed
    from invalidator.http.service import HttpService, create_api
    from invalidator.process.overview import Overview
    from invalidator.process.status import read_status

    api = create_api(
        invalidator,
        lambda: read_status(invalidator.config),
        grants=read_grants(settings),
        reload=invalidator.change_topology,
        overview=OverviewFeed(Overview(invalidator, troubles).read),
    )
    certificate = read_certificate(settings)
    service = HttpService(api, listen, certificate=certificate, connections_max=settings.http.connections_max)
    service.start()
    return service.stop
