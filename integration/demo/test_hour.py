"""The newcomer's hour (`make hour`) reaches its end, and a block that does not do what its page says is noticed."""

from __future__ import annotations

import os
import shlex
import sys
from itertools import product
from pathlib import Path
from typing import Final

import pytest

from integration.hour import FRAMEWORKS, Block, Newcomer, find_script
from integration.servers import Flavor, ServerFailed

OFTEN: Final = ("django", "mariadb"), ("flask", "mysql")
READ_UNTIL_HIT: Final = """
from appclient.django import get_cache
from shop.models import Product
seen = []
get_cache().on_read = lambda each: seen.append(each.outcome.name)
key = Product.objects.latest("pk").pk
while "HIT" not in seen:
    Product.objects.get(pk=key)
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("framework", "flavor"),
    [
        pytest.param(*each, marks=[] if each in OFTEN else pytest.mark.long)
        for each in product(FRAMEWORKS, ("mariadb", "mysql"))
    ],
)
def test_the_pages_lead_to_reads_from_the_cache(framework: str, flavor: Flavor, tmp_path: Path) -> None:
    """It asks the package index, as a newcomer's pip does."""
    with Newcomer(flavor, tmp_path) as newcomer:
        for block in find_script(framework):
            newcomer.carry_out(block)
        if framework == "django":
            newcomer.run(f"python manage.py shell -c {shlex.quote(READ_UNTIL_HIT)}")


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command ``python``, which the pages' own environment has and Debian has not."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "python").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("text", "said"), [("false\n", "false"), ("python app.py\n", "promises"), ("flask run\n", "ended before")]
)
def test_a_block_that_does_not_do_what_the_page_says_is_noticed(
    text: str, said: str, tmp_path: Path, python: None
) -> None:
    with Newcomer("mariadb", tmp_path) as newcomer:
        newcomer.carry_out(Block("page.md", "python", "# app.py\nprint('HIT', {'id': 1})  # FILLED {...}\n"))
        with pytest.raises(ServerFailed, match=said):
            newcomer.carry_out(Block("page.md", "sh", text))


def test_an_answer_may_leave_a_part_out(tmp_path: Path, python: None) -> None:
    with Newcomer("mariadb", tmp_path) as newcomer:
        newcomer.carry_out(Block("page.md", "python", "# app.py\nprint('HIT', {'id': 1})  # HIT {...}\n"))
        newcomer.carry_out(Block("page.md", "sh", "export NAME=app.py\npython $NAME\n"))
        newcomer.carry_out(Block("page.md", "sh", "python app.py\n"))
