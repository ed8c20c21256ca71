"""The page in a browser: light, dark, on a phone and on paper; nothing is fetched, nothing complains."""

import itertools
import os
import shutil

import pytest

CHROMIUM = os.environ.get("SFUMATO_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install 'sfumato[dev]'")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="needs a browser: install Debian's chromium, or name one in SFUMATO_CHROMIUM"
)
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
VIEWS = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 900}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 900}},
    "phone": {"color_scheme": "light", "viewport": {"width": 390, "height": 844}, "has_touch": True},
    "small phone": {"color_scheme": "dark", "viewport": {"width": 320, "height": 640}},
    "no script": {"java_script_enabled": False, "viewport": {"width": 1280, "height": 900}},
}


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture
def opened(browser, report_of_everything):
    """Open the page in a view; at the end nothing may have been complained of or fetched."""
    complaints, contexts = [], []

    def open_page(view):
        contexts.append(browser.new_context(**VIEWS[view]))
        page = contexts[-1].new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda request: request.url.startswith(("file:", "data:")) or complaints.append(request.url),
        )
        page.goto(report_of_everything.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def background(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def lightness(colour):
    return sum(int(part) for part in colour[4:-1].split(",")) / 3


@pytest.mark.parametrize("view", ["light", "dark", "phone", "small phone"])
def test_nothing_sticks_out(opened, view):
    page = opened(view)
    width, window = page.evaluate("[document.scrollingElement.scrollWidth, innerWidth]")
    assert width <= window
    assert page.evaluate("document.scrollingElement.scrollHeight") > 3000


def test_light_is_light_and_dark_is_dark(opened):
    assert lightness(background(opened("light"))) > 220
    assert lightness(background(opened("dark"))) < 60


@pytest.mark.parametrize(("view", "shown"), [("light", "wide"), ("phone", "narrow")])
def test_each_figure_is_drawn_for_its_room(opened, view, shown):
    page = opened(view)
    visible = page.locator("svg.chart:visible")
    assert visible.count() >= 8
    rooms = "all => all.flatMap(one => ['wide', 'narrow'].filter(room => one.classList.contains(room)))"
    assert set(visible.evaluate_all(rooms)) == {shown}  # small charts are drawn once, for either
    # Words on a chart stay readable: their size on the screen, in pixels.
    size = visible.first.evaluate("svg => 12.5 * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width")
    assert size >= 10


@pytest.mark.parametrize("view", ["light", "phone"])
def test_the_slider_changes_the_picture_and_the_numbers(opened, view):
    page = opened(view)
    slider, strip = page.locator("input[type=range]"), page.locator(".live .strip")
    assert strip.is_visible()
    assert not page.locator(".static").is_visible()

    def seen():
        place = strip.evaluate("one => getComputedStyle(one).backgroundPositionY")
        marker = page.locator(".marker.readable:visible").get_attribute("cx")
        words = [page.locator(f".readout {part}").inner_text() for part in ("output", ".blurred b", ".held b")]
        return place, marker, *words

    slider.focus()
    slider.press("Home")
    private = seen()
    for _ in range(4):
        slider.press("ArrowRight")  # by keyboard
    middle = seen()
    slider.press("End")
    clear = seen()
    for one, other in ((private, middle), (middle, clear)):
        assert one[0] != other[0]  # the picture
        assert one[1] != other[1]  # the place on the curve
        assert one[2] != other[2]  # ε
        assert one[3] != other[3]  # what can be read
    assert clear[2] == "∞"
    assert slider.get_attribute("aria-valuetext") == "ε = ∞"


def test_without_script_the_digits_are_a_grid(opened):
    page = opened("no script")
    assert page.locator(".static .row").count() >= 4
    assert page.locator(".static .row").first.is_visible()
    assert not page.locator(".live").is_visible()


def test_on_paper_it_is_dark_on_white_and_shows_the_grid(opened, tmp_path):
    page = opened("dark")
    page.emulate_media(media="print")
    assert background(page) == "rgb(255, 255, 255)"
    assert page.locator(".static .row").first.is_visible()
    assert not page.locator(".live").is_visible()
    assert not page.locator("nav").is_visible()
    page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert (tmp_path / "report.pdf").stat().st_size > 20_000


def test_headings_go_down_by_one_and_pictures_have_words(opened):
    page = opened("light")
    levels = page.locator("h1, h2, h3").evaluate_all("all => all.map(one => Number(one.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert page.locator("img:not([alt])").count() == 0
    assert page.locator("svg.chart:not([aria-label])").count() == 0


def test_contents_lead_to_sections(opened):
    page = opened("light")
    for address in page.locator("nav a").evaluate_all("all => all.map(one => one.getAttribute('href'))"):
        assert page.locator(address).count() == 1


@pytest.mark.parametrize("view", ["light", "dark"])
def test_text_stands_out_from_the_paper(opened, view):
    """Contrast of 4.5 and more for text (WCAG 2, AA), computed from the page's own colours."""
    page = opened(view)
    colours = page.evaluate(
        """() => {
          const style = getComputedStyle(document.documentElement);
          return ["--paper", "--ink", "--soft", "--accent"].map(name => style.getPropertyValue(name).trim());
        }"""
    )
    paper, *others = [luminance(colour) for colour in colours]
    for other in others:
        bright, dim = max(paper, other), min(paper, other)
        assert (bright + 0.05) / (dim + 0.05) >= 4.5


def luminance(colour):
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
