"""Opening a report in a real browser, offline, and what must be true of every report there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

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

SPILLING_CELLS = """() => [...document.querySelectorAll('td, th')]
  .filter(cell => cell.scrollWidth > cell.clientWidth + 1)
  .map(cell => cell.textContent.slice(0, 80))"""

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


@contextmanager
def launched(chromium: str) -> Iterator:
    """A browser that is closed at the end."""
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield browser
        browser.close()


@contextmanager
def opener(browser, report: Path) -> Iterator:
    """A function (size, scheme, font) -> page; no page may complain or ask for another file."""
    contexts, complaints, requests = [], [], []

    def open_page(size: str, scheme: str, font: str = "own"):
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


def check_nothing_is_clipped(page, size: str) -> None:
    """The page is no wider than the screen, and no text in a picture or table is cut or covered."""
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]
    assert page.evaluate(CLIPPED_TEXT) == []
    assert page.evaluate(OVERLAPPING_TEXT) == []
    assert page.evaluate(SPILLING_CELLS) == []


def check_contrast(page) -> None:
    """Every text stands out from its background (WCAG AA)."""
    assert page.evaluate(LOW_CONTRAST) == []


def check_first_screen_fits(page) -> None:
    """The four panels are seen without scrolling."""
    bottom = "document.querySelector('.mp-panels').getBoundingClientRect().bottom"
    assert page.evaluate(bottom) <= SIZES["desktop"][1]


def check_print(page, file: Path) -> None:
    """A PDF comes out; on A4 no table is wider than the paper, and what is folded is unfolded."""
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
