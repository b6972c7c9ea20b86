"""The files of a reshard, without servers: what is refused, and what the files in between say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from freshness.config.config import load_config
from freshness.errors import ConfigError
from invalidator.reshard.guide import Guide
from invalidator.reshard.plan import ReshardPlan, Stage, read_plan

HEAD = """topology = {topology}
[cache]
nodes = ["127.0.0.1:1"]
namespace = "shop"
[objects.customer]
table = "customers"
[keyspaces.shop]
flavor = "{flavor}"
sharding = {{ column = "id", function = "hash" }}
"""
SHARD = """[[keyspaces.shop.shards]]
name = "{name}"
lineage = "{lineage}"
primary = "mysql://app:pass%22word@{lineage}:3306/shop"
"""


def shard(name: str, lineage: str, more: str = "") -> str:
    return SHARD.format(name=name, lineage=lineage) + more


def head(topology: int, flavor: str = "mysql") -> str:
    return HEAD.format(topology=topology, flavor=flavor)


PREVIOUS = head(1) + shard("-80", "a") + shard("80-", "b")
FINAL = head(2) + shard("-40", "c") + shard("40-80", "d") + shard("80-", "b")


def write(folder: Path, previous: str = PREVIOUS, final: str = FINAL) -> ReshardPlan:
    (folder / "previous.toml").write_text(previous)
    (folder / "final.toml").write_text(final)
    return read_plan(folder / "previous.toml", folder / "final.toml")


def test_the_files_in_between(tmp_path: Path) -> None:
    plan = write(tmp_path)
    assert [each.lineage for each in plan.sources] == ["a"]
    assert [each.lineage for each in plan.destinations] == ["c", "d"]
    served = {
        stage: {each.lineage: each.serving for each in config.keyspaces["shop"].shards}
        for stage, config in plan.configs.items()
    }
    assert served == {
        Stage.PREVIOUS: {"a": True, "b": True},
        Stage.FOLLOWED: {"a": True, "b": True, "c": False, "d": False},
        Stage.SWAPPED: {"c": True, "d": True, "b": True, "a": False},
        Stage.FINAL: {"c": True, "d": True, "b": True},
    }
    assert {stage: config.topology for stage, config in plan.configs.items()} == {
        Stage.PREVIOUS: 1,
        Stage.FOLLOWED: 1,
        Stage.SWAPPED: 2,
        Stage.FINAL: 2,
    }
    live = tmp_path / "freshness.toml"
    for stage, text in plan.texts.items():
        live.write_text(f"# a comment changes nothing\n{text}")
        assert plan.find_stage(live) is stage
        password = load_config(live).keyspaces["shop"].shards[-1].primary.password
        assert password == 'pass"word', "what is added is spelled as it was"


def test_all_settings_of_a_shard_are_added(tmp_path: Path) -> None:
    more = """replicas = ["mysql://app@r1:3306/shop", "mysql://app@r2:3306/shop"]
continues = ["a"]
lossless_failover = true
[[keyspaces.shop.shards.skip]]
gtid = "00000000-0000-0000-0000-000000000001:7"
reason = 'says "no"'
"""
    plan = write(tmp_path, final=head(2) + shard("-80", "c", more) + shard("80-", "b"))
    followed = plan.configs[Stage.FOLLOWED].keyspaces["shop"].shards[-1]
    final = plan.configs[Stage.FINAL].keyspaces["shop"].shards[0]
    assert not followed.serving
    assert (followed.replicas, followed.continues, followed.lossless_failover, followed.skip) == (
        final.replicas,
        final.continues,
        final.lossless_failover,
        final.skip,
    )


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda text: text.replace("topology = 2", "topology = 1"), "expected more than 1"),
        (lambda text: text.replace("127.0.0.1:1", "127.0.0.1:2"), "outside of their keyspaces"),
        (lambda text: text.replace('function = "hash"', 'function = "xxhash"'), "sharding"),
        (lambda text: text.replace("@b:3306", "@other:3306"), "b is in both files and not the same"),
        (lambda _: head(2) + shard("-80", "a") + shard("80-", "b"), "changes 0 keyspaces"),
        (lambda text: text + shard("-80", "a", "serving = false\n"), "out of the second file"),
        (lambda text: text + shard("-20", "e", "serving = false\n"), "e has serving = false"),
        (
            lambda text: text.replace('lineage = "c"\n', 'lineage = "c"\ncontinues = ["b"]\n', 1),
            "c continues b: expected all that it is made of, a",
        ),
        (lambda text: text.replace('"40-80"', '"40-70"'), "together they hold every key once"),
    ],
)
def test_two_files_that_are_not_one_reshard(tmp_path: Path, change: Callable[[str], str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        write(tmp_path, final=change(FINAL))


def test_a_destination_with_the_lineage_of_a_source(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is in both files and not the same"):
        write(tmp_path, final=head(2) + shard("-40", "a") + shard("40-80", "d") + shard("80-", "b"))


def test_shards_that_are_no_tables_of_their_own(tmp_path: Path) -> None:
    inline = head(1) + 'shards = [{ name = "-", lineage = "a", primary = "mysql://app@a:3306/shop" }]\n'
    with pytest.raises(ConfigError) as refused:
        write(tmp_path, previous=inline, final=head(2) + shard("-80", "c") + shard("80-", "d"))
    assert "a table of its own" in refused.value.hint


def test_the_invalidators_own_file_is_none_of_the_two(tmp_path: Path) -> None:
    plan = write(tmp_path)
    with pytest.raises(ConfigError, match="own file") as refused:
        Guide(plan, tmp_path / "previous.toml")
    assert "copy it" in refused.value.hint
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    with pytest.raises(ConfigError, match="not in the folder"):
        Guide(plan, folder / "freshness.toml")


def test_a_file_that_is_none_of_the_four(tmp_path: Path) -> None:
    plan = write(tmp_path)
    live = tmp_path / "freshness.toml"
    live.write_text(head(3) + shard("-", "z"))
    with pytest.raises(ConfigError, match="none of the four files"):
        plan.find_stage(live)
