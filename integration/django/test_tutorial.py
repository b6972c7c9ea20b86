"""Carries out the tutorial of docs/django.md: its files, its commands, its first cached reads."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from integration.servers import Memcached, Pair
from integration.servers.program import InvalidatorProcess

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "django.md"


def find_blocks(language: str) -> list[str]:
    tutorial = PAGE.read_text().partition("## Tutorial")[2].partition("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", tutorial, re.DOTALL)


def test_the_tutorial_leads_to_reads_from_the_cache(pair: Pair, memcached: Memcached, tmp_path: Path) -> None:
    folder = tmp_path
    ports = {"3306": pair.primary.port, "3307": pair.replica.port, "11211": memcached.port}

    def localized(text: str) -> str:
        for documented, port in ports.items():
            text = text.replace(documented, str(port))
        return text.replace('flavor = "mariadb"', f'flavor = "{pair.primary.flavor}"')

    def run(*command: str, given: str = "") -> str:
        ended = subprocess.run(
            [sys.executable, *command],
            cwd=folder,
            input=given,
            env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    commands = [line for block in find_blocks("sh") for line in block.splitlines()]
    assert commands[0].startswith("pip install ")
    assert commands[1].startswith("django-admin ")
    run("-m", "django", *commands[1].split()[1:])
    assert commands[2] == "python manage.py startapp shop"
    run(*commands[2].split()[1:])
    files = {block.splitlines()[0].removeprefix("# "): localized(block) for block in find_blocks("python")}
    shell = files.pop("shell")
    settings = folder / "project" / "settings.py"
    settings.write_text(settings.read_text() + files.pop("project/settings.py"))
    for name, text in files.items():
        (folder / name).write_text(text)
    [toml] = find_blocks("toml")
    few = 'stripes = 1024\nnamespace = "shop"'
    (folder / "freshness.toml").write_text(localized(toml).replace('namespace = "shop"', few))
    assert commands[-1] == "invalidator run --config freshness.toml"
    for command in commands[3:-1]:
        program, *arguments = command.split()
        assert program == "python"
        told = run(*arguments)
    assert "shop.Product is the object product" in told
    with InvalidatorProcess(folder / "freshness.toml"):
        assert run("manage.py", "shell", "-c", shell).split()[-3:] == ["9.90", "8.50", "8.50"]
        counted = (
            "from appclient.django import get_cache\nfrom shop.models import Product\nseen = []\n"
            "get_cache().on_read = lambda each: seen.append(each.outcome.name)\n"
            "key = Product.objects.latest('pk').pk\n"
            "while 'HIT' not in seen: Product.objects.get(pk=key)\n"
            "print('a hit')"
        )
        assert run("manage.py", "shell", "-c", counted).strip().endswith("a hit")
