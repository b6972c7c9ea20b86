"""Makes a site of these pages: the hooks of mkdocs, which ``make site`` runs.

A page links to code and to tests in the repository. The site has neither, so such a link becomes its text and the
path. The site has one page more, a reference that mkdocstrings makes of the docstrings.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any, Final

from mkdocs.structure.files import File

import appclient

PUBLIC: Final = {
    "appclient": tuple(appclient.__all__),
    "appclient.starlette": ("ReadYourWrites", "cache_lifespan", "request_reads", "thread_reads"),
    "appclient.flask": ("Freshness",),
    "appclient.web": ("AsyncRequestReads", "RequestReads", "TokenCookie", "find_etag"),
    "appclient.django": ("get_cache", "wrote"),
    "appclient.sqlalchemy": ("CachedReads", "CachedSelect"),
    "appclient.testing": ("FakeSystem",),
    "appclient.testing.plugin": ("freshness_system",),
    "freshness.stream.lines": (
        "EndLine",
        "ErrorLine",
        "HeartbeatLine",
        "RefreshedLine",
        "SchemaLine",
        "UpdateLine",
        "decode_line",
        "encode_line",
    ),
    "freshness.stream.resume": ("ResumeVector",),
}
"""What applications import, by module."""
PUBLIC_WITHIN_DJANGO: Final = {
    "appclient.django.models": ("CachedManager", "CachedModel", "CachedQuerySet"),
    "appclient.django.middleware": ("ReadYourWritesMiddleware",),
    "appclient.testing.django": ("CachedTestCase",),
}
"""The same where Django must have its settings first. The parameters are Django's."""
REFERENCE: Final = "reference.md"
PAGES: Final = Path(__file__).resolve().parent
_LINK: Final = re.compile(r"\[([^\]]+)\]\((\.\./[^)#\s]+)(?:#[^)]*)?\)")


def on_config(config: Any, **_: Any) -> None:
    """Called by mkdocs once: the decision records are the last section."""
    records = sorted(path.relative_to(PAGES).as_posix() for path in PAGES.glob("adr/**/[0-9]*.md"))
    config.nav.append({"Decision records": ["adr/index.md", *records]})


def on_files(files: Any, config: Any, **_: Any) -> None:
    """Called by mkdocs once: adds the reference, which this folder does not have."""
    parts = ["# Reference", "The names that an application imports, with their docstrings."]
    for module, names in (PUBLIC | PUBLIC_WITHIN_DJANGO).items():
        parts += [f"## `{module}`", *(f"::: {module}.{name}" for name in names)]
    files.append(File.generated(config, REFERENCE, content="\n\n".join(parts)))


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs for each page."""
    return unlink_outside(markdown, PurePosixPath(page.file.src_uri))


def unlink_outside(markdown: str, page: PurePosixPath) -> str:
    """The text of a page without its links to what is not below docs/. ``page``: its path there."""

    def replace(found: re.Match[str]) -> str:
        target = (PAGES / page.parent / found[2]).resolve()
        if target.is_relative_to(PAGES):
            return found[0]
        path = target.relative_to(PAGES.parent).as_posix()
        return f"`{path}`" if found[1].strip("`") in (target.name, path) else f"{found[1]} (`{path}`)"

    return _LINK.sub(replace, markdown)
