"""The built site in a real browser: every page, the search, both colour schemes, a phone, and the interactive page.

`make docs` builds the site and runs this. Elsewhere it is skipped unless there is a site that is up to date, and
Chromium with its driver (Debian: `apt install chromium chromium-driver`) and selenium to look at it with.
"""

from __future__ import annotations

import functools
import http.server
import importlib.util
import json
import os
import shutil
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import torch

from tests.docs.flows import ours

DOCS = Path(__file__).parents[2] / "docs"
SITE = DOCS / "_build" / "html"
BUILT = DOCS / "_build" / "built"  # touched by `make docs` when all pages are there
PHONE, DESK = (375, 760), (1280, 900)


def site_missing() -> str:
    """Why there is no site to test, or nothing."""
    if not BUILT.exists():
        return "the site has not been built: make docs"
    sources = (path for path in DOCS.rglob("*") if path.is_file() and SITE.parent not in path.parents)
    newer = [
        path for path in sources if path.stat().st_mtime > BUILT.stat().st_mtime and "__pycache__" not in str(path)
    ]
    return f"the site is older than {newer[0].relative_to(DOCS)}: make docs" if newer else ""


def browser_missing() -> str:
    """Why there is no browser to test with, or nothing."""
    if importlib.util.find_spec("selenium") is None:
        return "selenium is not installed: it is in the extra docs"
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


NO_SITE = site_missing()
NO_BROWSER = NO_SITE or browser_missing()
needs_site = pytest.mark.skipif(bool(NO_SITE), reason=NO_SITE or "-")
needs_browser = pytest.mark.skipif(bool(NO_BROWSER), reason=NO_BROWSER or "-")

PAGES = [] if NO_SITE else sorted(str(p.relative_to(SITE)) for p in SITE.rglob("*.html") if "_static" not in p.parts)
MODULES = [page for page in PAGES if page.startswith("_modules")]  # source code: looked at together, in one test
WRITTEN = [page for page in PAGES if page not in MODULES]


# -- without a browser ---------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """The names, links and resources of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.resources: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attributes if value}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if "src" in given:
            self.resources.append(given["src"])
        if tag == "link" and given.get("rel") not in ("canonical", "index", "search", "next", "prev"):
            self.resources.append(given.get("href", ""))


@functools.cache
def parsed(path: Path) -> Page:
    return Page(path)


@needs_site
def test_links_and_anchors_lead_somewhere() -> None:
    broken = []
    for name in PAGES:
        for link in parsed(SITE / name).links:
            target = urlsplit(link)
            if target.scheme or target.netloc:
                continue
            path = (SITE / name).parent / unquote(target.path) if target.path else SITE / name
            if not path.is_file():
                broken.append(f"{name}: {link} is no file")
            elif target.fragment and path.suffix == ".html":
                path = Path(os.path.normpath(path))
                if unquote(target.fragment) not in parsed(path).ids:
                    broken.append(f"{name}: {link} has no such anchor")
    assert not broken, "\n".join(broken)


@needs_site
def test_nothing_is_fetched_from_elsewhere() -> None:
    found = [f"{name}: {url}" for name in PAGES for url in parsed(SITE / name).resources if "//" in url[:8]]
    for path in SITE.rglob("*.css"):
        text = path.read_text(encoding="utf-8")
        found += [f"{path.name}: {mark}" for mark in ("url(http", "url(//", 'url("http', "@import url") if mark in text]
    assert not found, "\n".join(found)


@needs_site
def test_every_page_can_be_reached() -> None:
    """From the start page, by links; what only the builder makes is reached as well, or has its own way in."""
    reached, waiting = set(), [SITE / "index.html"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        for link in parsed(page).links:
            target = urlsplit(link)
            path = Path(os.path.normpath(page.parent / unquote(target.path)))
            if not target.scheme and target.path.endswith(".html") and path.is_file():
                waiting.append(path)
    lost = {SITE / name for name in WRITTEN} - reached - {SITE / "search.html"}
    assert not lost


# -- in the browser ------------------------------------------------------------------------------------------------


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


class Browser:
    """Chromium at the site."""

    def __init__(self, address: str, profile: Path) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = str(shutil.which("chromium"))
        options.page_load_strategy = "normal"
        switches = (
            "headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "hide-scrollbars", "no-first-run",
            "disable-background-networking", "disable-component-update", "disable-sync", "disable-default-apps",
            "disable-extensions", f"user-data-dir={profile}", "host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        )  # fmt: skip
        for switch in switches:
            options.add_argument(f"--{switch}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
        self.driver.set_page_load_timeout(60)
        self.driver.set_script_timeout(60)
        self.address = address

    def look(self, width: int, height: int, scheme: str) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def open(self, page: str) -> None:
        for log in ("browser", "performance"):
            self.driver.get_log(log)
        self.driver.get(self.address + page)
        # MathJax is loaded late, and works on.
        self.driver.execute_async_script("""
            const done = arguments[0];
            const maths = window.MathJax && window.MathJax.startup && window.MathJax.startup.promise;
            Promise.resolve(maths).then(() => done(true));
        """)

    def complaints(self) -> list[str]:
        """What the console has to say, and requests to other hosts."""
        found = [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]
        for entry in self.driver.get_log("performance"):
            event = json.loads(entry["message"])["message"]
            if event["method"] == "Network.requestWillBeSent":
                url = event["params"]["request"]["url"]
                if not url.startswith((self.address, "data:", "blob:", "about:", "chrome:")):
                    found.append(f"request to {url}")
        return found

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)


@pytest.fixture(scope="module")
def browser(address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    made = Browser(address, tmp_path_factory.mktemp("profile"))
    yield made
    made.driver.quit()


OVERFLOW = """
    // Neither the page nor the frames of its text may scroll sideways; blocks inside of the text may.
    const frames = [document.documentElement, ...document.querySelectorAll("body, .page, .main, .content, article")];
    const scrolls = (e) => e === document.documentElement || getComputedStyle(e).overflowX !== "visible";
    const over = frames.filter((e) => scrolls(e) && e.scrollWidth > e.clientWidth + 1);
    if (!over.length) return [];
    const room = document.documentElement.clientWidth;
    const clipped = (e) => {
      for (let p = e.parentElement; p && !frames.includes(p); p = p.parentElement)
        if (getComputedStyle(p).overflowX !== "visible") return true;
      return false;
    };
    const wide = [...document.querySelectorAll("article *")]
      .filter((e) => e.getBoundingClientRect().right > room && !clipped(e))
      .map((e) => `${e.tagName}.${e.className} ends at ${Math.round(e.getBoundingClientRect().right)}`);
    return [...over.map((e) => `${e.tagName} ${e.scrollWidth} > ${e.clientWidth}`), ...wide.slice(0, 5)];
"""
COLOURS = """
    const luminance = (text) => {
      const [r, g, b] = text.match(/[0-9.]+/g).map(Number);
      return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
    };
    const style = getComputedStyle(document.body);
    return [luminance(style.backgroundColor), luminance(style.color)];
"""
MATHS = """
    const maths = [...document.querySelectorAll("span.math, div.math")];
    const raw = maths.filter((e) => !e.querySelector("mjx-container"));
    // A macro that is not known comes out in red.
    const wrong = maths.filter((e) => e.querySelector("mjx-merror, [style*='color: red']"));
    return [maths.length, [...raw, ...wrong].map((e) => e.outerHTML.slice(0, 500))];
"""
IMAGES = """
    return [...document.images].filter((e) => e.complete && !e.naturalWidth).map((e) => e.src.slice(0, 200));
"""


@needs_browser
@pytest.mark.parametrize("page", WRITTEN or ["index.html"])
def test_page(browser: Browser, page: str) -> None:
    browser.look(*DESK, "light")
    browser.open(page)
    assert browser.complaints() == []
    assert browser.run(MATHS)[1] == []
    assert browser.run(IMAGES) == []
    assert browser.run(OVERFLOW) == []
    paper, ink = browser.run(COLOURS)
    assert paper > 0.9
    assert ink < 0.3

    browser.look(*PHONE, "dark")
    assert browser.run(OVERFLOW) == []
    paper, ink = browser.run(COLOURS)
    assert paper < 0.2
    assert ink > 0.7
    assert browser.complaints() == []


@needs_browser
def test_pages_of_source_code(browser: Browser) -> None:
    browser.look(*DESK, "light")
    assert MODULES
    for page in MODULES:
        browser.open(page)
        assert browser.complaints() == [], page


@needs_browser
def test_maths_is_rendered(browser: Browser) -> None:
    browser.look(*DESK, "light")
    browser.open("fields.html")
    number, _ = browser.run(MATHS)
    assert number > 5
    fonts = browser.run("return [...document.fonts].filter((f) => f.status === 'loaded').map((f) => f.family)")
    assert any("MJX" in family for family in fonts)


@needs_browser
def test_search_finds_the_layer(browser: Browser) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    browser.look(*DESK, "light")
    browser.open("index.html")
    browser.driver.find_element(By.CSS_SELECTOR, "input.sidebar-search").send_keys("TangoConv", Keys.ENTER)
    wait = WebDriverWait(browser.driver, 30)
    first = wait.until(lambda driver: driver.find_elements(By.CSS_SELECTOR, "#search-results li a"))[0]
    assert "TangoConv" in first.text
    target = first.get_attribute("href")
    assert target is not None
    assert "lyapflow_graph.html#lyapflow_graph.TangoConv" in target
    assert browser.complaints() == []


@needs_browser
def test_the_colour_scheme_can_be_chosen(browser: Browser) -> None:
    from selenium.webdriver.common.by import By

    browser.look(*DESK, "light")
    browser.open("index.html")
    seen = set()
    for _ in range(3):
        button = next(e for e in browser.driver.find_elements(By.CLASS_NAME, "theme-toggle") if e.is_displayed())
        button.click()
        paper, ink = browser.run(COLOURS)
        assert abs(paper - ink) > 0.6
        shown = browser.run("""
            return [...document.querySelectorAll("img.hero")].filter((e) => e.offsetParent).map((e) => e.src);
        """)
        assert len(shown) == 1
        assert ("landscape-dark" in shown[0]) == (paper < 0.5)
        seen.add(paper < 0.5)
    browser.run("localStorage.clear()")
    assert seen == {True, False}


# -- the interactive page ------------------------------------------------------------------------------------------


@pytest.fixture
def interactive(browser: Browser) -> Browser:
    browser.look(*DESK, "light")
    browser.open("interactive.html")
    return browser


def shown(browser: Browser) -> dict[str, Any]:
    """What the page says that it shows; checked against the library."""
    data = browser.run("return {...document.getElementById('lyapflow-interactive').dataset}")
    setting = json.loads(data["setting"])
    solution = ours(setting)
    energies = solution.energy[:, 0]
    if torch.isfinite(energies).all() and float(energies.max()) < 1e6:
        # Long paths lose digits where a step is shortened; test_interactive.py compares short ones to rounding.
        assert int(data["steps"]) == pytest.approx(len(energies) - 1, rel=0.02)
        found = json.loads(data["energies"])
        assert found == pytest.approx(energies[[0, -1]].tolist(), rel=1e-4, abs=1e-6 * float(energies[0]))
    words = browser.run("return document.querySelector('.lf-words').textContent")
    text = browser.run("""
        const outputs = [...document.querySelectorAll("[data-show]")];
        return Object.fromEntries(outputs.map((e) => [e.dataset.show, e.textContent]));
    """)
    drawn = browser.run("""
        return [".lf-path", ".lf-energy"].map((name) => document.querySelector(name).getAttribute("d"))
    """)
    return {**setting, "words": words, "text": text, "drawn": drawn, "rises": int(data["rises"])}


def choose(browser: Browser, name: str, value: str) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    if name == "energy":
        Select(browser.driver.find_element(By.NAME, name)).select_by_value(value)
    else:
        browser.driver.find_element(By.CSS_SELECTOR, f"label:has([name={name}][value={value}])").click()


def slide(browser: Browser, name: str, value: float) -> None:
    browser.run(
        """
        const input = document.querySelector(`[name=${arguments[0]}]`);
        input.value = arguments[1];
        input.dispatchEvent(new Event("input", {bubbles: true}));
        """,
        name,
        str(value),
    )


@needs_browser
@pytest.mark.parametrize("energy", ["bowl", "double_well", "rosenbrock", "himmelblau"])
def test_switches_change_what_is_computed_and_shown(interactive: Browser, energy: str) -> None:
    choose(interactive, "energy", energy)
    slide(interactive, "step", 550)
    before = shown(interactive)
    assert before["energy"] == energy
    for name, values in (("flow", ("gradient", "tangential", "combined")), ("method", ("armijo_euler", "euler"))):
        for value in values:
            choose(interactive, name, value)
            after = shown(interactive)
            assert after[name] == value
            assert value != "armijo_euler" or after["rises"] == 0
            assert ("in none of" in after["words"]) == (after["rises"] == 0)
            assert after["words"].startswith(after["method"])
    assert interactive.complaints() == []


@needs_browser
def test_the_start_can_be_dragged_and_moved_by_keys(interactive: Browser) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    before = shown(interactive)
    knob = interactive.driver.find_element(By.CSS_SELECTOR, ".lf-knob")
    interactive.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", knob)
    ActionChains(interactive.driver).click_and_hold(knob).move_by_offset(60, 40).release().perform()
    after = shown(interactive)
    width = interactive.run("return document.querySelector('.lf-stage svg').getBoundingClientRect().width")
    scale = 4.0 / width  # the double well is shown from -2 to 2
    assert after["start"][0] - before["start"][0] == pytest.approx(60 * scale, abs=2 * scale)
    assert after["start"][1] - before["start"][1] == pytest.approx(-40 * scale, abs=2 * scale)
    assert after["drawn"] != before["drawn"]
    assert after["text"]["start"] != before["text"]["start"]

    interactive.run("document.querySelector('.lf-start').focus()")
    ActionChains(interactive.driver).send_keys(Keys.ARROW_RIGHT).perform()
    assert shown(interactive)["start"][0] == pytest.approx(after["start"][0] + 0.08)
    interactive.run("document.querySelector('[name=reset]').click()")
    assert shown(interactive)["start"] == before["start"]


@needs_browser
def test_a_finger_can_drag_the_start_on_a_phone(browser: Browser) -> None:
    browser.look(*PHONE, "dark")
    browser.open("interactive.html")
    before = shown(browser)
    browser.run("document.querySelector('.lf-stage').scrollIntoView({block: 'center', behavior: 'instant'})")
    x, y = browser.run("""
        const box = document.querySelector(".lf-knob").getBoundingClientRect();
        return [box.left + box.width / 2, box.top + box.height / 2];
    """)
    for kind, at in (("touchStart", [x, y]), ("touchMove", [x + 20, y + 15]), ("touchMove", [x + 50, y + 30])):
        points = [{"x": at[0], "y": at[1]}]
        browser.driver.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    browser.driver.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    after = shown(browser)
    assert after["start"][0] > before["start"][0] + 0.3
    assert after["start"][1] < before["start"][1] - 0.1
    assert browser.run(OVERFLOW) == []


@needs_browser
def test_a_large_step_makes_euler_climb_and_a_small_one_does_not(interactive: Browser) -> None:
    choose(interactive, "energy", "bowl")
    choose(interactive, "flow", "gradient")
    slide(interactive, "step", 300)
    small = shown(interactive)
    assert small["step"] < 0.04
    assert small["rises"] == 0
    slide(interactive, "step", 700)
    large = shown(interactive)
    assert large["step"] > 0.04
    assert large["rises"] > 0
    assert "raises the energy in" in large["words"]
    assert "in none" not in large["words"]
    choose(interactive, "method", "armijo_euler")
    assert shown(interactive)["rises"] == 0
    choose(interactive, "flow", "combined")
    slide(interactive, "beta", -2)
    slide(interactive, "alpha", 0.5)
    turned = shown(interactive)
    assert (turned["alpha"], turned["beta"]) == (0.5, -2)
    assert (turned["text"]["alpha"], turned["text"]["beta"]) == ("0.50", "-2.00")
