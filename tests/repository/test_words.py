"""Plain English: turns of phrase over which a reader stumbles, counted in each folder; a ceiling only falls.

The rule: a noun of the glossary, an active verb of programming, the object; the condition last.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Final

CHECKOUT: Final = Path(__file__).resolve().parents[2]

AVOIDED: Final = {
    "tells, is told (reports, logs, returns, sends, distinguishes; people are told)": re.compile(
        r"\b(?:tells|(?:is|are|was|were|be) told|told by)\b", re.IGNORECASE
    ),
    "a sentence that begins with What, Whoever, Of or Those": re.compile(
        r"(?:\A|(?<=[.:!?] )|(?<=\* ))(?:What|Whoever|Of|Those)\b"
    ),
    "is no hit (is not a hit)": re.compile(r"\b(?:is|are|was|were) no (?!longer|more\b)[a-z]+\b", re.IGNORECASE),
    "of now, of the moment, a former (current, previous)": re.compile(
        r"\b(?:of now|of the moment|of today|former|formerly)\b", re.IGNORECASE
    ),
    "meanwhile, anew, for ever, so many, by itself (during, again, forever, how many, automatically)": re.compile(
        r"\b(?:meanwhile|anew|for ever|so many|by (?:itself|themselves)|just now|whoever)\b", re.IGNORECASE
    ),
    "where it is (if it is)": re.compile(
        r"(?<!from )\bwhere (?:it|they|there|that|the|a|an|no|nothing|none|one|both|all|this|these|its|another"
        r"|several|only|not|is|are|some|nobody|neither)\b",
        re.IGNORECASE,
    ),
    "``name``: of the … (a noun first)": re.compile(
        r"``\w+``(?: and ``\w+``)*: (?:of|those|what|that|where|whether|as|so many|how many|for)\b", re.IGNORECASE
    ),
}
"""What it is, with the words that take its place -> the pattern."""

CEILINGS: Final = {
    "Makefile": 0,
    "appclient": 11,
    "benchmarks": 4,
    "docs": 19,
    "examples": 2,
    "freshness": 17,
    "integration": 27,
    "invalidator": 42,
    "spark": 31,
    "tests": 148,
}


def _counts() -> Counter[str]:
    listing = subprocess.run(
        ["git", "ls-files", "-z", "*.py", "*.md", "*.toml", "Makefile"],
        cwd=CHECKOUT,
        check=True,
        capture_output=True,
        text=True,
    )
    counts: Counter[str] = Counter()
    for name in listing.stdout.split("\0"):
        if (path := CHECKOUT / name).is_file() and path != Path(__file__):
            counts[name.partition("/")[0]] += len(find_avoided(path.read_text()))
    return counts


def find_avoided(text: str) -> list[str]:
    """Each place of a text, with 60 characters of it."""
    flat = " ".join(text.split())
    return [flat[place.start() : place.start() + 60] for each in AVOIDED.values() for place in each.finditer(flat)]


def test_no_folder_has_more_than_before() -> None:
    above = {name: count for name, count in _counts().items() if count > CEILINGS.get(name, 0)}
    assert above == {}, f"run: python -m tests.repository.test_words FILE; say it with {[*AVOIDED]}"


def test_the_words_are_found() -> None:
    text = "Of these one waits. A node is told of it, where it is no hit of now. ``a``: of the node, read anew."
    assert len(find_avoided(text)) == len(AVOIDED)
    assert find_avoided("A server is no longer asked, and a person reads the log if it fails.") == []


if __name__ == "__main__":
    import sys

    for argument in sys.argv[1:]:
        for place in find_avoided(Path(argument).read_text()):
            sys.stdout.write(f"{argument}: {place}\n")
