"""The report in a real browser, offline: nothing overflows, is clipped, or is asked for."""

from __future__ import annotations

import pytest
from packets import make_packet
from report_notebook import make_notebook

from mpcore.report.export import notebook_to_html
from mpcore.report.sections import reproduce_command

pytestmark = pytest.mark.browser

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
SIZES = {"desktop": (1280, 800), "phone": (390, 844)}
# DejaVu Sans is about as wide as interface fonts get: what fits in it fits in the others.
FONTS = {"own": "", "widest": "* { font-family: 'DejaVu Sans' !important }"}

CLIPPED_TEXT = """() => [...document.querySelectorAll('svg.mp-figure text')].filter(text => {
  const box = text.getBoundingClientRect();
  const frame = text.ownerSVGElement.getBoundingClientRect();
  return box.left < frame.left - .5 || box.right > frame.right + .5
      || box.top < frame.top - .5 || box.bottom > frame.bottom + .5;
}).map(text => text.textContent)"""

OVERLAPPING_TEXT = """() => [...document.querySelectorAll('svg.mp-figure')].flatMap(svg => {
  const texts = [...svg.querySelectorAll('text')]
    .map(t => [t.textContent, t.getBoundingClientRect()]);
  const found = [];
  texts.forEach(([a, p], i) => texts.slice(i + 1).forEach(([b, q]) => {
    const wide = Math.min(p.right, q.right) - Math.max(p.left, q.left);
    const high = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
    if (wide > 1 && high > .35 * Math.min(p.height, q.height)) found.push(a + ' / ' + b);
  }));
  return found;
})"""

LOW_CONTRAST = """() => {
  const light = value => {
    const parts = value.match(/[0-9.]+/g).slice(0, 3).map(v => v / 255)
      .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * parts[0] + .7152 * parts[1] + .0722 * parts[2];
  };
  const background = element => {
    for (let e = element; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (!/rgba\\(0, 0, 0, 0\\)|transparent/.test(colour)) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  return [...document.querySelectorAll(
      'p, li, td, th, dt, dd, h1, h2, h3, summary, a, figcaption, td span')]
    .filter(e => e.textContent.trim()).filter(e => {
      const [a, b] = [light(getComputedStyle(e).color), light(background(e))].sort((x, y) => y - x);
      return (a + .05) / (b + .05) < 4.5;
    }).map(e => e.outerHTML.slice(0, 80));
}"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    packet = make_packet()
    path = tmp_path_factory.mktemp("report") / "report.html"
    text = notebook_to_html(make_notebook(packet), packet.title, reproduce_command(packet))
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield found
        found.close()


@pytest.fixture
def opened(browser, report):
    """Opens the report offline; what the browser complained about or asked for is asserted."""
    contexts, complaints, requests = [], [], []

    def open_page(size, scheme, font="own"):
        width, height = SIZES[size]
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme
        )
        contexts.append(context)
        context.set_offline(True)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(report.as_uri())
        if FONTS[font]:
            page.add_style_tag(content=FONTS[font])
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []
    assert set(requests) == {report.as_uri()}


@pytest.mark.parametrize("font", FONTS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_nothing_overflows_or_is_clipped(opened, size, scheme, font):
    page = opened(size, scheme, font)
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]
    assert page.evaluate(CLIPPED_TEXT) == []
    assert page.evaluate(OVERLAPPING_TEXT) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_background(opened, scheme):
    assert opened("desktop", scheme).evaluate(LOW_CONTRAST) == []


def test_first_screen_fits_a_desktop_screen(opened):
    page = opened("desktop", "light", "widest")
    bottom = "document.querySelector('.mp-panels').getBoundingClientRect().bottom"
    assert page.evaluate(bottom) <= SIZES["desktop"][1]


def test_the_keyboard_reaches_the_skip_link_first(opened):
    page = opened("desktop", "light")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "report"


def test_print_holds_every_table_whole(opened, tmp_path):
    page = opened("desktop", "dark")
    file = tmp_path / "report.pdf"
    page.pdf(path=str(file), prefer_css_page_size=True)
    assert file.read_bytes().startswith(b"%PDF-")
    page.emulate_media(media="print", color_scheme="light")
    page.set_viewport_size({"width": 688, "height": 1000})  # A4 less its margins, at 96 dpi
    wide = """() => [...document.querySelectorAll('table')]
      .filter(t => t.getBoundingClientRect().right > innerWidth + .5)
      .map(t => t.caption.textContent)"""
    assert page.evaluate(wide) == []
    hidden = """() => [...document.querySelectorAll('details:not(.code) table')]
      .filter(t => t.getBoundingClientRect().height === 0).length"""
    assert page.evaluate(hidden) == 0
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
