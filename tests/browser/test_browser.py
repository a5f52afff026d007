"""The report in a real browser: nothing is loaded, nothing errs, nothing is clipped, and keys and screen readers reach
all of it."""

import gzip
import json
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stripectl.analysis.recommendation import recommended
from stripectl.cli import main
from stripectl.reporters.html.page import write_report
from stripectl.results.measurement import Measurement
from stripectl.results.run import Run
from stripectl.util.files import printable
from stripectl.util.output import write_atomically
from tests.support.histories import past
from tests.support.pages import HOSTILE
from tests.support.traces import TRACE, large

selenium = pytest.importorskip("selenium.webdriver")
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.wait import WebDriverWait  # noqa: E402

from tests.support.pages import page_of, page_of_several  # noqa: E402

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
AXE = Path(sys.prefix) / "axe" / "node_modules" / "axe-core" / "axe.min.js"
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not (BROWSER and DRIVER), reason="needs chromium and chromium-driver. Run: make test-slow PART=browser"
    ),
]
QUIET = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
RUNS = Path(__file__).parents[2] / "examples" / "runs"
EXAMPLES = ("cpu", "tpu", "gpu", "traced", "tuning", "meshes", "published", "failed", "empty", "large")
PAGES = (*EXAMPLES, "bench", "history", "several")
SMALL = ("tpu", "traced", "tuning", "failed", "empty", "bench", "history", "several")  # all that differs in kind
BUDGET = 1_500_000  # bytes of a page of 500 measurements
OPEN = "document.querySelectorAll('details').forEach(each => { each.open = true })"


class Pages:
    """Reports of the examples, of runs side by side, of a run with its history, and of a bench of all schemes with
    refused plans, long names and profiles of many devices. Each is made by the first test process that asks for it; the
    others wait."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def __getitem__(self, name: str) -> Path:
        path = self.folder / f"{name}.html"
        try:
            (self.folder / f"{name}.taken").touch(exist_ok=False)
        except FileExistsError:
            until = time.monotonic() + 300
            while not path.exists() and time.monotonic() < until:
                time.sleep(0.2)
        else:
            write_atomically(path, self.text(name))
        return path

    def text(self, name: str) -> str:
        if name == "bench":
            return page_of(self.bench())
        if name == "several":
            return page_of_several(
                [Run.load(RUNS / f"{each}.json.gz") for each in ("tpu", "gpu", "cpu", "empty", "tpu")]
            )
        if name == "history":
            return page_of(past()[-1], past=past())
        return page_of(Run.load(RUNS / f"{name}.json.gz"))

    def bench(self) -> Run:
        what = ["--target", "v5p:8", "--method", "simulated", "--seqlen", "64k,128k,1000", "--scheme", "all"]
        with pytest.raises(SystemExit):
            main(["bench", *what, "--quiet", "--output", str(self.folder / "run")])
        run = Run.load(self.folder / "run")
        first = run.measurements[0]
        long = TRACE | {"profile": "profiles/" + "long-name-" * 12}
        traces = long, large(40, 40, 200), {"reason": "no profile: " * 20}
        traced = (Measurement.from_json({**first.to_json(), "profile": trace}) for trace in traces)
        return replace(run, measurements=[*run.measurements, *traced])


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Pages:
    base = tmp_path_factory.getbasetemp()
    return Pages((base if worker_id == "master" else base.parent) / "pages")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    options = selenium.ChromeOptions()
    options.binary_location = BROWSER
    for flag in (*QUIET.split(), "--disable-component-update", "--disable-sync"):
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = selenium.Chrome(options=options, service=selenium.ChromeService(DRIVER))
    yield driver
    driver.quit()


def show(
    browser: Any, page: Path, width: int = 1280, scheme: str = "light", scripts: bool = True, height: int = 900
) -> None:
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    look = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", look)
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not scripts})
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(page.as_uri())
    ready = "return document.readyState === 'complete' && document.documentElement.lang === 'en' && location.href"
    WebDriverWait(browser, 60).until(lambda browser: browser.execute_script(ready) == page.as_uri())


def check_quiet(browser: Any) -> None:
    """Nothing in the console, and nothing asked of a network."""
    assert not [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    logged = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [each["params"] for each in logged if each["method"] == "Network.requestWillBeSent"]
    own = [each["request"]["url"] for each in asked if each["documentURL"].startswith("file:")]
    assert own
    assert not [url for url in own if not url.startswith(("file:", "data:"))]


def check_fits(browser: Any, width: int) -> None:
    """No part is wider than the screen but tables that scroll by themselves, and no chart is cut or scrolls."""
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    charts = browser.execute_script(
        """return [...document.querySelectorAll('.drawing svg')].filter(svg => svg.checkVisibility()).map(svg => {
            const box = svg.getBoundingClientRect(), holder = svg.closest('.panel');
            const parts = [...svg.querySelectorAll('text, path, line')].filter(each => each.getBBox().width > 0);
            const right = Math.max(...parts.map(each => each.getBoundingClientRect().right)) - box.left;
            return [box.width, box.height, holder.clientWidth, right];
        })"""
    )
    assert all(wide > 60 and tall > 30 and wide <= room + 1 and right <= room + 2 for wide, tall, room, right in charts)


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1600, "dark")])
def test_the_page_reads_well(browser, pages: Pages, name: str, width: int, scheme: str) -> None:
    show(browser, pages[name], width, scheme)
    check_quiet(browser)
    assert browser.execute_script("return innerWidth") == width
    check_fits(browser, width)
    browser.execute_script(OPEN)
    check_fits(browser, width)
    ink, paper = browser.execute_script(
        "const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]"
    )
    light = [sum(map(int, colour[colour.index("(") + 1 : -1].split(",")[:3])) for colour in (ink, paper)]
    assert (light[0] < light[1]) == (scheme == "light")


def test_a_page_of_hundreds_of_measurements_is_small(pages: Pages) -> None:
    assert len(Run.load(pages["large"]).measurements) >= 500
    assert pages["large"].stat().st_size < BUDGET


@pytest.mark.parametrize(("width", "height"), [(1400, 900), (1920, 1080)])
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_first_screen_answers(browser, pages: Pages, name: str, width: int, height: int) -> None:
    """Without scrolling: the answer, the gain, the confidence and the chart; or the reason and the next command."""
    show(browser, pages[name], width, height=height)
    check_quiet(browser)
    parts = (
        ["h1", ".gain .value", ".sure .meter", ".hero .drawing"] if name not in ("failed", "empty") else ["h1", "pre"]
    )
    for part in parts:
        found = browser.find_element("css selector", f"#answer {part}")
        box = browser.execute_script("return arguments[0].getBoundingClientRect().toJSON()", found)
        assert found.is_displayed(), part
        assert box["top"] >= 0 and box["bottom"] <= height and box["right"] <= width, (part, box)


def test_few_figures_are_open_and_each_is_wide(browser, pages: Pages) -> None:
    show(browser, pages["cpu"], 1400)
    wide = browser.execute_script(
        """return [...document.querySelectorAll('figure')].filter(each => each.checkVisibility()).map(
            each => each.getBoundingClientRect().width)"""
    )
    assert 5 <= len(wide) <= 12
    assert min(wide) >= 560


def test_sections_open_one_at_a_time_and_a_cell_of_the_matrix_opens_its_details(browser, pages: Pages) -> None:
    show(browser, pages["cpu"], 1400)
    opened = (
        "return [...document.querySelectorAll('details[name=workload][open]')].map("
        "each => each.querySelector('.card').id)"
    )
    for cell in browser.find_elements("css selector", ".matrix a"):
        cell.send_keys(Keys.ENTER)
        assert browser.execute_script(opened) == [cell.get_attribute("hash")[1:]]


def test_the_navigation_shows_where_a_reader_is(browser, pages: Pages) -> None:
    show(browser, pages["cpu"], 1400)
    here = "const e = document.querySelectorAll('nav [aria-current]'); return [e.length, e[0].hash]"
    assert browser.execute_script(here) == [1, "#answer"]
    browser.find_element("css selector", "nav a[href='#measurements']").send_keys(Keys.ENTER)
    WebDriverWait(browser, 10).until(lambda browser: browser.execute_script(here) == [1, "#measurements"])
    assert browser.find_element("css selector", "nav").is_displayed()


def test_marks_say_their_figures_and_snippets_are_copied(browser, pages: Pages) -> None:
    show(browser, pages["cpu"], 1400)
    mark = browser.find_element("css selector", ".hero .wide [data-tip]")
    selenium.ActionChains(browser).move_to_element(mark).perform()
    assert browser.find_element("css selector", ".tip").text == mark.get_attribute("data-tip")
    button = browser.find_element("css selector", ".tabs details[open] .copy")
    browser.execute_script(
        "Object.defineProperty(navigator, 'clipboard', {value: {writeText: async t => { window.t = t }}})"
    )
    button.send_keys(Keys.ENTER)
    WebDriverWait(browser, 10).until(lambda browser: button.text == "Copied")
    assert browser.execute_script("return window.t === document.querySelector('.tabs details[open] pre').textContent")


def test_the_page_of_a_bench_has_its_charts(browser, pages: Pages) -> None:
    show(browser, pages["bench"], 360)
    drawn = browser.execute_script("return [...document.querySelectorAll('figure')].map(each => each.className.trim())")
    assert {kind for name in drawn for kind in name.split()} - {"hero"} == {
        "curves",
        "bars",
        "work",
        "step",
        "hops",
        "grid",
        "links",
        "ratios",
        "roofline",
        "regions",
    }
    legends = "return [...document.querySelectorAll('#overlap .key')].map(key => key.getBoundingClientRect().right)"
    assert 0 < max(browser.execute_script(legends)) <= 360


@pytest.mark.parametrize("name", SMALL)
def test_the_page_is_whole_without_scripts(browser, pages: Pages, name: str) -> None:
    show(browser, pages[name])
    counts = "return ['svg', 'table', 'tbody tr', 'h2', 'details'].map(each => document.querySelectorAll(each).length)"
    scripted = browser.execute_script(counts)
    show(browser, pages[name], scripts=False)
    try:
        assert browser.execute_script(counts) == scripted
        assert browser.execute_script("return document.querySelectorAll('#filters *, th button').length") == 0
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_rows_are_filtered_and_counted(browser, pages: Pages) -> None:
    show(browser, pages["bench"])
    visible = "return [...document.querySelectorAll('.sortable tbody tr')].filter(row => row.checkVisibility()).length"
    every = browser.execute_script(visible)
    field = browser.find_element("css selector", "#filters input")
    field.send_keys("usp/zigzag forward-backward")
    found = browser.execute_script(visible)
    assert 0 < found < every
    words = visible.replace(".length", ".map(row => row.innerText)")
    assert all("usp/zigzag" in row and "forward-backward" in row for row in browser.execute_script(words))
    assert browser.find_element("css selector", "#filters [role=status]").text == f"{found} of {every} rows"
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys("no such plan")
    assert browser.execute_script(visible) == 0
    assert not browser.execute_script("return document.querySelector('.measured').checkVisibility()")
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys(Keys.DELETE)
    assert browser.execute_script(visible) == every
    names = [each.text for each in browser.find_elements("css selector", "#filters label")]
    assert any(name.startswith("pass") for name in names)


def test_rows_are_sorted_by_what_their_cells_mean(browser, pages: Pages) -> None:
    show(browser, pages["bench"])
    times = """const table = document.querySelector('.sortable'), at = [...table.tHead.rows[0].cells].findIndex(
        cell => cell.textContent.startsWith('time'));
        return [...table.tBodies[0].rows].map(row => row.cells[at] && row.cells[at].dataset.v || null)"""
    before = browser.execute_script(times)
    assert before != sorted(before, key=lambda value: (value is None, float(value or 0)))
    button = next(each for each in browser.find_elements("css selector", ".sortable th button") if each.text == "time")
    for key in (lambda value: float(value), lambda value: -float(value)):
        button.send_keys(Keys.ENTER)
        after = browser.execute_script(times)
        known = [value for value in after if value is not None]
        assert sorted(known, key=key) == known
        assert after[len(known) :] == [None] * (len(after) - len(known))
        assert sorted(known) == sorted(value for value in before if value is not None)
    head = button.find_element("xpath", "..")
    assert head.get_attribute("aria-sort") == "descending"


def test_a_plan_leads_to_its_samples_and_its_command(browser, pages: Pages) -> None:
    show(browser, pages["bench"])
    link = browser.find_element("css selector", ".sortable tbody th a")
    plan = link.text
    link.send_keys(Keys.ENTER)
    target = browser.find_element("css selector", ".behind:target")
    assert target.is_displayed()
    assert plan.removesuffix(" (one device)") in target.text
    assert "stripectl bench --plan" in target.text


@pytest.mark.parametrize("name", ["traced", "several"])
def test_keys_reach_everything_and_are_seen(browser, pages: Pages, name: str) -> None:
    show(browser, pages[name])
    wanted = browser.execute_script(
        """return [...document.querySelectorAll('a[href], button, input, select, summary, [tabindex="0"]')].filter(
            each => each.checkVisibility()).length"""
    )
    reached = []
    body = browser.find_element("css selector", "body")
    body.send_keys(Keys.TAB)
    while len(reached) <= wanted + 5:
        seen = browser.execute_script(
            """const e = document.activeElement; if (e === document.body) return null;
            window.known = window.known || new Set(); const again = window.known.has(e); window.known.add(e);
            return [again, getComputedStyle(e).outlineStyle !== 'none', e.getBoundingClientRect().width > 0]"""
        )
        if seen is None or seen[0]:
            break
        reached.append(seen)
        browser.switch_to.active_element.send_keys(Keys.TAB)
    assert len(reached) == wanted
    assert all(outlined and there for _, outlined, there in reached)


@pytest.mark.skipif(not AXE.exists(), reason="needs axe-core. Run: make test-slow PART=browser")
@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_an_audit_of_accessibility_finds_nothing_serious(browser, pages: Pages, name: str, scheme: str) -> None:
    show(browser, pages[name], 1280, scheme)
    browser.execute_script(OPEN)
    browser.execute_script(AXE.read_text())
    found = browser.execute_async_script("const done = arguments[0]; axe.run().then(found => done(found.violations))")
    assert [
        (each["id"], each["nodes"][0]["html"][:200], each["nodes"][0]["failureSummary"])
        for each in found
        if each["impact"] in ("serious", "critical")
    ] == []


READ = ("schema", "dtype", "mask", "pass", "attention", "features", "status", "method", "source")  # others are refused


def poisoned(value: Any, text: str, name: str = "") -> Any:
    """The value with `text` for every string that a reader takes as it is."""
    if isinstance(value, dict):
        return {key: poisoned(each, text, key) for key, each in value.items()}
    if isinstance(value, list):
        return [poisoned(each, text, name) for each in value]
    return text if isinstance(value, str) and name not in READ else value


@pytest.mark.parametrize("text", [*HOSTILE, "<script>window.pwned = 1</script>", "<img src=x onerror=window.pwned=1>"])
def test_hostile_text_does_nothing(browser, tmp_path: Path, text: str) -> None:
    """In every string field of a run.json, in a page of one run and of two; some plans stay to be read."""
    every = []
    for name in ("cpu", "traced", "tpu", "meshes"):
        content = json.loads(gzip.decompress((RUNS / f"{name}.json.gz").read_bytes()))
        some = content["measurements"][:3] + content["measurements"][-3:]
        every += [poisoned(m, text) | {"plan": m["plan"]} for m in some] + [poisoned(m, text) for m in some[:2]]
    run = Run.from_json(poisoned(content | {"measurements": []}, text) | {"measurements": every}, "run.json")
    write_report(recommended(run), tmp_path / "one.html")
    write_atomically(tmp_path / "two.html", page_of_several([run, run]))
    for name in ("one", "two"):
        show(browser, tmp_path / f"{name}.html")
        check_quiet(browser)
        assert browser.execute_script("return [typeof window.pwned, document.scripts.length]") == ["undefined", 1]
        links = browser.execute_script("return [...document.links].map(each => each.protocol)")
        assert set(links) == {"file:", "data:"}
        assert browser.execute_script("return [...document.querySelectorAll('*')].every(e => !e.onerror && !e.onclick)")
        assert printable(text).strip() in browser.find_element("css selector", "body").get_property("textContent")


def test_the_page_prints(browser, pages: Pages) -> None:
    show(browser, pages["bench"])
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": False})
    assert len(printed["data"]) > 10_000
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert not browser.find_element("css selector", "nav").is_displayed()
        assert not browser.find_element("css selector", "#filters").is_displayed()
        closed = (
            "return [...document.querySelectorAll('details:not([open]) table')].map(each => each.checkVisibility())"
        )
        assert all(browser.execute_script(closed))
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
