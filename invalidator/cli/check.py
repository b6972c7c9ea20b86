"""``invalidator check``: whether the database servers are set up so that no invalidation is lost."""

from __future__ import annotations

from dataclasses import asdict

import typer

from freshness.config.reader import load_config
from invalidator.cli.options import DEFAULT_CONFIG, AsJson, ConfigPath
from invalidator.cli.output import print_json


def check(config: ConfigPath = DEFAULT_CONFIG, as_json: AsJson = False) -> None:
    """Look for everything that would lose invalidations, and say how to put it right."""
    from freshness.database.schema import load_registry
    from invalidator.process.preflight import check_servers

    settings = load_config(config)
    findings = check_servers(settings, load_registry(settings))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            typer.echo(str(finding))
        typer.echo(f"{len(findings)} findings")
    if any(finding.severity == "error" for finding in findings):
        raise typer.Exit(4)
