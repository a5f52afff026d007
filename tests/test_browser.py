"""The report in a real browser: nothing is loaded, nothing errs, nothing is clipped."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from test_report_traces import large
from test_trace_cells import TRACE

from stripectl.cli import main
from stripectl.report import write_report
from stripectl.run import Run

selenium = pytest.importorskip("selenium.webdriver")
BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="needs chromium and chromium-driver; make test installs them"
)
QUIET = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    with pytest.raises(SystemExit):
        what = ["--target", "v5p:8", "--method", "simulated", "--seqlen", "64k,128k,1000", "--scheme", "all"]
        main(["bench", *what, "--quiet", "--out", str(folder / "run")])
    run = Run.load(folder / "run")
    first = run.measurements[0]
    traces = TRACE | {"profile": "profiles/" + "long-name-" * 12}, large(40, 40, 200), {"reason": "no profile: " * 20}
    run.measurements += [replace(first, trace=trace) for trace in traces]
    write_report(run, folder / "traced.html")
    return folder / "traced.html"


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


@pytest.mark.parametrize("width", [360, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_reads_well(browser, page: Path, width: int, scheme: str) -> None:
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    look = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", look)
    browser.get(page.as_uri())
    assert not [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    requests = [
        entry["message"] for entry in browser.get_log("performance") if "Network.requestWillBeSent" in entry["message"]
    ]
    assert not [each for each in requests if '"url":"http' in each]
    assert browser.execute_script("return innerWidth") == width
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    legends = "return [...document.querySelectorAll('#overlap .key')].map(key => key.getBoundingClientRect().right)"
    assert 0 < max(browser.execute_script(legends)) <= width
    charts = browser.execute_script(
        """return [...document.querySelectorAll('svg')].map(svg => {
            const box = svg.getBoundingClientRect();
            let holder = svg.parentElement;
            while (holder && getComputedStyle(holder).overflowX === 'visible') holder = holder.parentElement;
            const room = holder ? holder.scrollWidth : innerWidth;
            return [box.width, box.height, room];
        })"""
    )
    assert len(charts) >= 4 + 2 * len(("step", "hops"))
    assert all(wide > 100 and tall > 50 and wide <= room + 1 for wide, tall, room in charts)
    assert browser.execute_script("return document.querySelectorAll('#lengths svg').length") == 2
    ink, paper = browser.execute_script(
        "const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]"
    )
    light = [sum(map(int, colour[colour.index("(") + 1 : -1].split(",")[:3])) for colour in (ink, paper)]
    assert (light[0] < light[1]) == (scheme == "light")
    browser.execute_script("document.querySelectorAll('details').forEach(each => { each.open = true })")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
