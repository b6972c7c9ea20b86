"""``invalidator check``: whether the system is set up so that no invalidation is lost, and ``run`` can start."""

from __future__ import annotations

import http.client
import importlib
import json
import ssl
import urllib.request
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from freshness.config.config import Config, load_config
from invalidator.cli.options import DEFAULT_CONFIG, AsJson, ConfigPath
from invalidator.cli.output import print_json

if TYPE_CHECKING:
    from invalidator.rules.finding import CheckFinding

ANSWER_SECONDS: Final = 2.0


Fix = Annotated[
    bool,
    typer.Option("--fix", help="Set binlog_row_metadata=FULL and create the heartbeat table, where that is missing."),
]

_STYLES: Final = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def check(config: ConfigPath = DEFAULT_CONFIG, as_json: AsJson = False, fix: Fix = False) -> None:
    """Look for everything that would lose invalidations or keep `run` from starting, and say how to put it right."""
    from invalidator.process.checkup import Checkup
    from invalidator.rules.finding import by_severity, select_errors

    settings = load_config(config)
    checkup = Checkup(settings)
    checkup.run()
    if fix:
        checkup.mend()
    with checkup.noting():
        _check_this_machine(settings)
    findings = by_severity(checkup.findings)
    if as_json:
        print_json(
            [
                {**finding.as_json(), "mended": is_mended}
                for is_mended, told in ((True, checkup.mended), (False, findings))
                for finding in told
            ]
        )
    else:
        _print(checkup.mended, findings)
    if len(select_errors(findings)) > len(checkup.refusals):
        raise typer.Exit(4)
    if checkup.refusals:
        raise checkup.refusals[0]


def _print(mended: Sequence[CheckFinding], findings: Sequence[CheckFinding]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True, highlight=False)
    for finding in mended:
        console.print(Text.assemble(("mended", "green"), f" {finding.rule.slug}: {finding.message} ({finding.hint})"))
    for finding in findings:
        told = str(finding).removeprefix(finding.severity)
        console.print(Text.assemble((finding.severity, _STYLES[finding.severity]), told))
    console.print(f"findings: {len(findings)}")


def _check_this_machine(settings: Config) -> None:
    """Load and open what `run` does. Raises `ConfigError`, and `ModuleNotFoundError` for a package."""
    modules = {
        "invalidator.process.app": True,
        "invalidator.archive.record": settings.archive.path is not None,
        "freshness.history.recorder": settings.history.path is not None,
        "invalidator.vstream.source": any(each.flavor == "vitess" for each in settings.keyspaces.values()),
    }
    for module, is_needed in modules.items():
        if is_needed:
            importlib.import_module(module)
    if settings.http.listen is not None:
        from invalidator.http.connection import read_certificate
        from invalidator.http.gates import read_grants
        from invalidator.http.service import open_socket

        grants = read_grants(settings)
        has_tls = read_certificate(settings) is not None
        if not _is_invalidator(settings.http.listen, has_tls=has_tls):
            open_socket(settings.http.listen, demands_token=bool(grants)).close()


def _is_invalidator(listen: str, *, has_tls: bool) -> bool:
    """Whether an invalidator listens there already: the one that is looked after."""
    anybody = ssl.create_default_context()
    anybody.check_hostname = False  # its certificate is of another name than the address
    anybody.verify_mode = ssl.CERT_NONE
    url = f"{'https' if has_tls else 'http'}://{listen}/healthz"
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS, context=anybody) as answer:
            return bool(json.loads(answer.read(100)) == {"status": "ok"})
    except (OSError, ValueError, http.client.HTTPException):
        return False
