"""The testing kit in a Django project: its page's bug is caught, and its rows are those of Django's own backend.

Django is set up in a process of its own for each: other tests of this process must not meet it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

CHECKOUT: Final = Path(__file__).parents[3]
TUTORIAL: Final = CHECKOUT / "docs" / "django.md"
PAGE: Final = CHECKOUT / "docs" / "testing-your-application.md"


def snippets(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def write_project(folder: Path, prices: str) -> None:
    """The project of docs/django.md's tutorial, with the tests of the page."""
    named = [text.split("\n", 1) for text in snippets(TUTORIAL, "python") if text.startswith("# ")]
    parts = {name.removeprefix("# "): text for name, text in named}
    (text,) = snippets(TUTORIAL, "toml")
    (folder / "freshness.toml").write_text(text)
    begun = (
        "from pathlib import Path\nBASE_DIR = Path(__file__).parents[1]\nSECRET_KEY = 'of a test'\nUSE_TZ = True\n"
        "INSTALLED_APPS = ['django.contrib.contenttypes', 'django.contrib.auth']\nMIDDLEWARE = []\n"
        "DEFAULT_AUTO_FIELD = 'django.db.models.BigAutoField'\n"
    )
    (tests,) = [text for text in snippets(PAGE, "python") if "CachedTestCase" in text]
    files = {
        "project/__init__.py": parts["project/__init__.py"],
        "project/settings.py": begun + parts["project/settings.py"],
        "shop/__init__.py": "",
        "shop/models.py": parts["shop/models.py"],
        "shop/router.py": parts["shop/router.py"],
        "shop/prices.py": prices,
        "shop/tests.py": tests,
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def run_django(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{CHECKOUT}:{folder}", "DJANGO_SETTINGS_MODULE": "project.settings"}
    environment |= {"INVALIDATOR_PASSWORD": "of the tutorial", "WEBAPP_PASSWORD": "of the tutorial"}
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


def test_the_bug_of_the_django_project_is_caught(tmp_path: Path) -> None:
    bug, mended = [text for text in snippets(PAGE, "python") if "def raise_price" in text]
    write_project(tmp_path, bug)
    found = run_django(tmp_path, "-m", "django", "test", "shop")
    assert "('lamp', 110) != ('Lamp', 110)" in found.stderr
    assert "('lamp', 110) != ('Lamp', 110)" in PAGE.read_text()
    assert "Ran 3 tests" in found.stderr
    assert "FAILED (failures=1)" in found.stderr
    (tmp_path / "shop" / "prices.py").write_text(mended)
    found = run_django(tmp_path, "-m", "django", "test", "shop")
    assert found.stderr.endswith("\nOK\n"), found.stderr


SETTINGS: Final = """
import pymysql
pymysql.install_as_MySQLdb()
from integration.django.project import SETTINGS
globals().update(SETTINGS)
ROOT_URLCONF = "kit_urls"
FRESHNESS = {"CONFIG": "freshness.toml", "ON_READ": "kit_urls.note"}
DATABASES = {
    alias: {"ENGINE": "django.db.backends.mysql", "HOST": "localhost", "PORT": port, "NAME": name}
    for alias, port, name in (("default", 3306, "shop"), ("replica", "3307", "shop"), ("other", 3308, "other"))
}
"""

URLS: Final = """
from django.http import JsonResponse
from django.urls import path
from integration.django.shop.models import Owner

outcomes = []


def note(read):
    outcomes.append(read.outcome.name)


def rename(request, key, name):
    Owner.objects.filter(pk=key).update(name=name)
    return JsonResponse({})


def show(request, key):
    return JsonResponse({"name": Owner.objects.get(pk=key).name})


def nothing(request):
    return JsonResponse({})


urlpatterns = [path("nothing", nothing), path("<int:key>/<name>", rename), path("<int:key>", show)]
"""

TESTS: Final = """
from django.core.management import call_command
from django.db import transaction
from django.test.testcases import DatabaseOperationForbidden
from kit_urls import outcomes

from appclient.django import get_cache, session
from appclient.testing.django import CachedTestCase
from integration.django.shop.models import Code, Note, Owner, Thing


class Kept(CachedTestCase):
    fixtures = ["owners"]

    def setUp(self):
        outcomes.clear()

    def test_an_instance_is_that_of_the_orm(self):
        given = ({"owner_id": 7}, {"maybe": True, "document": {"a": [1, None]}, "price": 1})
        made = [Thing.objects.create(**values) for values in given]
        for thing in made:
            expected = Thing.objects.filter(pk=thing.pk).get()
            for _ in range(2):
                found = Thing.objects.get(pk=thing.pk)
                for field in Thing._meta.concrete_fields:
                    one, other = getattr(found, field.attname), getattr(expected, field.attname)
                    self.assertEqual((field.name, type(one), one), (field.name, type(other), other))
        self.assertEqual(outcomes, ["FILLED", "HIT", "FILLED", "HIT"])
        self.assertEqual(set(Thing.objects.in_bulk([each.pk for each in made])), {each.pk for each in made})
        self.assertEqual(Thing.objects.get(pk=made[0].pk).owner.name, "Ada")

    def test_an_instance_is_whole_whatever_other_managers_read(self):
        Code.objects.create(code="a", v=3)
        found = Code.objects.get(pk="a")
        self.assertEqual((found.v, found.get_deferred_fields(), hasattr(found, "doubled")), (3, set(), False))

    def test_a_fixture_is_there_in_each_test(self):
        self.assertEqual(Owner.objects.get(pk=7).name, "Ada")
        Owner.objects.all().delete()
        with self.assertRaises(Owner.DoesNotExist):
            Owner.objects.get(pk=7)

    def test_a_fixture_is_there_again(self):
        self.test_a_fixture_is_there_in_each_test()

    def test_transactions(self):
        code = Code.objects.create(code="a")
        Code.objects.get(pk="a")
        self.system.stop_replication()
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            Code.objects.filter(pk="a").update(v=1)
            self.assertEqual(Code.objects.get(pk="a").v, 1)
            1 / 0
        self.assertEqual(Code.objects.get(pk="a").v, 0)
        with transaction.atomic():
            Code.objects.filter(pk="a").update(v=2)
        with session.serving(session.Session()):
            self.assertEqual(Code.objects.get(pk="a").v, 0, "of another client, by the replica")
        self.assertEqual(Code.objects.get(pk="a").v, 2)

    def test_the_cookie_carries_the_commits(self):
        self.client.get("/7")
        self.system.stop_replication()
        self.assertNotIn("Vary", self.client.get("/nothing").headers)
        self.assertEqual(self.client.get("/7").headers["Vary"], "Cookie")
        self.assertEqual(self.client.get("/7/Grace").headers["Vary"], "Cookie")
        self.assertEqual(self.client_class().get("/7").json(), {"name": "Ada"})
        self.assertEqual(self.client.get("/7").json(), {"name": "Grace"})

    def test_other_databases_are_refused(self):
        with self.assertRaises(DatabaseOperationForbidden):
            Note.objects.using("other").count()


class Stale(CachedTestCase):
    fixtures = ["owners"]

    def test_is_found(self):
        cache = get_cache()
        read = []

        @cache.loader("profile")
        def load(db, key):
            read.append(key)
            return len(read)

        cache.get("profile", 7)


class Skipped(CachedTestCase):
    def test_none(self):
        self.skipTest("it has a system, too")
"""


def test_instances_transactions_and_requests(tmp_path: Path) -> None:
    (text,) = snippets(TUTORIAL, "toml")
    head, _, _ = text.partition("[objects.product]")
    objects = "".join(f'[objects.{name}]\ntable = "shop_{name}"\n' for name in ("owner", "thing", "code"))
    profile = '[objects.profile]\nkey = "owner_id"\nmembers = { shop_owner = "id" }\n'
    (tmp_path / "freshness.toml").write_text(head + objects + profile)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "settings.py").write_text(SETTINGS + "FIXTURE_DIRS = ['.']\n")
    (tmp_path / "kit_urls.py").write_text(URLS)
    (tmp_path / "owners.json").write_text('[{"model": "shop.owner", "pk": 7, "fields": {"name": "Ada"}}]')
    (tmp_path / "tests.py").write_text(TESTS)
    found = run_django(tmp_path, "-m", "django", "test", "tests")
    assert "FAIL: test_is_found" in found.stderr, found.stderr
    assert "profile 7: the cache has 1, the primary 2" in found.stderr
    assert "Ran 9 tests" in found.stderr
    assert "FAILED (failures=1, skipped=1)" in found.stderr, found.stderr
