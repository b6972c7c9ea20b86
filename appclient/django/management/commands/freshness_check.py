"""``manage.py freshness_check``: `invalidator check` with the file of the setting FRESHNESS, and the models."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from appclient.django.installed import get_app
from freshness.errors import FreshnessError


class FreshnessCheck(BaseCommand):
    help = "Check the models that are cached, then the databases and nodes by `invalidator check`."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("arguments", nargs="*", help="passed on to `invalidator check`, behind --")

    def handle(self, *args: Any, **options: Any) -> None:
        app = get_app()
        try:
            for subject in app.objects.values():
                shards = app.options.config.keyspaces[subject.keyspace].serving_shards
                app.column_types(subject, [shard.lineage for shard in shards])
            for line in app.describe():
                self.stdout.write(line)
        except FreshnessError as error:
            raise CommandError(str(error), returncode=error.exit_code) from error
        self.stdout.flush()
        command = [sys.executable, "-m", "invalidator.cli", "check", "--config", str(app.options.config.path)]
        ended = subprocess.run([*command, *options["arguments"]], check=False)
        if ended.returncode:
            raise CommandError("invalidator check has found problems", returncode=ended.returncode)


Command = FreshnessCheck
