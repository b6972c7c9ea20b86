"""The documentation says what the code does: verbs, settings, metrics, bytes, snippets, links.

Snippets are carried out on real servers by ``integration/demo/test_quickstart.py``.
"""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
import yaml

import freshness
from docs import where
from docs.generate import TABLES, describe_client_metrics, render
from freshness import errors
from freshness.algorithm.envelope import Filled, NodeRecord, PendingStripe, Stripe, encode_chunk
from freshness.algorithm.parts import Manifest
from freshness.config.config import load_config
from freshness.config.schema import describe_file
from freshness.errors import FormatError, FreshnessError
from freshness.position import decode_position, parse_position
from freshness.position.token import EventToken
from freshness.position.varint import ByteReader, append_varint
from freshness.values.codec import decode_value, encode_value
from freshness.values.compression import PACKED
from invalidator.cli import app
from invalidator.http.service import create_api
from invalidator.probe.metrics import ProbeMetrics
from invalidator.probe.tally import ProbeTally
from invalidator.process.app import Invalidator
from invalidator.process.metrics import Metrics
from invalidator.rules.primary import TESTED
from spark.sink.metrics import SinkMetrics

CHECKOUT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("appclient", "freshness", "invalidator", "spark")
DOCS = CHECKOUT / "docs"
PAGES = sorted([*CHECKOUT.glob("*.md"), *DOCS.rglob("*.md")])
PLAIN_PAGES = [CHECKOUT / "README.md", *sorted(DOCS.glob("*.md"))]
"""The pages in plain English. Decision records and the changelog are history."""
PAGES_MAX = 26
WORDS_MAX = 60_000
"""Of the pages without decision records. A ceiling only falls."""
READERS_WAY = ("quickstart.md", "concepts.md", "read-your-writes.md", "caveats.md", "operations.md")
"""The pages of a newcomer, with one on a framework."""
READERS_WORDS_MAX = 11_600
ENVIRONMENT = dict.fromkeys(("SHOP_PASSWORD", "INVALIDATOR_PASSWORD", "WEBAPP_PASSWORD"), "x")
SCHEMA = jsonschema.Draft4Validator(describe_file())
_SNIPPET = re.compile(r"^( *)```(\w+)([^\n]*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)

_TEXTS_OF_CODE = re.compile(r"<!-- generated: (?!failures).*?<!-- end -->", re.DOTALL)
_START = re.compile(r"\s*(?:[*-] |\d+\. |> )?[*_\"“(]*")
_SENTENCE_END = re.compile(r"(?<=[.!?])[*_\"”)]*\s+")
_NAMELESS_SUBJECT = re.compile(r"(?:What|Whoever|Of|Those)\b")
_OBSOLETE_WORD = re.compile(r"\b(?:for ever|anew|whoever)\b", re.IGNORECASE)


_NAMED_FILE = re.compile(r'\b(?:password_file|tls_ca|tls_cert|tls_key)(?: = "|=)([^"&]+)')
"""Files that a configuration is read with."""


def _name(page: Path) -> str:
    return str(page.relative_to(CHECKOUT))


def _snippets(page: Path, language: str) -> list[tuple[str, str]]:
    """(rest of the info string, text) of every fenced block in a language."""
    found = _SNIPPET.findall(page.read_text())
    return [(rest.strip(), text) for _, kind, rest, text in found if kind == language]


def _prose(page: Path) -> str:
    return _SNIPPET.sub("", page.read_text())


def _names_of(module: str) -> set[str]:
    """The names at the top of one of our modules, found without importing it."""
    path = CHECKOUT.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    top = ast.parse(source.read_text()).body
    # An import in a try explains a missing package; one in an if is late
    body = [*top, *(inner for node in top if isinstance(node, (ast.Try, ast.If, ast.With)) for inner in node.body)]
    names = {name.asname or name.name for node in body if isinstance(node, ast.ImportFrom) for name in node.names}
    return names | {
        node.name for node in body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    }


def _anchors(page: Path) -> set[str]:
    """The anchors of the headings, as GitHub makes them, and those of rows."""
    titles = re.findall(r"^#+ (.*)$", _prose(page), re.MULTILINE)
    named = re.findall(r'<a id="([^"]+)">', page.read_text())
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles} | {*named}


@pytest.mark.parametrize("page", PAGES, ids=_name)
class TestEveryPage:
    def test_links_resolve(self, page: Path) -> None:
        for target in re.findall(r"\]\(([^)]+)\)", _prose(page)):
            if target.startswith(("https://", "http://")):
                continue
            path, _, anchor = target.partition("#")
            linked = (page.parent / path).resolve() if path else page
            assert linked.exists(), target
            assert not anchor or anchor in _anchors(linked), target

    def test_tests_that_are_named_are_there(self, page: Path) -> None:
        for names, target in re.findall(r"\[((?:test_\w+(?:, )?)+)\]\(([^)#]+\.py)\)", _prose(page)):
            text = (page.parent / target).read_text()
            for name in names.split(", "):
                assert f"def {name}(" in text, f"{target} has no {name}"

    def test_fences_are_closed(self, page: Path) -> None:
        assert len(re.findall(r"^ *```", page.read_text(), re.MULTILINE)) % 2 == 0
        assert not re.findall(r"^ *```", _prose(page), re.MULTILINE)[1:], "a fence without a language"

    def test_configurations_load(self, page: Path, tmp_path: Path) -> None:
        for _, text in _snippets(page, "toml"):
            if "[cache]" in text:
                path = tmp_path / "freshness.toml"
                path.write_text(text)
                for name in _NAMED_FILE.findall(text):
                    (tmp_path / name).parent.mkdir(exist_ok=True)
                    (tmp_path / name).write_text("what the reader has there")
                assert load_config(path, ENVIRONMENT).objects
                SCHEMA.validate(tomllib.loads(text))

    def test_python_compiles(self, page: Path) -> None:
        for _, text in _snippets(page, "python"):
            ast.parse(text)

    def test_python_imports_what_is_there(self, page: Path) -> None:
        for _, text in _snippets(page, "python"):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(PACKAGES):
                    assert {name.name for name in node.names} <= _names_of(node.module), node.module

    def test_generated_tables_are_what_the_code_says(self, page: Path) -> None:
        text = page.read_text()
        assert render(text) == text, "run: make docs"

    def test_its_lines_are_no_longer_than_the_code_allows(self, page: Path) -> None:
        prose = re.sub(r"<!-- generated.*?<!-- end -->", "", _prose(page), flags=re.DOTALL)
        long = [line for line in prose.splitlines() if len(line) > 130 and not line.startswith("|")]
        assert long == []


# -- plain English -----------------------------------------------------------------------------------------


def _sentences(text: str) -> Iterator[str]:
    """The sentences of a page, each on one line: of its paragraphs, list items and table cells. Headings, code and
    the tables that take their text from code are left out."""
    text = _TEXTS_OF_CODE.sub("", _SNIPPET.sub("", text))
    text = re.sub(r"`[^`]*`", "CODE", text)
    text = re.sub(r"\]\([^)]+\)", "]", text).replace("[", "").replace("]", "")
    part: list[str] = []
    for line in [*text.splitlines(), ""]:
        is_apart = not line.strip() or line.startswith(("|", "#", "<!--", "!"))
        if is_apart or re.match(r"\s*(?:[*-]|\d+\.) ", line):
            yield from _SENTENCE_END.split(" ".join(part))
            part = []
        if line.startswith("|"):
            for cell in line.strip("|").split("|"):
                yield from _SENTENCE_END.split(cell.strip())
        elif not is_apart:
            part.append(line.strip())


def _breaches(text: str) -> list[str]:
    """The sentences that break the rule for plain English."""
    return [
        sentence
        for sentence in _sentences(text)
        if _NAMELESS_SUBJECT.match(sentence, _START.match(sentence).end())  # type: ignore[union-attr]
        or _OBSOLETE_WORD.search(sentence)
    ]


@pytest.mark.parametrize("page", PLAIN_PAGES, ids=_name)
def test_pages_are_in_plain_english(page: Path) -> None:
    """The subject of a sentence is a noun of the glossary."""
    assert _breaches(page.read_text()) == []


@pytest.mark.parametrize(
    "planted",
    [
        "What is stored stays.",
        "A line. Whoever reads it\nsees all.",
        "A line that ends.\nOf the nodes one is down.",
        "* Those that are down leave.",
        "1. **What it does** is this.",
        "| a | Of all nodes. |",
        "The node is down. (What it held is lost.)",
        "It is read for\never.",
        "The node joins anew.",
        "Ask whoever wrote it.",
    ],
)
def test_a_sentence_that_is_not_plain_is_found(planted: str) -> None:
    assert len(_breaches(f"# What a heading says\n\nA node is a server.\n{planted}\n\nThe end.\n")) == 1


def test_headings_code_and_plain_sentences_are_no_breach() -> None:
    assert _breaches("## What runs where\n\n```sh\n# Of all\n```\n\nA node: what it holds, and `anew`.\n") == []


def test_the_schema_takes_the_configurations_of_the_deployments() -> None:
    text, _ = (CHECKOUT / "compose/kubernetes/invalidator.yaml").read_text().split("\n---\n", 1)
    for config in ((CHECKOUT / "compose/freshness.toml").read_text(), yaml.safe_load(text)["data"]["freshness.toml"]):
        SCHEMA.validate(tomllib.loads(config))


def test_every_table_is_in_one_page() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    assert sorted(re.findall(r"<!-- generated: ([a-z]+) -->", text)) == sorted(TABLES)


def test_where_it_runs_has_all_that_was_tested() -> None:
    counted = json.loads(where.TESTED.read_text())
    assert {name for place in where.PLACES for name in place.tested} >= set(counted)
    for product, flavor in (("MariaDB", "mariadb"), ("MySQL", "mysql")):
        versions = {tuple(map(int, version.split("."))) for version in counted[product]}
        assert all(any(version[: len(each)] == each for version in versions) for each in TESTED[flavor])
        assert all(any(version[: len(each)] == each for each in TESTED[flavor]) for version in versions)


def test_every_page_is_reachable_from_the_index() -> None:
    linked = {
        (index.parent / path).resolve()
        for index in (DOCS / "index.md", DOCS / "adr" / "index.md")
        for path in re.findall(r"\]\(([^)#]+)", index.read_text())
    }
    assert {page for page in DOCS.rglob("*.md") if page != DOCS / "index.md"} <= linked


def test_a_superseded_record_is_in_its_folder() -> None:
    records = {path: path.read_text() for path in (DOCS / "adr").rglob("[0-9]*.md")}
    assert {path for path, text in records.items() if "**Superseded** by" in text} == {
        path for path in records if path.parent.name == "superseded"
    }


def test_the_architecture_names_every_folder_and_where_to_change_it() -> None:
    text = (DOCS / "architecture.md").read_text()
    for package in PACKAGES:
        for marker in (CHECKOUT / package).rglob("__init__.py"):
            assert _name(marker.parent) in text, f"{_name(marker.parent)} is not in docs/architecture.md"
    assert len(re.findall(r"^\| .*\]\(\.\./", text, re.MULTILINE)) >= 30


def test_the_functions_that_the_architecture_names_are_in_their_files() -> None:
    """In two steps from a question to a function: the row, then the link beside the name."""
    named = re.findall(r"\]\(\.\./([\w/]+\.py)\): `(\w+)`", (DOCS / "architecture.md").read_text())
    assert len(named) >= 12
    for path, name in named:
        tree = ast.parse((CHECKOUT / path).read_text())
        kinds = (ast.FunctionDef, ast.ClassDef)
        assert name in {node.name for node in ast.walk(tree) if isinstance(node, kinds)}, f"{path} has no {name}"


def test_no_more_pages_and_words_than_before() -> None:
    pages = {page.name: len(page.read_text().split()) for page in DOCS.glob("*.md")}
    assert len(pages) <= PAGES_MAX
    assert sum(pages.values()) <= WORDS_MAX, "shorten another page"
    assert sum(pages[name] for name in READERS_WAY) <= READERS_WORDS_MAX


def test_the_changelog_has_this_version_and_a_line_for_each_change() -> None:
    unreleased, *released = re.split(r"^## ", (CHECKOUT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    assert unreleased.startswith("[Unreleased]\n")
    assert re.match(rf"\[{re.escape(freshness.__version__)}\] - 20\d\d-\d\d-\d\d\n", released[0])
    for part in (unreleased, *released):
        changes = [line for line in part.splitlines()[1:] if line and not line.startswith(("#", "The first release"))]
        assert [line for line in changes if not line.startswith("- ") or len(line) > 120] == []


def test_decision_records_are_numbered_and_complete() -> None:
    records = sorted((DOCS / "adr").rglob("[0-9]*.md"), key=lambda record: record.name)
    assert [record.name[:4] for record in records] == [f"{n:04}" for n in range(1, len(records) + 1)]
    for record in records:
        text = record.read_text()
        assert text.startswith(f"# {record.name[:4]} ")
        for part in ("**Context.**", "**Decision.**", "**Consequences.**"):
            assert part in text, f"{record.name} lacks {part}"


# -- the command line --------------------------------------------------------------------------------------


def _sections(page: Path) -> dict[str, str]:
    parts = re.split(r"^## (.*)$", _prose(page), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _verbs() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    commands: dict[str, Any] = group.commands
    return commands


def test_the_command_line_is_documented_with_every_verb_and_option() -> None:
    sections = _sections(DOCS / "cli.md")
    documented = {title.split()[1]: title for title in sections if title.startswith("invalidator ")}
    verbs = _verbs()
    assert set(documented) == set(verbs)
    for name, command in verbs.items():
        title = documented[name]
        options = {
            option for one in command.params for option in (*one.opts, *one.secondary_opts) if option.startswith("--")
        }
        arguments = [one for one in command.params if one.param_type_name == "argument"]
        lines = re.findall(r"^\* (`--.*?):", sections[title], re.MULTILINE)
        named = {option for line in lines for option in re.findall(r"`(--[a-z-]+)", line)}
        assert named == options - {"--config"}, name
        assert ("--config" in options) == (name not in ("compare", "completion", "schema")), name
        assert len(title.split()) - 2 == len(arguments), f"arguments of {name}"


def test_every_exit_code_is_documented() -> None:
    table = set(re.findall(r"^\| (\d) \|", _sections(DOCS / "cli.md")["Exit codes"], re.MULTILINE))
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    used = {kind.exit_code for kind in kinds if issubclass(kind, FreshnessError)}
    assert {str(code) for code in used | {0}} == table


def test_every_address_of_the_http_service_is_documented(tmp_path: Path) -> None:
    path = tmp_path / "freshness.toml"
    path.write_text(_snippets(CHECKOUT / "README.md", "toml")[0][1])
    api = create_api(Invalidator(load_config(path, ENVIRONMENT)), dict)
    served = set(api.openapi()["paths"])
    documented = set(re.findall(r"^\| `(/[^`]*)`", (DOCS / "update-stream.md").read_text(), re.MULTILINE))
    assert documented == served | {str(api.openapi_url)}


SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("", "_bucket", "_count", "_sum")}
"""Of a metric's samples, by its type."""


def test_the_metrics_of_the_advice_exist() -> None:
    metrics = Metrics()
    metrics.of_shard("shop/-")  # with a sample of each
    registries = (metrics.registry, SinkMetrics().registry, ProbeMetrics(ProbeTally()).registry)
    metrics_of_all = [one for registry in registries for one in registry.collect()]
    names = {sample.name for one in metrics_of_all for sample in one.samples}
    names |= {f"{one.name}{suffix}" for one in metrics_of_all for suffix in SUFFIXES[one.type]}
    names |= {f"{one.name}{suffix}" for one, _ in describe_client_metrics() for suffix in SUFFIXES[one.type]}
    assert set(re.findall(r"\bfreshness_[a-z_]+", (DOCS / "metrics.md").read_text())) <= names


def test_verbs_of_the_command_line_named_anywhere_exist() -> None:
    for page in PAGES:
        named = set(re.findall(r"`invalidator ([a-z]+)", page.read_text()))
        assert named <= set(_verbs()), _name(page)


def test_the_glossary_has_the_words_of_the_vocabulary() -> None:
    words = set(re.findall(r"^\| \*\*(.+?)\*\* \|", (DOCS / "concepts.md").read_text(), re.MULTILINE))
    assert words >= {
        *("event token", "position", "shard", "key range", "stub", "stripe", "fill", "invalidate", "floor"),
        *("lease", "progress", "life", "table floor", "epoch", "source", "backend", "procedure", "driver"),
    }
    assert sorted(words, key=str.casefold) == list(
        dict.fromkeys(re.findall(r"^\| \*\*(.+?)\*\* \|", (DOCS / "concepts.md").read_text(), re.MULTILINE))
    )


# -- the wire format ---------------------------------------------------------------------------------------


def _varint(data: bytes) -> tuple[bytes, str]:
    reader = ByteReader(data, "number")
    number = reader.read_varint()
    reader.finish()
    out = bytearray()
    append_varint(out, number)
    return bytes(out), str(number)


def _position(data: bytes) -> tuple[bytes, str]:
    position = decode_position(data)
    assert parse_position(position.flavor, str(position)) == position
    return position.encode(), f"{position.flavor} {position}".strip()


def _token(data: bytes) -> tuple[bytes, str]:
    token = EventToken.decode(data)
    assert EventToken.parse(str(token)) == token
    said = (
        f"{token}: lineage {token.lineage} shard {token.shard} epoch {token.epoch} "
        f"timestamp_us {token.timestamp_us} position {token.position}"
    )
    return token.encode(), said


def _entry(data: bytes) -> tuple[bytes, str]:
    entry = Filled.decode(data)
    (stamp,) = entry.stamps
    value = "no such row" if entry.value is None else f"value {entry.value.hex()}"
    if entry.is_parted and entry.value is not None:
        manifest = Manifest.decode(entry.value)
        value = f"{manifest.size} bytes in parts of {manifest.part_bytes}, digest {manifest.digest.hex()}"
        assert manifest.encode() == entry.value
    said = f"{stamp.lineage} life {stamp.life.hex()} epoch {stamp.epoch} position {stamp.position}"
    said += "" if stamp.until is None else f" until {stamp.until}"
    return entry.encode(), f"{said}; identity {entry.identity.hex()}; {value}"


def _stripe(data: bytes) -> tuple[bytes, str]:
    stripe = Stripe.decode(data)
    said = f"life {stripe.life.hex()} position {stripe.position}; chunks {stripe.chunk_count}"
    return (stripe.encode() if stripe.chunk_count == 1 else data), said


def _pending(data: bytes) -> tuple[bytes, str]:
    pending = PendingStripe.decode(data)
    said = [f"nonce {pending.nonce.hex()}"]
    said += [f"life {life.hex()} position {position}" for life, position in pending.chunks]
    return pending.encode() + b"".join(encode_chunk(*chunk) for chunk in pending.chunks), "; ".join(said)


def _record(data: bytes) -> tuple[bytes, str]:
    record = NodeRecord.decode(data)
    floors = ", ".join(f"{table} {position}" for table, position in record.table_floors.items())
    objects = ", ".join(
        f"{name} {coverage.fingerprint:08x} {coverage.start}" for name, coverage in record.objects.items()
    )
    said = (
        f"{record.lineage} life {record.life.hex()} tenure {record.tenure.hex()} "
        f"{'open' if record.is_open else 'closed'} epoch {record.epoch} ring {record.ring:08x} "
        f"as of {record.as_of_us} age {record.heartbeat_age_ms} "
        f"node {record.node} stripes {record.stripes} primary {record.primary} topology {record.topology}; "
        f"progress {record.progress}; floor {record.floor}; "
        f"table floors {floors}; objects {objects}"
    )
    return record.encode(), said


def _value(data: bytes) -> tuple[bytes, str]:
    value = decode_value(data)
    # Another release of zstd may compress otherwise; what it compressed must stay readable.
    return data if data[:1] == PACKED else encode_value(value), repr(value)


DECODERS = {
    "varint": _varint,
    "position": _position,
    "token": _token,
    "entry": _entry,
    "stripe": _stripe,
    "pending": _pending,
    "record": _record,
    "value": _value,
}


def _examples() -> list[tuple[str, str, str]]:
    return [
        (kind, *line.split(" → ", 1))  # type: ignore[misc]
        for kind, text in _snippets(DOCS / "wire-format.md", "wire")
        for line in text.splitlines()
    ]


def test_every_kind_of_bytes_has_examples() -> None:
    count: dict[str, int] = defaultdict(int)
    for kind, _, _ in _examples():
        count[kind] += 1
    assert set(count) == set(DECODERS)
    assert count["entry"] >= 2


@pytest.mark.parametrize(("kind", "encoded", "said"), _examples())
def test_the_documented_bytes_are_read_and_written_as_documented(kind: str, encoded: str, said: str) -> None:
    again, decoded = DECODERS[kind](bytes.fromhex(encoded))
    assert decoded == said
    assert again.hex() == encoded
    if kind in ("position", "token", "stripe", "pending", "record"):  # of known length, so a cut is seen
        with pytest.raises(FormatError):
            DECODERS[kind](bytes.fromhex(encoded)[:-1])
