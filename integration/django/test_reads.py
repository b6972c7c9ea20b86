"""Models read by primary key from the cache are what the ORM itself reads, on real servers."""

from __future__ import annotations

import asyncio
import datetime
import pickle
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.core.signals import setting_changed
from django.db import connections
from django.test import Client, override_settings

from appclient import ConfigError, Explanation, ReadOutcome
from integration.harness import System, wait_for_hits

FILLED_AND_HIT = [ReadOutcome.FILLED, ReadOutcome.HIT]
EXTREMES: list[dict[str, Any]] = [
    {},
    {
        "flag": False,
        "maybe": True,
        "v": -(2**30),
        "small": 0,
        "big": 2**63 - 1,
        "real": 1.7976931348623157e308,
        "celsius": -0.0,
        "price": Decimal("-999999999.999"),
        "name": "",
        "text": "'\"\\\x00\n%s",
        "day": datetime.date(9999, 12, 31),
        "moment": datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC),
        "clock": datetime.time(0, 0, 0, 1),
        "lasts": datetime.timedelta(days=9_999, hours=3, microseconds=1),
        "document": {"a": [1, 1.5, None, True, {"\N{SNOWMAN}": "x"}], "n": 2**40},
        "serial": uuid.UUID(int=0),
        "blob": bytes(range(256)),
        "address": "127.0.0.1",
        "upload": "",
    },
    {"document": None, "maybe": False, "document__is": "SQL NULL"},
]


def assert_same(found: Any, read: Any) -> None:
    """Both have the same fields, of the same types, and the same state."""
    one, other = dict(found.__dict__), dict(read.__dict__)
    state, expected = one.pop("_state"), other.pop("_state")
    assert one == other
    assert {name: type(value) for name, value in one.items()} == {name: type(value) for name, value in other.items()}
    assert (type(found), state.db, state.adding) == (type(read), expected.db, expected.adding)


@pytest.mark.parametrize("zones", [True, False], ids=["time zones", "no time zones"])
@pytest.mark.parametrize("given", EXTREMES, ids=["defaults", "extremes", "nothing"])
def test_each_field_is_as_the_orm_reads_it(
    system: System, reads: list[Explanation], given: dict[str, Any], zones: bool
) -> None:
    from integration.django.shop.models import Thing

    given = {name: value for name, value in given.items() if name != "document__is"}
    made = Thing.objects.create(**given)
    system.settle()
    with override_settings(USE_TZ=zones):
        for _ in range(2):
            assert_same(Thing.objects.get(pk=made.pk), Thing.objects.using("replica").get(pk=made.pk))
    assert [each.outcome for each in reads] == FILLED_AND_HIT


async def read_asynchronously(keys: list[int]) -> tuple[Any, list[int]]:
    from integration.django.shop.models import Thing

    async with ThreadSensitiveContext():  # as each request has one: a thread of its own, with its connections
        found = await Thing.objects.aget(pk=keys[1]), list(await Thing.objects.ain_bulk(keys[:1]))
        await sync_to_async(connections.close_all)()
        return found


def test_foreign_keys_and_several_keys(system: System, reads: list[Explanation]) -> None:
    from integration.django.shop.models import Note, Owner, Thing

    owner = Owner.objects.create(name="Ada")
    things = [Thing.objects.create(owner=owner, v=number) for number in range(3)]
    note = Note.objects.create(thing=things[0], text="a")
    system.settle()
    keys = [each.pk for each in things]
    for _ in range(2):
        found = Thing.objects.in_bulk([*keys, str(keys[0]), 10**9])
        assert {key: each.v for key, each in found.items()} == dict(zip(keys, range(3), strict=True))
        assert found[keys[0]].owner == owner
        assert Note.objects.get(pk=note.pk).thing == things[0]
        assert asyncio.run(read_asynchronously(keys)) == (things[1], [keys[0]])
    assert {each.object_name for each in reads} == {"thing", "owner"}
    assert {each.outcome for each in reads[len(reads) // 2 :]} == {ReadOutcome.HIT}
    assert Thing.objects.in_bulk([]) == {}


def test_models_of_packages(system: System, reads: list[Explanation]) -> None:
    """By their own managers, whatever these are, and by foreign keys to them."""
    from django.contrib.auth.models import Group

    from integration.django.package.models import Link, OtherTag, Tag

    group, tag, dead = Group.objects.create(name="g"), Tag.objects.create(name="t"), Tag(live=False)
    dead.save()
    other, link = OtherTag.objects.create(name="o"), Link.objects.create(tag=tag)
    system.settle()
    for _ in range(2):
        assert Group.objects.get(pk=group.pk) == group
        assert Tag.objects.get(pk=tag.pk) == tag
        assert Link.objects.get(pk=link.pk).tag == tag
        assert Tag.objects.in_bulk([tag.pk]) == {tag.pk: tag}
    assert {each.object_name for each in reads} == {"auth_group", "package_tag"}
    assert [each.outcome for each in reads[-4:]] == [ReadOutcome.HIT] * 4
    reads.clear()
    with pytest.raises(Tag.DoesNotExist):
        Tag.alive.get(pk=dead.pk)
    assert Group.objects.get_by_natural_key("g") == group
    assert list(Tag.objects.spoken()) == [tag]
    assert OtherTag.objects.get(pk=other.pk) == other, "it shares an abstract model with one that is cached"
    restored = pickle.loads(pickle.dumps(Tag.objects.filter(pk=tag.pk)))  # noqa: S301 - of this process
    assert list(restored) == [tag]
    assert not reads


def test_models_of_packages_have_no_new_migrations(system: System) -> None:
    from django.core.management import call_command

    call_command("makemigrations", "auth", check_changes=True, dry_run=True, verbosity=0)


def test_keys_by_all_spellings(system: System, reads: list[Explanation]) -> None:
    from django.shortcuts import get_object_or_404

    from integration.django.shop.models import Code, Thing

    made, code = Thing.objects.create(), Code.objects.create(code="Ab")
    system.settle()
    for found in (
        Thing.objects.get(id=made.pk),
        Thing.objects.get(pk=str(made.pk)),
        Thing.objects.get(id__exact=made.pk),
        Thing.objects.all().get(pk=made.pk),
        get_object_or_404(Thing, pk=made.pk),
    ):
        assert found == made
    assert len(reads) == 5
    assert Code.objects.get(pk="aB").code == code.code == "Ab"
    with pytest.raises(Code.DoesNotExist, match="Code matching query does not exist"):
        Code.objects.get(pk="c")
    with pytest.raises(Thing.DoesNotExist):
        Thing.objects.get(pk=made.pk + 10**6)
    assert len(reads) == 8
    for beyond in (2**63, -(2**70), str(10**30)):
        with pytest.raises(Thing.DoesNotExist):
            Thing.objects.get(pk=beyond)
        assert Thing.objects.in_bulk([beyond]) == {}
    assert len(reads) == 8, "the ORM knows that no column holds them"
    for unusual in ("x" * 300, "", " ", "\N{EARTH GLOBE EUROPE-AFRICA}", "a\x00b"):
        expected = Code.objects.using("replica").filter(pk=unusual).first()
        try:
            assert Code.objects.get(pk=unusual) == expected
        except Code.DoesNotExist:
            assert expected is None


def test_all_else_is_read_by_the_orm(system: System, reads: list[Explanation]) -> None:
    from integration.django.shop.models import Owner, Thing

    owner = Owner.objects.create(name="Ada")
    made = Thing.objects.create(owner=owner)
    system.settle()
    key = made.pk
    for query in (
        Thing.objects.filter(pk=key),
        Thing.objects.using("replica"),
        Thing.objects.db_manager("replica").all(),
        Thing.objects.only("v"),
        Thing.objects.select_related("owner"),
        Thing.objects.prefetch_related("owner"),
        Thing.objects.get_queryset(),
        owner.thing_set,
    ):
        assert query.get(pk=key) == made
    assert Thing.objects.values().get(pk=key)["id"] == key
    assert Thing.objects.get(pk=key, v=0) == made
    assert Thing.objects.get_or_create(pk=key)[0] == made
    for wrong in (10**30, -(10**30)):
        with pytest.raises(Thing.DoesNotExist):
            Thing.objects.get(pk=wrong)
    with pytest.raises(ValueError, match="expected a number"):
        Thing.objects.get(pk="x")
    made.refresh_from_db()
    assert not reads


def test_the_admin_edits_what_the_database_has(system: System, reads: list[Explanation]) -> None:
    from django.contrib.auth.models import User

    from integration.django.shop.models import Code

    User.objects.filter(username="root").delete()
    User.objects.create_superuser("root", password="root")
    code = Code.objects.create(code=f"c{uuid.uuid4().hex[:8]}")
    system.settle()
    client = Client()
    assert client.login(username="root", password="root")
    system.settle()
    assert client.get(f"/admin/shop/code/{code.pk}/change/").status_code == 200
    answer = client.post(f"/admin/shop/code/{code.pk}/change/", {"code": code.pk, "v": 5})
    assert answer.status_code == 302
    assert not reads
    assert Code.objects.using("default").get(pk=code.pk).v == 5


def test_a_database_of_another_name_is_not_read_from_the_cache(system: System, reads: list[Explanation]) -> None:
    from integration.django.shop.models import Thing

    made = Thing.objects.create()
    system.settle()
    connection = connections["replica"]
    previous = dict(connection.settings_dict)
    connection.settings_dict["NAME"] = "test_shop"
    try:
        assert Thing.objects.get(pk=made.pk) == made  # on the connection that is open
    finally:
        connection.settings_dict.update(previous)
    assert not reads


def begin_again() -> None:
    """As another process, which knows no types of columns yet."""
    setting_changed.send(sender=None, setting="FRESHNESS", value=None, enter=False)


def test_a_column_that_reads_otherwise_is_refused(system: System) -> None:
    from integration.django.shop.models import Code

    made = Code.objects.create(code=f"c{uuid.uuid4().hex[:8]}")
    system.execute("ALTER TABLE shop_code DROP COLUMN v, ADD COLUMN v TIMESTAMP NULL")
    system.settle()
    begin_again()
    try:
        with pytest.raises(ConfigError, match=r"Code\.v is a column of type timestamp"):
            Code.objects.get(pk=made.pk)
    finally:
        system.execute("ALTER TABLE shop_code DROP COLUMN v, ADD COLUMN v INT NOT NULL DEFAULT 0")
        begin_again()


@contextmanager
def zone_of_sessions(zone: str) -> Iterator[None]:
    """Sessions of Django on the replica."""
    connection = connections["replica"]
    options = connection.settings_dict["OPTIONS"]
    options["init_command"] = f"SET time_zone = '{zone}'"
    connection.close()
    try:
        yield
    finally:
        del options["init_command"]
        connection.close()


def test_a_column_that_becomes_a_timestamp_under_the_process_is_read_by_the_orm(
    system: System, reads: list[Explanation], caplog: pytest.LogCaptureFixture
) -> None:
    from appclient.django.installed import get_app
    from appclient.django.session import forget
    from integration.django.shop.models import Thing

    made = Thing.objects.create()
    Thing.objects.update(moment=made.moment)  # a TIMESTAMP begins later than the extremes
    system.settle()
    forget()  # a session reads its own commits from the primary, for some seconds
    with zone_of_sessions("+05:00"):
        for _ in range(2):
            assert Thing.objects.get(pk=made.pk).moment == made.moment
        assert [each.outcome for each in reads] == FILLED_AND_HIT
        system.execute("ALTER TABLE shop_thing MODIFY moment TIMESTAMP(6) NOT NULL")
        try:
            system.settle()
            cache = get_app().cache
            wait_for_hits(cache, "thing", [made.pk], system.describe)
            shown = Thing.objects.using("replica").get(pk=made.pk).moment
            assert shown == made.moment + datetime.timedelta(hours=5)
            for _ in range(2):
                assert Thing.objects.get(pk=made.pk).moment == shown
                assert Thing.objects.in_bulk([made.pk])[made.pk].moment == shown
            told = [each.getMessage() for each in caplog.records if "of type timestamp" in each.getMessage()]
            assert len(told) == 1, told
        finally:
            system.execute("ALTER TABLE shop_thing MODIFY moment DATETIME(6) NOT NULL")
            system.settle()
            begin_again()
