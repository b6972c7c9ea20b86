"""The page of the invalidator in a real browser, on real servers: what a person sees while parts of it fail.

``make screenshots`` keeps pictures of the scenes in docs/screenshots.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from freshness.config.cache import FLOW_SECONDS_MAX
from freshness.config.config import load_config
from integration.harness import LEASE_SECONDS, System, running_system, wait_until
from integration.invalidator.test_reshard import deployment, lineage_of
from integration.servers import Pair
from integration.servers.chromium import Browser, open_browser
from integration.servers.process import find_free_port
from integration.shards import catch_up, prepare_copied, stop_writes
from invalidator.http.gates import EVERYTHING
from invalidator.http.overview import OverviewFeed, ViewPolicy
from invalidator.http.service import HttpService, create_api
from invalidator.process.app import Invalidator

pytestmark = pytest.mark.slow

WIDTH: Final = 1000
PHONE_WIDTH: Final = 360
PICTURE_HEIGHT_MAX: Final = 1000
ONE_FLAVOR: Final = pytest.mark.parametrize("flavor", ["mariadb"])
"""The page has nothing to do with the database."""

CONTRAST_MIN: Final = 4.5
"""Of text and what is behind it: WCAG 2, level AA."""

CONTRASTS: Final = """(() => {
  const number = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((each) => each / 255)
    .map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4))
    .reduce((sum, each, at) => sum + each * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const colour = number(getComputedStyle(element).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll('body *')]
    .filter((each) => each.checkVisibility())
    .filter((each) => [...each.childNodes].some((one) => one.nodeType === 3 && one.data.trim()))
    .map((each) => {
      const [a, b] = [light(number(getComputedStyle(each).color)), light(behind(each))].sort((x, y) => y - x);
      return [(a + 0.05) / (b + 0.05), each.textContent.slice(0, 60)];
    });
})()"""
"""For each text that is shown: its contrast, and the text."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


class Dashboard:
    """The page of one service, and the questions of a person to it."""

    def __init__(self, browser: Browser, port: int, pictures: Path | None) -> None:
        self.browser = browser
        self._pictures = pictures
        browser.emulate(width=WIDTH)
        browser.driver.get(f"http://127.0.0.1:{port}/")

    def text(self, selector: str = "body") -> str:
        """All that is shown there."""
        return str(self.browser.driver.find_element(By.CSS_SELECTOR, selector).text)

    def ask(self, script: str) -> Any:
        return self.browser.driver.execute_script(f"return {script}")

    def wait_for(self, *texts: str, selector: str = "body") -> None:
        """Return when all these are shown at once."""
        wait_until(
            lambda: all(text in self.text(selector) for text in texts),
            f"{selector} shows {texts}",
            lambda: self.text(),
        )

    def press(self, *keys: str) -> None:
        self.browser.driver.switch_to.active_element.send_keys(*keys)

    def check_appearance(self) -> None:
        """Nothing is wider than a phone, and every text can be read in both schemes of colours."""
        self.browser.emulate(width=PHONE_WIDTH, height=740)
        width = self.ask("document.documentElement.scrollWidth")
        assert width <= PHONE_WIDTH, f"{width} pixels: it scrolls to the side"
        for dark in (False, True):
            self.browser.emulate(width=WIDTH, dark=dark)
            texts = self.ask(CONTRASTS)
            assert len(texts) > 10
            assert [each for each in texts if each[0] < CONTRAST_MIN] == []
        self.browser.emulate(width=WIDTH)

    def keep(self, name: str, *, width: int = WIDTH, dark: bool = False) -> None:
        """Put a picture of it into the folder, where pictures are asked for."""
        if self._pictures is not None:
            self._pictures.mkdir(exist_ok=True)
            self.browser.emulate(width=width, height=600, dark=dark)
            self.browser.take_screenshot(self._pictures / f"{name}.png", height_max=PICTURE_HEIGHT_MAX)
            self.browser.emulate(width=WIDTH)


Open = Callable[[int], Dashboard]


@pytest.fixture
def look(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Open]:
    """Open the page of a port."""
    folder = request.config.getoption("--screenshots", None)
    browser.list_complaints()
    yield lambda port: Dashboard(browser, port, Path(folder) if folder else None)
    browser.driver.get("about:blank")


@contextmanager
def system_with_page(pair: Pair, folder: Path, **options: Any) -> Iterator[tuple[System, int]]:
    """The system, and the port of its page."""
    port = find_free_port()
    with ExitStack() as stack:
        for name in ("sync_binlog", "innodb_flush_log_at_trx_commit"):  # else the log warns of it
            stack.enter_context(pair.primary.setting(name, 1))
        extra = f'[http]\nlisten = "127.0.0.1:{port}"\n'
        yield stack.enter_context(running_system(pair, folder, extra=extra, **options)), port


def write_rows(system: System, seconds: float) -> None:
    until = time.monotonic() + seconds
    number = 0
    while time.monotonic() < until:
        number += 1
        system.execute("REPLACE INTO customers VALUES (%s, 'n', %s)", number % 50, number)


# -- real servers ------------------------------------------------------------------------------------------------


@ONE_FLAVOR
def test_all_is_well(pair: Pair, tmp_path: Path, look: Open) -> None:
    with system_with_page(pair, tmp_path) as (system, port):
        page = look(port)
        page.wait_for("All is well: 1 shard on 2 nodes", "Live, as of", "streaming")
        assert page.text("#nodes tbody").count("✓") == 0, "signs are of the style sheet"
        assert page.text("#nodes tbody").count("open") == 2
        assert "None since this process began" in page.text()
        assert page.text("#namespace") == "shop"
        assert page.ask("document.title").startswith("✓ All is well")
        before = page.text("#connection")
        write_rows(system, 11)
        wait_until(lambda: page.text("#connection") != before, "the next event has come")
        wait_until(lambda: page.text("[data-fact=transactions]") != "0/s", "there is throughput", page.text)
        page.wait_for("± ", selector="[data-fact=clock]")
        assert page.browser.list_complaints() == [], "errors of the script, or what the policy refused"
        page.check_appearance()
        page.keep("healthy")
        page.keep("healthy-dark", dark=True)
        page.keep("healthy-phone", width=PHONE_WIDTH)


@ONE_FLAVOR
def test_a_node_hangs_and_comes_back(pair: Pair, tmp_path: Path, look: Open) -> None:
    with system_with_page(pair, tmp_path) as (system, port):
        page = look(port)
        page.wait_for("All is well")
        (hung,) = system.nodes[1:]
        hung.pause()
        page.wait_for("not joined", "Problems now", selector="main")
        page.wait_for(f"node {hung.address} of shop/-", "see that memcached runs there", selector="#problems")
        page.wait_for(f"node {hung.address} is out", "times since", selector="#troubles")
        assert "→" not in page.text("#problems"), "the sign of a remedy is of the style sheet"
        assert page.ask("document.title").startswith(f"✕ 1 problem: node {hung.address}")
        assert "bad" in page.ask("document.getElementById('verdict').className")
        page.check_appearance()
        page.keep("node-down")
        hung.resume()
        page.wait_for("All is well", selector="#verdict")
        page.wait_for(f"node {hung.address} is out", selector="#troubles")


@ONE_FLAVOR
def test_the_server_of_a_shard_dies(own_pair: Pair, tmp_path: Path, look: Open) -> None:
    with system_with_page(own_pair, tmp_path) as (_, port):
        page = look(port)
        page.wait_for("All is well")
        own_pair.primary.kill()
        page.wait_for("its stream is not open", f"127.0.0.1:{own_pair.primary.port}", selector="#problems")
        page.wait_for("connecting", selector="#shards")
        page.wait_for("closed", selector="#nodes")
        page.check_appearance()
        page.keep("database-down")
        own_pair.primary.start()
        page.wait_for("All is well", selector="#verdict")


def make_late(pair: Pair, page: Dashboard) -> None:
    """Read from a replica that is 4 s late. It follows nobody for a moment: a look just then leaves it, and one so
    late is not chosen again."""

    def is_late() -> bool:
        return "s behind; leases are not renewed from 6 s on" in page.text("#problems")

    def is_left() -> bool:
        return ", the primary" in page.text("#shards")

    while True:
        pair.replica.replicate_from(pair.primary, delay_seconds=4)
        wait_until(lambda: is_late() or is_left(), "the replica is late, or left")
        if is_late():
            return
        pair.replica.replicate_from(pair.primary)
        wait_until(lambda: not is_left(), "the replica is read again")


@ONE_FLAVOR
def test_the_server_whose_log_is_read_lags(own_pair: Pair, tmp_path: Path, look: Open) -> None:
    # Leases are renewed until the heartbeat is 6 s old
    bounds = {"max_staleness_seconds": 2 * LEASE_SECONDS + FLOW_SECONDS_MAX + 6}
    with system_with_page(own_pair, tmp_path, cache=bounds, stream={"replica_choice": "slowest"}) as (system, port):
        page = look(port)
        page.wait_for("All is well")
        make_late(own_pair, page)
        assert "warn" in page.ask("document.getElementById('verdict').className")
        page.wait_for("open", selector="#nodes tbody")
        write_rows(system, 5)
        page.check_appearance()
        page.keep("lagging")
        own_pair.replica.replicate_from(own_pair.primary)
        page.wait_for("All is well", selector="#verdict")


def test_a_reshard_is_told_from_its_begin_to_its_end(tmp_path: Path, look: Open) -> None:
    port = find_free_port()
    section = f'[http]\nlisten = "127.0.0.1:{port}"\n'
    with deployment("mariadb", tmp_path, ["-"], sections=section, replicas=0) as (made, router):
        page = look(port)
        page.wait_for("All is well: 1 shard on 2 nodes")
        assert "reshard" not in page.text("main")
        previous = router.shards
        reshard = prepare_copied(made.cluster, previous, ["-80", "80-"])
        (source,), destinations = map(lineage_of, previous), [*map(lineage_of, reshard.destinations)]
        made.reload(previous, reshard.destinations)
        page.wait_for("A reshard is under way", *destinations, f"are served by {source}", selector="main")
        page.wait_for("All is well: 3 shards on 2 nodes", selector="#verdict")
        assert page.text("#shards").count("followed, does not serve") == 2
        page.check_appearance()
        page.keep("reshard")
        stop_writes(reshard)
        catch_up(reshard)
        made.reload(reshard.destinations, previous)
        page.wait_for(source, f"are served by {', '.join(destinations)}", selector="#reshards")
        made.reload(reshard.destinations)
        page.wait_for("All is well: 2 shards on 2 nodes", selector="#verdict")
        assert "reshard" not in page.text("main")


@ONE_FLAVOR
def test_the_invalidator_goes_and_comes_back(pair: Pair, tmp_path: Path, look: Open) -> None:
    with system_with_page(pair, tmp_path) as (system, port):
        page = look(port)
        page.wait_for("All is well")
        system.invalidator.kill()
        page.wait_for("No connection since", "UTC", selector="#verdict")
        page.wait_for("Last news", "ago", "trying again", selector="#connection")
        assert "stale" in page.ask("document.getElementById('main').className")
        page.check_appearance()
        page.keep("no-connection")
        system.invalidator.start()
        page.wait_for("All is well", selector="#verdict")
        page.wait_for("Live, as of", selector="#connection")
        # It hangs: the connection is open, and nothing comes
        system.invalidator.pause()
        page.wait_for("No connection since", selector="#verdict")
        page.wait_for("silent", selector="#connection")
        system.invalidator.resume()
        page.wait_for("All is well", selector="#verdict")


# -- any overview ------------------------------------------------------------------------------------------------

QUICK: Final = ViewPolicy(period_seconds=0.2)


@contextmanager
def page_of(tmp_path: Path, overview: dict[str, Any], *, policy: ViewPolicy = QUICK, **options: Any) -> Iterator[int]:
    """The real service, with an overview that the test makes up."""
    path = tmp_path / "freshness.toml"
    path.write_text(
        '[cache]\nnodes = ["127.0.0.1:21"]\nnamespace = "shop"\n[keyspaces.shop]\nflavor = "mysql"\n'
        '[[keyspaces.shop.shards]]\nprimary = "mysql://app@127.0.0.1:1/shop"\n'
    )
    feed = OverviewFeed(lambda: overview | {"now": time.time()}, policy)
    port = find_free_port()
    api = create_api(Invalidator(load_config(path, {})), dict, overview=feed, **options)
    service = HttpService(api, f"127.0.0.1:{port}")
    service.start()
    try:
        yield port
    finally:
        service.stop()


MARKUP: Final = '<script>document.title = "taken"</script><img src=x onerror="document.title=\'taken\'"><b>bold</b>'
LONG: Final = "x" * 400
NOTHING: Final[dict[str, Any]] = {
    "version": "1", "namespace": "shop", "topology": 1, "summary": "All is well", "problems": [], "shards": [],
    "nodes": [], "previous_nodes": [], "reshards": [], "troubles": [],
}  # fmt: skip


def make_hostile(text: str) -> dict[str, Any]:
    """Every text of the overview is this one."""
    return NOTHING | {
        "version": text,
        "namespace": text,
        "topology": text,
        "summary": text,
        "problems": [{"severity": text, "where": text, "message": text, "remedy": text}],
        "shards": [
            {
                "keyspace": text,
                "shard": text,
                "lineage": text,
                "serving": True,
                "primary": text,
                "log_server": text,
                "state": text,
                "problem": text,
                "position": text,
                "behind_seconds": 0.1,
                "leases_end_at_seconds": 1.0,
                "lag_seconds": {"median": 0.1, "p99": 0.2, "max": None},
                "transactions_per_second": 1.5,
                "keys_per_second": 12345.0,
                "history": {
                    "bucket_seconds": 5.0,
                    "transactions": [1, 0, 3],
                    "keys": [0, 0, 0],
                    "lag_max_seconds": [0.1, None, 0.2],
                },
                "primary_clock_seconds": {"at_least": -0.2, "at_most": 0.1},
            }
        ],
        "previous_nodes": [text],
        "nodes": [
            {
                "node": text,
                "lineage": text,
                "state": text,
                "problem": text,
                "lease_seconds_left": 1.0,
                "heartbeat_age_seconds": None,
                "progress": text,
                "has_all_stripes": False,
                "life": text,
                "epoch": 1,
            }
        ],
        "reshards": [
            {
                "keyspace": text,
                "topology": text,
                "shards": [{"lineage": text, "shard": text, "continues": [text], "beside": [text]}],
            }
        ],
        "troubles": [
            {
                "level": text,
                "logger": text,
                "message": text,
                "error": text,
                "hint": text,
                "first_at": 1.0,
                "last_at": 2.0,
                "count": 3,
            }
        ],
    }


@pytest.mark.parametrize("text", [MARKUP, LONG], ids=["markup", "long"])
def test_data_is_text_and_nothing_else(tmp_path: Path, look: Open, text: str) -> None:
    with page_of(tmp_path, make_hostile(text)) as port:
        page = look(port)
        for selector in ("#verdict", "#problems", "#shards", "#nodes", "#reshards", "#troubles", "#namespace"):
            page.wait_for(text, selector=selector)
        assert page.ask("document.title") != "taken"
        assert page.ask("document.querySelectorAll('b, img, main script').length") == 0
        assert page.browser.list_complaints() == []
        page.check_appearance()


def test_rows_stay_while_their_texts_change(tmp_path: Path, look: Open) -> None:
    """Else the focus and what a person has marked would be lost every second."""
    overview = make_hostile("first")
    with page_of(tmp_path, overview) as port:
        page = look(port)
        page.wait_for("first", selector="#shards")
        page.ask("window.held = document.querySelector('#shards').firstChild")
        overview["shards"][0]["position"] = "second"
        page.wait_for("second", selector="#shards")
        assert page.ask("window.held === document.querySelector('#shards').firstChild") is True
        overview["shards"] = []
        wait_until(lambda: page.text("#shards") == "", "it is gone")


def test_the_access_token_is_asked_for_by_keyboard(tmp_path: Path, look: Open) -> None:
    with page_of(tmp_path, NOTHING, grants={"s3cret": EVERYTHING}) as port:
        page = look(port)
        page.wait_for("Access token of this service", selector="#access")
        assert page.text("#verdict") != "All is well"
        page.press("wrong", Keys.ENTER)
        page.wait_for("demands its access token", selector="#refusal")
        page.check_appearance()
        page.press("s3cret", Keys.ENTER)
        page.wait_for("All is well", selector="#verdict")
        assert page.text("#access") == ""
        page.browser.driver.refresh()
        page.wait_for("All is well", selector="#verdict")
        assert page.ask("sessionStorage.getItem('freshness.token')") == "s3cret"


def test_one_viewer_too_many_is_told_so(tmp_path: Path, look: Open) -> None:
    with page_of(tmp_path, NOTHING, policy=ViewPolicy(viewers_max=0)) as port:
        page = look(port)
        page.wait_for("0 viewers are connected", "trying again", selector="#connection")
        assert page.text("#verdict") == "Nothing is known"


def test_the_end_of_the_service_is_told(tmp_path: Path, look: Open) -> None:
    with page_of(tmp_path, NOTHING) as port:
        page = look(port)
        page.wait_for("All is well", selector="#verdict")
    page.wait_for("No connection since", selector="#verdict")


def test_the_first_key_leads_to_the_shards(tmp_path: Path, look: Open) -> None:
    with page_of(tmp_path, make_hostile("text")) as port:
        page = look(port)
        page.wait_for("text", selector="#shards")
        page.press(Keys.TAB)
        assert page.ask("document.activeElement.textContent") == "Skip to the shards"
        assert page.ask("document.activeElement.getBoundingClientRect().left") >= 0
        page.press(Keys.ENTER)
        assert page.ask("document.activeElement.id") == "shards"
