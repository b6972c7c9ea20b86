"""Objects as both sides understand them: their keys, and the fingerprint that distinguishes two definitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from freshness.config.config import Config, load_config
from freshness.database.schema import keyspace_id
from freshness.errors import ConfigError, FormatError
from freshness.keys.keycolumn import ColumnKind, KeyColumn
from freshness.objects.registry import ObjectDefinition, build_registry

HEAD = """
[cache]
nodes = ["127.0.0.1:11211"]
namespace = "shop"
value_ttl_seconds = 60
[keyspaces.shop]
flavor = "mysql"
[[keyspaces.shop.shards]]
primary = "mysql://app@127.0.0.1:3306/shop"
"""
CUSTOMER = """
[objects.customer]
table = "customers"
"""
PROFILE = """
[objects.profile]
key = "customer_id"
members = { customers = "id", orders = "customer_id" }
"""
INTEGER = KeyColumn("id", ColumnKind.INTEGER)
PAGE = """
[objects.page]
key = ["tenant_id", "slug"]
members = { pages = ["tenant_id", "slug"], blocks = ["tenant", "page"] }
"""
SLUG = KeyColumn("slug", ColumnKind.STRING, "utf8mb4_bin")
SCHEMA: dict[str, KeyColumn] = {
    "customers": INTEGER,
    "customers_id": INTEGER,
    "customers_customer_id": KeyColumn("customer_id", ColumnKind.INTEGER),
    "orders_customer_id": KeyColumn("customer_id", ColumnKind.INTEGER),
    "pages_tenant_id": KeyColumn("tenant_id", ColumnKind.INTEGER),
    "pages_slug": SLUG,
    "blocks_tenant": KeyColumn("tenant", ColumnKind.INTEGER),
    "blocks_page": replace(SLUG, name="page"),
    "blocks_tenant_id": KeyColumn("tenant_id", ColumnKind.INTEGER),
    **{
        f"{table}_{name}": KeyColumn(name, ColumnKind.INTEGER) for table in ("cells", "others") for name in ("x", "y")
    },
}
"""By table and column; by table alone, its primary key."""
Define = Callable[..., dict[str, ObjectDefinition]]


@pytest.fixture
def define(tmp_path: Path) -> Define:
    """The registry of a file, with a schema that may differ from the usual one."""

    def build(objects: str, **changes: tuple[KeyColumn, ...]) -> dict[str, ObjectDefinition]:
        path = tmp_path / "freshness.toml"
        path.write_text(HEAD + objects)
        config: Config = load_config(path, {})

        def find_columns(keyspace: str, table: str, names: tuple[str, ...], *_: object) -> tuple[KeyColumn, ...]:
            assert keyspace == "shop"
            if table in changes:
                return changes[table]
            places = [f"{table}_{name}" for name in names] or [table]
            return tuple(column for each in places for column in changes.get(each) or (SCHEMA[each],))

        return build_registry(config, find_columns, keyspace_id)

    return build


def test_a_row_object_is_keyed_by_the_primary_key(define: Define) -> None:
    customer = define(CUSTOMER)["customer"]
    assert customer.columns_by_table == {"customers": (INTEGER,)}
    assert (customer.policy.name, customer.policy.tables) == ("customer", ("customers",))
    assert customer.policy.lineages == ("shop/-",)
    assert customer.policy.value_ttl_seconds == 60
    key = customer.builder.build((42,))
    assert key.item == b"shop:customer:42"
    assert customer.identity(key) == customer.policy.fingerprint.to_bytes(4, "big") + b"42"


def test_an_object_that_can_no_longer_be_read_is_closed_and_keeps_its_keys(tmp_path: Path) -> None:
    path = tmp_path / "freshness.toml"
    path.write_text(HEAD + CUSTOMER + PROFILE)
    config = load_config(path, {})
    gone: set[str] = set()

    def find_columns(_: str, table: str, names: tuple[str, ...], *__: object) -> tuple[KeyColumn, ...]:
        if table in gone:
            raise ConfigError(f"{table} is gone")
        return tuple(SCHEMA[f"{table}_{name}"] for name in names) or (SCHEMA[table],)

    before = build_registry(config, find_columns, keyspace_id)
    gone.add("orders")
    with pytest.raises(ConfigError, match="orders is gone"):
        build_registry(config, find_columns, keyspace_id)
    after = build_registry(config, find_columns, keyspace_id, previous=before)
    assert after["customer"].policy == before["customer"].policy
    assert after["profile"].policy.fingerprint != before["profile"].policy.fingerprint
    assert after["profile"].columns_by_table == before["profile"].columns_by_table
    again = build_registry(config, find_columns, keyspace_id, previous=after)
    assert again["profile"].policy == after["profile"].policy, "a life is not ended twice for one reason"
    gone.clear()
    assert (
        build_registry(config, find_columns, keyspace_id, previous=again)["profile"].policy
        == before["profile"].policy
    )
    gone.add("customers")  # which nobody asks for
    some = build_registry(config, find_columns, keyspace_id, previous=before, tables=frozenset(("elsewhere",)))
    assert some == before
    some = build_registry(config, find_columns, keyspace_id, previous=before, tables=frozenset(("customers",)))
    assert all(some[name].policy != before[name].policy for name in ("customer", "profile"))


def test_a_primary_key_of_two_columns_keeps_their_order(define: Define) -> None:
    columns = (KeyColumn("tenant", ColumnKind.INTEGER), KeyColumn("id", ColumnKind.BINARY))
    customer = define(CUSTOMER, customers=columns)["customer"]
    assert customer.columns_by_table == {"customers": columns}
    assert customer.builder.build((7, b"x")).item.startswith(b"shop:customer:7:")


def test_a_composite_has_one_key_in_all_its_tables(define: Define) -> None:
    """Whichever member changes, the key that is built from its row is the key of the object."""
    profile = define(PROFILE)["profile"]
    assert profile.policy.tables == ("customers", "orders")
    assert {table: columns[0].name for table, columns in profile.columns_by_table.items()} == {
        "customers": "id",
        "orders": "customer_id",
    }
    assert [column.name for column in profile.builder.columns] == ["customer_id"]
    assert profile.builder.build((42,)).item == b"shop:profile:42"


def test_a_composite_of_several_key_columns_has_each_under_the_tables_own_name(define: Define) -> None:
    page = define(PAGE)["page"]
    assert {table: [c.name for c in columns] for table, columns in page.columns_by_table.items()} == {
        "pages": ["tenant_id", "slug"],
        "blocks": ["tenant", "page"],
    }
    assert [column.name for column in page.builder.columns] == ["tenant_id", "slug"]
    assert page.builder.build((7, "a:b")).item == b"shop:page:7:a%3Ab"


def test_two_objects_never_share_an_item_or_an_identity(define: Define) -> None:
    both = define(CUSTOMER + PROFILE)
    keys = {name: definition.builder.build((1,)) for name, definition in both.items()}
    assert len({key.item for key in keys.values()}) == 2
    assert len({both[name].identity(key) for name, key in keys.items()}) == 2


def test_the_fingerprint_depends_on_the_definition_alone(define: Define) -> None:
    """The two sides compute it in two processes, from files that may differ in everything else."""
    first = define(CUSTOMER)["customer"].policy.fingerprint
    assert define(CUSTOMER + PROFILE)["customer"].policy.fingerprint == first
    assert 0 <= first < 2**32


def test_an_upgrade_empties_no_cache(define: Define) -> None:
    """Golden: the fingerprints of rows and of composites with one key column, as entries and records have them."""
    both = define(CUSTOMER + PROFILE)
    assert {name: each.policy.fingerprint for name, each in both.items()} == {
        "customer": 3563967583,
        "profile": 1188957880,
    }
    in_brackets = define(PROFILE.replace('"customer_id"', '["customer_id"]'))["profile"]
    assert in_brackets.policy.fingerprint == 1188957880, "one name needs no brackets, and they change nothing"


@pytest.mark.parametrize(
    ("previous", "new"),
    [
        ('key = ["tenant_id", "slug"]', 'key = ["slug", "tenant_id"]'),
        ('key = ["tenant_id", "slug"]', 'key = ["tenant_id", "path"]'),
        ('"tenant", "page"]', '"tenant_id", "page"]'),
        (', blocks = ["tenant", "page"]', ""),
    ],
)
def test_a_changed_key_of_several_columns_changes_the_fingerprint(define: Define, previous: str, new: str) -> None:
    assert previous in PAGE
    changed = define(PAGE.replace(previous, new))["page"].policy.fingerprint
    assert changed != define(PAGE)["page"].policy.fingerprint


def test_the_order_of_a_members_columns_changes_the_fingerprint(define: Define) -> None:
    """Of one type, they can be turned: then an entry is of another key."""
    grid = '[objects.cell]\nkey = ["x", "y"]\nmembers = { cells = ["x", "y"] }\n'
    turned = define(grid.replace('cells = ["x", "y"]', 'cells = ["y", "x"]'))["cell"]
    assert turned.policy.fingerprint != define(grid)["cell"].policy.fingerprint
    assert [column.name for column in turned.columns_by_table["cells"]] == ["y", "x"]


@pytest.mark.parametrize(
    "columns",
    [
        (KeyColumn("number", ColumnKind.INTEGER),),
        (KeyColumn("id", ColumnKind.BINARY),),
        (KeyColumn("id", ColumnKind.BINARY, length=8),),
        (KeyColumn("id", ColumnKind.STRING, "utf8mb4_bin"),),
        (KeyColumn("id", ColumnKind.STRING, "utf8mb4_general_ci"),),
        (INTEGER, KeyColumn("part", ColumnKind.INTEGER)),
    ],
)
def test_a_changed_key_changes_the_fingerprint(define: Define, columns: tuple[KeyColumn, ...]) -> None:
    """F24, F70: entries of the previous definition then belong to another object."""
    before = define(CUSTOMER)["customer"].policy.fingerprint
    assert define(CUSTOMER, customers=columns)["customer"].policy.fingerprint != before


def test_a_changed_name_or_member_changes_the_fingerprint(define: Define) -> None:
    profile = define(PROFILE)["profile"].policy.fingerprint
    renamed = define(PROFILE.replace("objects.profile", "objects.person"))["person"].policy.fingerprint
    smaller = define(PROFILE.replace(', orders = "customer_id"', ""))["profile"].policy.fingerprint
    other_key = define(PROFILE.replace('key = "customer_id"', 'key = "customer"'))["profile"].policy.fingerprint
    assert len({profile, renamed, smaller, other_key}) == 4


def test_the_order_of_the_members_does_not_matter_to_the_fingerprint(define: Define) -> None:
    turned = PROFILE.replace(
        '{ customers = "id", orders = "customer_id" }', '{ orders = "customer_id", customers = "id" }'
    )
    assert define(turned)["profile"].policy.fingerprint == define(PROFILE)["profile"].policy.fingerprint


def test_members_with_keys_of_several_types_are_refused(define: Define) -> None:
    with pytest.raises(ConfigError) as raised:
        define(PROFILE, orders=(KeyColumn("customer_id", ColumnKind.DECIMAL),))
    text = str(raised.value)
    for part in ("profile", "customers.id is integer", "orders.customer_id is decimal", "one type"):
        assert part in text


@pytest.mark.parametrize("other", ["utf8mb4_general_ci", "utf8mb4_bin"])
@pytest.mark.parametrize("order", [1, -1])
def test_members_with_keys_of_several_spellings_are_refused(define: Define, other: str, order: int) -> None:
    """F24: a composite cannot compare the stored spelling with the one asked for. One such member is enough."""
    one, two = ("utf8mb4_general_ci", other)[::order]
    with pytest.raises(ConfigError) as raised:
        define(
            PROFILE,
            customers=(KeyColumn("id", ColumnKind.STRING, one),),
            orders=(KeyColumn("customer_id", ColumnKind.STRING, two),),
        )
    assert "several spellings" in str(raised.value)
    assert "_bin" in raised.value.hint


def test_members_with_keys_of_several_lengths_are_refused(define: Define) -> None:
    with pytest.raises(ConfigError) as raised:
        define(
            PROFILE,
            customers=(KeyColumn("id", ColumnKind.BINARY, length=4),),
            orders=(KeyColumn("customer_id", ColumnKind.BINARY, length=8),),
        )
    assert "several lengths" in str(raised.value)


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        (KeyColumn("page", ColumnKind.BINARY), "slug in its key has several types"),
        (KeyColumn("page", ColumnKind.STRING, "utf8mb4_general_ci"), "share slug in its key in several spellings"),
    ],
)
def test_each_column_of_a_key_is_checked(define: Define, column: KeyColumn, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as raised:
        define(PAGE, blocks_page=(column,))
    assert f"pages.slug is string, blocks.page is {column.kind.value}" in str(raised.value)


def test_columns_in_another_order_than_the_keys_are_refused_where_types_differ(define: Define) -> None:
    with pytest.raises(ConfigError, match="tenant_id in its key has several types"):
        define(PAGE.replace('["tenant", "page"]', '["page", "tenant"]'))


def test_a_key_of_several_columns_needs_one_scale_in_each(define: Define) -> None:
    number = KeyColumn("n", ColumnKind.DECIMAL, scale=2)
    with pytest.raises(ConfigError, match="slug in its key has several lengths"):
        define(PAGE, pages_slug=(number,), blocks_page=(replace(number, scale=3),))


def test_a_row_object_may_have_a_key_of_several_spellings(define: Define) -> None:
    customer = define(CUSTOMER, customers=(KeyColumn("id", ColumnKind.STRING, "utf8mb4_general_ci"),))
    assert not customer["customer"].builder.is_exact


BY_EMAIL = """
[objects.customer_by_email]
table = "customers"
key = "email"
"""
EMAIL = KeyColumn("email", ColumnKind.STRING, "utf8mb4_general_ci")


def test_a_row_by_a_unique_key_is_keyed_by_its_columns(define: Define) -> None:
    by_email = define(BY_EMAIL, customers_email=(EMAIL,))["customer_by_email"]
    assert by_email.columns_by_table == {"customers": (EMAIL,)}
    assert by_email.builder.columns == (EMAIL,)
    assert not by_email.builder.is_exact
    assert by_email.builder.build(("Ann@x",)).item == b"shop:customer_by_email:ann%40x"


def test_a_row_by_a_key_must_be_the_only_one_and_a_member_need_not(tmp_path: Path) -> None:
    asked: list[tuple[str, tuple[str, ...], bool]] = []

    def find_columns(
        _: str, table: str, names: tuple[str, ...], is_unique: bool, __: object
    ) -> tuple[KeyColumn, ...]:
        asked.append((table, names, is_unique))
        return (INTEGER,)

    path = tmp_path / "freshness.toml"
    path.write_text(HEAD + CUSTOMER + BY_EMAIL + PROFILE)
    build_registry(load_config(path, {}), find_columns, keyspace_id)
    assert asked == [
        ("customers", (), True),
        ("customers", ("email",), True),
        ("customers", ("id",), False),
        ("orders", ("customer_id",), False),
    ]


def test_a_row_and_a_composite_of_one_name_and_key_share_no_entry(define: Define) -> None:
    """Their values differ, and a row of one column could pass for the other's."""
    row, composite = (
        define(f"[objects.found]\n{kind}\n", customers_id=(INTEGER,))["found"].policy.fingerprint
        for kind in ('table = "customers"\nkey = "id"', 'key = "id"\nmembers = { customers = "id" }')
    )
    primary = define('[objects.found]\ntable = "customers"\n')["found"].policy.fingerprint
    assert len({row, composite, primary}) == 3


LATEST = """
[objects.latest]
table = "orders"
key = "customer_id"
order_by = ["placed desc", "total ASC"]
limit = 20
"""


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEMA, "orders", INTEGER)


@pytest.mark.usefixtures("orders")
def test_a_list_is_ordered_to_the_last_row_by_the_primary_key(define: Define) -> None:
    """Equal rows come in one order for each reader, so a list is one value."""
    latest = define(LATEST)["latest"]
    assert latest.order == (("placed", True), ("total", False), ("id", False))
    assert latest.columns_by_table == {"orders": (SCHEMA["orders_customer_id"],)}
    assert latest.builder.build((7,)).item == b"shop:latest:7"
    turned = define(LATEST.replace('["placed desc", "total ASC"]', '["total", "placed desc"]'))["latest"]
    assert turned.order == (("total", False), ("placed", True), ("id", True)), "one index can give it"
    by_id = define(LATEST.replace('["placed desc", "total ASC"]', '"id desc"'))["latest"]
    assert by_id.order == (("id", True),)


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize(
    ("previous", "new"),
    [
        ("limit = 20", "limit = 21"),
        ("placed desc", "placed"),
        ("placed desc", "paid desc"),
        ('["placed desc", "total ASC"]', '["total ASC", "placed desc"]'),
        ('order_by = ["placed desc", "total ASC"]\nlimit = 20', ""),
    ],
)
def test_another_order_or_limit_is_another_list(define: Define, previous: str, new: str) -> None:
    """F70: an entry of the previous list is not a hit for the new one."""
    assert previous in LATEST
    changed = define(LATEST.replace(previous, new))["latest"].policy.fingerprint
    assert changed != define(LATEST)["latest"].policy.fingerprint


@pytest.mark.usefixtures("orders")
def test_another_primary_key_is_another_order(define: Define) -> None:
    changed = define(LATEST, orders=(replace(INTEGER, name="number"),))["latest"]
    assert changed.policy.fingerprint != define(LATEST)["latest"].policy.fingerprint


@pytest.mark.usefixtures("orders")
def test_rows_of_a_list_share_its_key_in_one_spelling(define: Define) -> None:
    with pytest.raises(ConfigError, match="rows can share customer_id in its key in several spellings"):
        define(LATEST, orders_customer_id=(replace(EMAIL, name="customer_id"),))


def test_no_objects_no_definitions(define: Define) -> None:
    registry = define(CUSTOMER)
    assert list(registry) == ["customer"]


# -- shards --------------------------------------------------------------------------------------------

SHARDS = """
[[keyspaces.shop.shards]]
name = "-80"
primary = "mysql://app@127.0.0.1:3306/shop"
[[keyspaces.shop.shards]]
name = "80-"
primary = "mysql://app@127.0.0.1:3307/shop"
[[keyspaces.shop.shards]]
name = "-40"
serving = false
primary = "mysql://app@127.0.0.1:3308/shop"
"""


def sharded(tmp_path: Path, column: str, objects: str) -> dict[str, ObjectDefinition]:
    head = HEAD.partition("[[")[0] + f'sharding = {{ column = "{column}", function = "hash" }}\n' + SHARDS
    path = tmp_path / "freshness.toml"
    path.write_text(head + objects)

    def find_columns(_: str, table: str, names: tuple[str, ...], *__: object) -> tuple[KeyColumn, ...]:
        return tuple(SCHEMA[f"{table}_{name}"] for name in names) or (SCHEMA[table],)

    return build_registry(load_config(path, {}), find_columns, keyspace_id)


def test_a_key_names_its_shard(tmp_path: Path) -> None:
    customer = sharded(tmp_path, "id", CUSTOMER)["customer"]
    # hash(1) = 166b40b44aba4bd6, hash(4) = d2fd8867d50d2dfe
    assert customer.policy_for((1,)).lineages == ("shop/-80",)
    assert customer.policy_for((4,)).lineages == ("shop/80-",)
    assert customer.policy_for(("4",)).lineages == ("shop/80-",)
    assert customer.policy.lineages == ("shop/-80", "shop/80-")


def test_the_policies_of_an_object_differ_in_the_shard_alone(tmp_path: Path) -> None:
    customer = sharded(tmp_path, "id", CUSTOMER)["customer"]
    alone = customer.policy_for((1,))
    assert replace(alone, lineages=customer.policy.lineages) == customer.policy


def test_an_object_whose_key_does_not_tell_the_shard_depends_on_all_that_serve(tmp_path: Path) -> None:
    customer = sharded(tmp_path, "region", CUSTOMER)["customer"]
    assert customer.policy_for((1,)).lineages == ("shop/-80", "shop/80-")


def test_a_composite_is_of_one_shard_only_where_all_members_are(tmp_path: Path) -> None:
    apart = sharded(tmp_path, "customer_id", PROFILE)["profile"]
    assert apart.policy_for((1,)).lineages == ("shop/-80", "shop/80-"), "customers may lie elsewhere"
    together = sharded(tmp_path, "customer_id", PROFILE.replace('"id"', '"customer_id"'))["profile"]
    assert together.policy_for((1,)).lineages == ("shop/-80",)


def test_a_composite_is_of_one_shard_where_all_members_have_the_sharding_column_at_one_place(tmp_path: Path) -> None:
    page = PAGE.replace('"tenant", "page"', '"tenant_id", "page"')
    together = sharded(tmp_path, "tenant_id", page)["page"]
    assert together.policy_for((1, "a")).lineages == ("shop/-80",)
    assert together.policy_for((4, "a")).lineages == ("shop/80-",)
    apart = sharded(tmp_path, "tenant_id", PAGE)["page"]
    assert apart.policy_for((1, "a")).lineages == ("shop/-80", "shop/80-"), "blocks may lie elsewhere"
    turned = '[objects.pair]\nkey = ["a", "b"]\nmembers = { cells = ["x", "y"], others = ["y", "x"] }\n'
    pair = sharded(tmp_path, "x", turned)["pair"]
    assert pair.policy_for((1, 1)).lineages == ("shop/-80", "shop/80-"), "each tells its shard by another value"


@pytest.mark.parametrize("collation", ["utf8mb4_bin", "utf8mb4_general_ci"])
def test_a_unique_key_that_does_not_tell_its_shard_needs_one_spelling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collation: str
) -> None:
    """An index is of one shard: a row of another one may have the same key, spelled otherwise."""
    monkeypatch.setitem(SCHEMA, "customers_email", replace(EMAIL, collation=collation))
    with_shard = BY_EMAIL.replace('"email"', '["id", "email"]')
    assert sharded(tmp_path, "id", with_shard)["customer_by_email"].shards is not None
    if collation == "utf8mb4_bin":
        by_email = sharded(tmp_path, "id", BY_EMAIL)["customer_by_email"]
        assert by_email.policy_for(("a",)).lineages == ("shop/-80", "shop/80-")
        return
    with pytest.raises(ConfigError, match="customers is unique in each shard alone") as refused:
        sharded(tmp_path, "id", BY_EMAIL)
    assert refused.value.hint == "add id to its key, or give email a _bin collation"


def test_a_list_is_of_one_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEMA, "orders", INTEGER)
    latest = sharded(tmp_path, "customer_id", LATEST)["latest"]
    assert latest.policy_for((1,)).lineages == ("shop/-80",)
    with pytest.raises(ConfigError, match="its rows can be in several shards") as refused:
        sharded(tmp_path, "id", LATEST)
    assert refused.value.hint == "add id to its key, or give it a loader"


def test_a_value_without_keyspace_id_is_refused(tmp_path: Path) -> None:
    customer = sharded(tmp_path, "id", CUSTOMER)["customer"]
    with pytest.raises(FormatError):
        customer.policy_for((None,))
    with pytest.raises(FormatError):
        customer.policy_for(("four",))
