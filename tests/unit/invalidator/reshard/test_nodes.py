"""The files of a change of nodes, and which step is due by what the nodes say: without servers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from freshness.algorithm.envelope import record_key, resume_key
from freshness.algorithm.request import Add
from freshness.config.config import Config, load_config
from freshness.errors import ConfigError, FreshnessError, StepRefused
from freshness.nodes.memory import MemoryNode, MemoryStore
from invalidator.reshard import nodes
from invalidator.rules.finding import CheckFinding
from invalidator.rules.rule import Rule

NODE, NEW = "[::1]:1", "b:1"
REST = """namespace = "shop"  # a comment
backend = "memory"

[keyspaces.shop]
flavor = "mysql"
[[keyspaces.shop.shards]]
primary = "mysql://app@127.0.0.1:1/shop"
"""
TEXT = f"""# The file of the shop
topology = 7  # the present one

[cache]  # of all
nodes = ["{NODE}"]  # in the cellar
{REST}"""
CHANGING = TEXT.replace("topology = 7", "topology = 8").replace(
    f'nodes = ["{NODE}"]  # in the cellar\n',
    f'nodes = ["{NODE}", "{NEW}"]  # in the cellar\nprevious_nodes = ["{NODE}"]\n',
)


def load(folder: Path, text: str) -> Config:
    (folder / "freshness.toml").write_text(text)
    return load_config(folder / "freshness.toml", {})


def entry(node: str = NODE, **changed: Any) -> dict[str, Any]:
    open_one = {"state": "open", "topology": 8, "stripes_there_percent": 100, "stripes": 65536}
    return {"node": node, "lineage": "shop/-", "previous_readers": [], **open_one, **changed}


# -- the next file -----------------------------------------------------------------------------------------------


def test_a_change_and_back_keep_all_other_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = nodes.change_nodes(load(tmp_path, TEXT), partial(nodes.add, nodes=[NEW]))
    assert text == CHANGING
    monkeypatch.setattr(nodes, "read_nodes", lambda _: [entry(), entry(NEW)])
    text = nodes.finish(load(tmp_path, text), is_after_ttl=False)
    assert text == TEXT.replace("topology = 7", "topology = 9").replace(f'"{NODE}"]', f'"{NODE}", "{NEW}"]')


def test_an_array_of_several_lines_stays_one_and_a_topology_is_added(tmp_path: Path) -> None:
    config = load(tmp_path, f'[cache]\n  nodes = [\n    "{NODE}",\n    "c:1",\n  ]\n{REST}')
    text = nodes.change_nodes(config, partial(nodes.replace_node, previous="c:1", node=NEW))
    begin = f'topology = 2\n\n[cache]\n  nodes = [\n      "{NODE}",\n      "{NEW}",\n  ]\n'
    assert text == f'{begin}  previous_nodes = ["{NODE}", "c:1"]\n{REST}'
    assert '\n  nodes = [\n      "c:1",\n  ]\n' in nodes.change_nodes(config, partial(nodes.remove, nodes=[NODE]))


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        (f'nodes = ["{NODE}"]  # in', f'nodes = [\n"{NODE}", # first\n]  # in'),
        (f'nodes = ["{NODE}"]', f'"nodes" = ["{NODE}"]'),
        ("[cache]", '["cache"]'),
        ("topology = 7", '"topology" = 7'),
    ],
)
def test_a_file_that_cannot_be_changed_as_text(tmp_path: Path, given: str, changed: str) -> None:
    config = load(tmp_path, TEXT.replace(given, changed))
    with pytest.raises(ConfigError, match="cannot be changed as text") as raised:
        nodes.change_nodes(config, partial(nodes.add, nodes=[NEW]))
    assert raised.value.hint == (
        f'write yourself: topology = 8, and in [cache]:\nnodes = ["{NODE}", "{NEW}"]\nprevious_nodes = ["{NODE}"]\n'
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (partial(nodes.add, nodes=[NODE]), "has [::1]:1 already"),
        (partial(nodes.remove, nodes=["c:1"]), "does not have c:1"),
        (partial(nodes.replace_node, previous="c:1", node=NEW), "does not have c:1"),
        (partial(nodes.replace_node, previous=NODE, node=NODE), "has [::1]:1 already"),
        (partial(nodes.remove, nodes=[NODE]), "an empty array"),
        (partial(nodes.add, nodes=[NEW, NEW]), "each node once"),
    ],
)
def test_a_change_that_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        nodes.change_nodes(load(tmp_path, TEXT), change)
    assert message in raised.value.message


def test_a_name_that_is_none_and_a_node_that_does_not_answer(tmp_path: Path) -> None:
    config = load(tmp_path, TEXT.replace('backend = "memory"\n', ""))
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        nodes.change_nodes(config, partial(nodes.add, nodes=["b"]))
    with pytest.raises(StepRefused, match=r"not changed: .*127\.0\.0\.1:1"):
        nodes.change_nodes(config, partial(nodes.add, nodes=["127.0.0.1:1"]))


def test_findings_of_nodes_that_stay_hinder_nothing_but_two_names() -> None:
    of_present = [CheckFinding(rule, "bad", "mend", NODE) for rule in (Rule.NODE_DOWN, Rule.NODE_RIGHT)]
    nodes._require_sound(of_present, {NEW})
    for finding in (
        CheckFinding(Rule.TWO_NAMES, "two", "one", NODE),
        CheckFinding(Rule.NODE_RIGHT, "no", "one", NEW),
    ):
        with pytest.raises(StepRefused, match=finding.message):
            nodes._require_sound([*of_present, finding], {NEW})


def test_one_change_at_a_time(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a change of the nodes is under way"):
        nodes.change_nodes(load(tmp_path, CHANGING), partial(nodes.add, nodes=["c:1"]))


def test_nodes_are_discovered_as_they_are_added(tmp_path: Path) -> None:
    line = 'nodes_from = "file:nodes"\n'
    config = load(tmp_path, TEXT.replace("[cache]  # of all\n", f"[cache]  # of all\n{line}"))
    (tmp_path / "nodes").write_text(f"{NEW}\n{NODE}\n")
    text = nodes.discover(config)
    assert text is not None
    assert text.replace(line, "") == CHANGING
    (tmp_path / "nodes").write_text(f"{NEW}\n{NODE}\nc:1\n")
    with pytest.raises(ConfigError, match="a change of the nodes is under way"):
        nodes.discover(load(tmp_path, text))
    (tmp_path / "nodes").write_text(f"{NODE}\n")
    assert nodes.discover(config) is None
    with pytest.raises(ConfigError, match=r"has no cache\.nodes_from"):
        nodes.discover(load(tmp_path, TEXT))


def test_a_source_that_lacks_a_node_removes_none(tmp_path: Path) -> None:
    text = TEXT.replace("[cache]", '[cache]\nnodes_from = "file:nodes"').replace(f'"{NODE}"]', f'"{NODE}", "c:1"]')
    (tmp_path / "nodes").write_text(f"{NODE}\n{NEW}\n")
    with pytest.raises(StepRefused, match=r"does not name c:1 of cache\.nodes: nothing is changed") as raised:
        nodes.discover(load(tmp_path, text))
    assert raised.value.hint == "wait until it does, or if it is to go: invalidator nodes remove c:1"


# -- the steps ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "step", "missing"),
    [
        ({}, "finish", []),
        ({"state": "closed"}, "load", ["b:1 of shop/-: closed"]),
        ({"state": "unavailable", "error": "it is down"}, "load", ["b:1 of shop/-: unavailable: it is down"]),
        ({"topology": 7}, "load", ["b:1 of shop/-: of topology 7"]),
        ({"stripes_there_percent": 99.5}, "load", ["b:1 of shop/-: 99.5 % of its stripes are there"]),
        ({"previous_readers": ["app:7"]}, "applications", ["app:7 still reads by the previous nodes (seen on b:1)"]),
    ],
)
def test_the_step_that_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], step: str, missing: list[str]
) -> None:
    config, entries = load(tmp_path, CHANGING), [entry(), entry(NEW, **changed)]
    found = nodes.find_step(config, entries)
    assert (found.name, list(found.missing)) == (step, missing)
    monkeypatch.setattr(nodes, "read_nodes", lambda _: entries)
    if step != "finish":
        with pytest.raises(StepRefused) as raised:
            nodes.finish(config, is_after_ttl=True)
        assert missing[0] in raised.value.message


def test_without_a_change_there_is_nothing_to_finish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load(tmp_path, TEXT)
    entries = [entry(topology=7)]
    monkeypatch.setattr(nodes, "read_nodes", lambda _: entries)
    assert nodes.find_step(config, entries).name == "none"
    with pytest.raises(StepRefused, match="no change of the nodes is under way"):
        nodes.finish(config, is_after_ttl=False)


def test_after_a_removal_the_operator_says_that_entries_have_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load(tmp_path, CHANGING.replace(f'previous_nodes = ["{NODE}"', 'previous_nodes = ["c:1"'))
    entries = [entry(), entry(NEW), entry("c:1")]
    assert nodes.find_step(config, entries).name == "expire"
    entries[-1] = {
        "node": "c:1",
        "lineage": "shop/-",
        "state": "unavailable",
        "error": "it is removed since it is down",
    }
    assert nodes.find_step(config, entries).name == "expire"
    monkeypatch.setattr(nodes, "read_nodes", lambda _: entries)
    with pytest.raises(StepRefused, match="nothing shows that entries from before have expired"):
        nodes.finish(config, is_after_ttl=False)
    assert "previous_nodes" not in nodes.finish(config, is_after_ttl=True)


def test_a_shard_that_does_not_serve_is_closed(tmp_path: Path) -> None:
    config = load(tmp_path, CHANGING)
    (shard,) = config.keyspaces["shop"].shards
    keyspace = replace(config.keyspaces["shop"], shards=(replace(shard, serving=False),))
    config = replace(config, keyspaces={"shop": keyspace})
    assert nodes.find_step(config, [entry(state="closed"), entry(NEW, state="closed")]).name == "finish"
    assert nodes.find_step(config, [entry(state="lapsed")]).name == "load"


# -- a node with another number of stripes -----------------------------------------------------------------------


def test_a_node_is_renewed_while_all_others_are_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load(tmp_path, TEXT.replace(f'"{NODE}"]', f'"{NODE}", "{NEW}"]'))
    entries = [entry(topology=7, stripes=8), entry(NEW, topology=7)]
    found = nodes.find_step(config, entries)
    assert (found.name, found.todo) == ("renew", f"invalidator nodes renew {NODE}")
    assert found.missing == [f"{NODE} has 8 stripes, cache.stripes = 65536"]
    store = MemoryStore(NODE, clock=lambda: 1000.0)
    keys = [key("shop", "shop/-") for key in (record_key, resume_key)]
    MemoryNode(store).perform([Add(key, b"x", 0) for key in keys])
    monkeypatch.setattr(nodes, "open_node", lambda _, __: MemoryNode(store))
    monkeypatch.setattr(nodes, "read_nodes", lambda _: entries)
    for node, state, error in ((NODE, "closed", StepRefused), ("c:1", "open", ConfigError)):
        entries[1]["state"] = state
        with pytest.raises(FreshnessError) as raised:
            nodes.renew(config, node)
        assert isinstance(raised.value, error)
        assert all(store.peek(key) for key in keys)
    nodes.renew(config, NODE)
    assert not any(store.peek(key) for key in keys)
