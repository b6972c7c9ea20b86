"""Docstrings and comments: each citation leads somewhere, and each sentence of the library has a subject.

F-numbers are checked by ``tests/repository/test_failure_modes.py``.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent.parent
DOCS = CHECKOUT / "docs"

PAGE = re.compile(r"(?<![\w./-])([\w./-]+\.md)(?:#([\w-]+))?")
SECTION_SIGN = re.compile("\N{SECTION SIGN}")
RECORD = re.compile(r"\bADR\s+(\d{4})\b")
INVARIANT = re.compile(r"\bI([1-9]\d?)\b")


@functools.cache
def _prose() -> tuple[tuple[Path, int, str], ...]:
    """(file, line, text) of every docstring and comment in the tree."""
    return tuple((path, line, text) for path, source in _sources() for line, text in find_prose(source))


def _sources() -> Iterator[tuple[Path, str]]:
    listing = subprocess.run(
        ["git", "ls-files", "-z", "*.py"], cwd=CHECKOUT, check=True, capture_output=True, text=True
    )
    for name in listing.stdout.split("\0"):
        path = CHECKOUT / name
        if path.is_file() and path.suffix == ".py":
            yield path.relative_to(CHECKOUT), path.read_text()


def find_prose(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of every docstring and comment, a text below an assignment among them."""
    for statement in ast.walk(ast.parse(source)):
        match statement:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield statement.lineno, text
    if "#" in source:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


@functools.cache
def _anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles)


@functools.cache
def _invariants() -> frozenset[str]:
    return frozenset(re.findall(r"^\| I(\d+) \|", (DOCS / "algorithm.md").read_text(), re.MULTILINE))


def find_unresolved(text: str) -> list[str]:
    """The citations in a docstring or comment that lead nowhere. Pages are named from the root of the repository."""
    wrong = [f"{sign}, instead of page.md#heading" for sign in SECTION_SIGN.findall(text)]
    for name, anchor in PAGE.findall(text):
        page = CHECKOUT / name
        if not page.is_file():
            wrong.append(name)
        elif anchor and anchor not in _anchors(page):
            wrong.append(f"{name}#{anchor}")
    wrong += [f"ADR {number}" for number in RECORD.findall(text) if not list(DOCS.glob(f"adr/**/{number}-*.md"))]
    wrong += [f"I{number}" for number in INVARIANT.findall(text) if number not in _invariants()]
    return wrong


def test_what_docstrings_and_comments_cite_is_in_the_repository() -> None:
    cited = [
        (path, line, text)
        for path, line, text in _prose()
        if PAGE.search(text) or SECTION_SIGN.search(text) or RECORD.search(text) or INVARIANT.search(text)
    ]
    assert len(cited) > 50
    assert [f"{path}:{line} cites {one}" for path, line, text in cited for one in find_unresolved(text)] == []


def test_a_citation_that_leads_nowhere_is_found() -> None:
    planted = '"""See docs/no-such-page.md."""\nx = "not.md"  # 3.2 \N{SECTION SIGN}\nY = 1\n"""ADR 9999, I99."""\n'
    assert [one for _, text in find_prose(planted) for one in find_unresolved(text)] == [
        "docs/no-such-page.md",
        "ADR 9999",
        "I99",
        "\N{SECTION SIGN}, instead of page.md#heading",
    ]
    assert find_unresolved("README.md, docs/algorithm.md#the-lease, ADR 0001 and I1 to I9") == []
    assert find_unresolved("docs/algorithm.md#the-rent and algorithm.md") == [
        "docs/algorithm.md#the-rent",
        "algorithm.md",
    ]


# -- plain English -----------------------------------------------------------------------------------------

PLAIN = ("freshness/", "invalidator/", "appclient/", "spark/")
"""Folders in which the subject of each sentence is a noun of the glossary."""

NOUNLESS = re.compile(r"(?:\A|(?<=[.:!?] )|(?<=\* ))(?:What|Whoever|Of|Those)\b")
UNUSUAL = re.compile(r"\b(?:for ever|anew|whoever)\b", re.IGNORECASE)


def find_obscure(text: str) -> list[str]:
    """The places of a docstring or comment that begin a sentence without a noun, or use a word that we avoid."""
    flat = " ".join(text.removeprefix("#").split())
    found = (*NOUNLESS.finditer(flat), *UNUSUAL.finditer(flat))
    return [flat[place.start() : place.start() + 60] for place in found]


def test_sentences_begin_with_a_noun() -> None:
    assert [
        f"{path}:{line}: {place}"
        for path, line, text in _prose()
        if str(path).startswith(PLAIN)
        for place in find_obscure(text)
    ] == []


def test_an_obscure_sentence_is_found() -> None:
    assert find_obscure("Read once. What cannot be told\nis kept for ever.") == [
        "What cannot be told is kept for ever.",
        "for ever.",
    ]
    assert find_obscure("# Of these: Those that serve") == ["Of these: Those that serve", "Those that serve"]
    assert find_obscure("A list:\n\n* Whoever sees it") == ["Whoever sees it", "Whoever sees it"]
    assert find_obscure("One of those says what is offset, wherever") == []
