"""The page of `layerbeam report` in real headless Chromium: fetches nothing and shows its plots on any screen."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from corpora import random_lines
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from workplace import workplace_in

HOSTILE = (
    "<img src='http://127.0.0.1:9/x.png' onerror=\"document.title='hit'\"><script>document.title='hit'</script> bank"
)
LINES = [
    *("the bank of the river", "they sat by the river on the bank", "the river bank", "a bank by the river"),
    *("money in the bank", "the bank lends money", "she took money to the bank", "the bank has the money"),
    HOSTILE,
    "bank " + "x" * 3000,
    "\u202ebank בנק",
]
# As root in a container, and without Chromium's own connections.
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run with every section and with text that tries to inject markup."""
    folder = tmp_path_factory.mktemp("run")
    with workplace_in(folder) as place:
        place.write("corpus/a.txt", "\n".join(LINES) + "\n")
        place.write("corpus/b.txt", "\n".join(random_lines(60)) + "\n")
        place.write("corpus/bad.txt", b"not \xff UTF-8\n")
        place.configure(
            input={"max_reject_rate": 1.0},
            views={"texts": {"level": "text", "layers": "all"}, "tokens": {"level": "token", "layers": "all"}},
        )
        place.run()
        place._call("report", "out", "--word", "bank", status=0)
    return folder / "out" / "report.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.fail("needs chromium and chromedriver on PATH: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    for argument in (*ARGUMENTS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(argument)
    started = webdriver.Chrome(options=options, service=Service(driver))
    yield started
    started.quit()


def show(browser: webdriver.Chrome, page: Path, *, width: int = 1280, dark: bool = False, print_: bool = False) -> None:
    """Load the page in a window of this width."""
    features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    media = {"media": "print" if print_ else "", "features": features}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    for kind in ("browser", "performance"):
        browser.get_log(kind)  # drop earlier entries
    browser.get(page.as_uri())


def requests(browser: webdriver.Chrome) -> set[str]:
    """The page's requests, including the one for itself."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return {url for url in sent if not url.startswith("data:")}


@pytest.mark.parametrize("dark", [False, True])
def test_page_fetches_nothing_and_has_no_errors(browser, page, dark):
    show(browser, page, dark=dark)
    assert requests(browser) == {page.as_uri()}
    assert browser.get_log("browser") == []
    assert browser.title == "out – layerbeam report"
    assert len(browser.find_elements(By.TAG_NAME, "script")) == 1
    assert browser.find_elements(By.TAG_NAME, "img") == []


@pytest.mark.parametrize("width", [1280, 360])
def test_plots_are_visible(browser, page, width):
    show(browser, page, width=width)
    boxes = browser.execute_script(
        "return [...document.querySelectorAll('svg')].map(s => {"
        "  const b = s.getBoundingClientRect(), drawn = s.getBBox(); return [b.width, b.height, drawn.width] })"
    )
    # Lengths, 2 views x 3, 4 layers of texts, 1 + 2 x 4 of the word.
    assert len(boxes) == 1 + 6 + 4 + 9
    assert min(min(box) for box in boxes) > 100
    points = browser.execute_script(
        "return [...document.querySelectorAll('.points use')].map(u => u.getBoundingClientRect().width)"
    )
    assert len(points) > 4 * 60
    assert min(points) > 1


def colors(browser: webdriver.Chrome) -> tuple[float, float, float]:
    """Luminances of the page, of its text and of a plot's first bar."""
    script = """
        const of = (element, what) => getComputedStyle(element)[what].match(/[\\d.]+/g).slice(0, 3).map(Number);
        const bar = document.querySelector('#lengths svg [clip-path] path, #lengths svg path[clip-path]');
        return [of(document.body, 'backgroundColor'), of(document.body, 'color'), of(bar, 'fill')];
    """
    luminances = []
    for channels in browser.execute_script(script):
        linear = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in channels]
        luminances.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return tuple(luminances)


def contrast(one: float, other: float) -> float:
    """WCAG 2 requires 4.5 for text and 3 for graphics."""
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_contrast_in_light_and_dark(browser, page, dark):
    show(browser, page, dark=dark)
    paper, ink, bar = colors(browser)
    assert (paper < 0.02) if dark else (paper > 0.95)
    assert contrast(paper, ink) > 7
    assert contrast(paper, bar) > 3


def test_print_is_light_and_complete(browser, page):
    show(browser, page, dark=True, print_=True)
    paper, ink, _ = colors(browser)
    assert paper > 0.95
    assert contrast(paper, ink) > 7
    pdf = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": False})["data"])
    assert pdf.startswith(b"%PDF-")
    assert len(pdf) > 50_000


@pytest.mark.parametrize("width", [320, 390, 768])
def test_page_does_not_scroll_sideways(browser, page, width):
    show(browser, page, width=width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [1280, 390])
def test_names_and_line_numbers_are_not_broken(browser, page, width):
    show(browser, page, width=width)
    broken = browser.execute_script(
        "const lines = (node, begin) => { const range = document.createRange(); range.setStart(node, begin);"
        "  range.setEnd(node, node.length); return range.getClientRects().length };"
        "const broken = [...document.querySelectorAll('#glance td > bdi')].filter(n => lines(n.firstChild, 0) > 1);"
        "for (const place of document.querySelectorAll('#words td:nth-last-child(2) > bdi, #neighbours td > bdi')) {"
        "  const last = place.lastChild, begin = last.data.search(/line\\u00a0\\d+$/);"
        "  if (begin >= 0 && lines(last, begin) > 1) broken.push(place) }"
        "return [broken.map(node => node.textContent), document.querySelectorAll('#words td > bdi').length]"
    )
    assert broken[0] == []
    assert broken[1] > 10


def test_a_single_layer_is_large(browser, page):
    show(browser, page)
    width = browser.execute_script(
        "const panels = document.querySelector('#projection .panels');"
        "while (panels.children.length > 1) panels.lastChild.remove();"
        "return panels.children[0].getBoundingClientRect().width"
    )
    assert width >= 600


def test_point_shows_its_sentence(browser, page):
    show(browser, page)
    point = browser.find_element(By.CSS_SELECTOR, "#words .points use")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", point)
    ActionChains(browser).move_to_element(point).perform()
    tip = browser.find_element(By.ID, "tip")
    assert tip.is_displayed()
    assert "bank" in tip.text
    # The same occurrence in each of the four layers, and its row.
    assert len(browser.find_elements(By.CSS_SELECTOR, "#words .points .on")) == 4
    rows = browser.find_elements(By.CSS_SELECTOR, "#words tr.on")
    assert len(rows) == 1
    ActionChains(browser).click().perform()
    assert browser.switch_to.active_element == rows[0]


def test_sentences_open_by_keyboard(browser, page):
    show(browser, page)
    first = browser.find_element(By.ID, "word-0-0")
    browser.execute_script("arguments[0].focus()", first)
    ActionChains(browser).send_keys(Keys.ARROW_DOWN).perform()
    assert browser.switch_to.active_element.get_attribute("id") == "word-0-1"
    assert len(browser.find_elements(By.CSS_SELECTOR, "#words .points .on")) == 4


def test_corpus_text_is_shown_unchanged(browser, page):
    show(browser, page)
    sentences = [row.text for row in browser.find_elements(By.CSS_SELECTOR, "#words tbody tr[id] td:last-child")]
    assert HOSTILE in sentences
    assert any(sentence.startswith("\\u202ebank") for sentence in sentences)
    assert max(map(len, sentences)) < 300
