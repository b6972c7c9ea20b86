"""``invalidator publish``: the update stream, published to Kafka."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from invalidator.cli.options import DEFAULT_CONFIG, ConfigPath, KeyspaceName, Since, TableNames
from invalidator.cli.output import show_progress
from invalidator.cli.signals import load_on_hangup, note_stop
from invalidator.stream.selection import read_names

if TYPE_CHECKING:
    from freshness.stream.resume import ResumeVector


def publish(
    brokers: Annotated[str, typer.Option(help="HOST:PORT of Kafka's brokers, with commas between them.")],
    prefix: Annotated[str, typer.Option(help="How the topics begin, and the name of the publication.")],
    keyspace: KeyspaceName = None,
    since: Since = None,
    record_format: Annotated[
        Literal["lines", "debezium"], typer.Option("--format", help="The stream's own lines, or Debezium's envelope.")
    ] = "lines",
    topics: Annotated[str, typer.Option(help="The topic of a table.")] = "{prefix}.{schema}.{table}",
    tables: TableNames = None,
    settings: Annotated[
        Path | None, typer.Option(help="A file of NAME=VALUE lines for Kafka's client, such as passwords.")
    ] = None,
    config: ConfigPath = DEFAULT_CONFIG,
) -> None:
    """Publish every row change to Kafka, until SIGTERM or SIGINT. A publication continues at its end. SIGHUP loads
    the configuration again."""
    from invalidator.publish.kafka import read_settings
    from invalidator.publish.publish import Publication
    from invalidator.publish.publish import publish as publish_stream
    from invalidator.stream.open import StreamOpener

    read_config = load_on_hangup(config)
    publication = Publication(
        brokers=brokers,
        prefix=prefix,
        keyspace=keyspace,
        format=record_format,
        template=topics,
        tables=read_names(tables, "--tables"),
        settings={} if settings is None else read_settings(settings),
    )
    is_stopping = note_stop()
    with show_progress(f"publishing {prefix}") as show:

        def report(published: int, position: ResumeVector) -> None:
            lag_seconds = (time.time_ns() // 1000 - position.min_timestamp_us) / 1e6
            show(f"{published} records, {lag_seconds:.1f} s behind")

        publish_stream(StreamOpener(read_config), publication, since, is_stopping, report)
