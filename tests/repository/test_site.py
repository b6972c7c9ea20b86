"""The documentation as a site: each page is there, no link is broken, and nothing is loaded from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

from docs.site import PUBLIC, PUBLIC_WITHIN_DJANGO, unlink_outside

CHECKOUT = Path(__file__).resolve().parents[2]


def build_site(folder: Path, **settings: Any) -> None:
    config = load_config(str(CHECKOUT / "mkdocs.yml"), site_dir=str(folder), **settings)
    config.plugins.on_startup(command="build", dirty=False)
    build(config)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build_site(folder)
    return folder


def test_each_page_is_there(site: Path) -> None:
    written = {path.relative_to(CHECKOUT / "docs").with_suffix(".html") for path in CHECKOUT.glob("docs/**/*.md")}
    made = {path.relative_to(site) for path in site.rglob("*.html")}
    assert written | {Path("reference.html")} == made - {Path("404.html")}


def test_the_reference_has_each_public_name(site: Path) -> None:
    page = (site / "reference.html").read_text()
    for module, names in (PUBLIC | PUBLIC_WITHIN_DJANGO).items():
        for name in names:
            assert f'id="{module}.{name}"' in page
    assert "an <code>Explanation</code>" in page, "docstrings are Markdown"


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        loaded = re.findall(r"<(?:script|link|img|iframe)[^>]* (?:src|href)=\"?([^\" >]+)", path.read_text())
        assert not [each for each in loaded if "//" in each and not each.startswith("data:")], path


def test_a_link_that_is_broken_ends_the_build(tmp_path: Path) -> None:
    pages = tmp_path / "docs"
    pages.mkdir()
    (pages / "index.md").write_text("[here](gone.md)\n")
    with pytest.raises(Abort):
        build_site(tmp_path / "site", docs_dir=str(pages), nav=["index.md"], hooks=[])


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("check.md", "[cli](cli.md#probe)", "[cli](cli.md#probe)"),
        ("adr/0001.md", "[cli](../cli.md)", "[cli](../cli.md)"),
        ("spark.md", "[the job](../spark/audit/job.py) runs", "the job (`spark/audit/job.py`) runs"),
        ("spark.md", "[`job.py`](../spark/audit/job.py)", "`spark/audit/job.py`"),
        ("adr/0001.md", "[a test](../../tests/x.py#L3).", "a test (`tests/x.py`)."),
    ],
)
def test_a_link_out_of_the_pages_becomes_a_path(page: str, text: str, expected: str) -> None:
    assert unlink_outside(text, PurePosixPath(page)) == expected
