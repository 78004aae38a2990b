"""The report in a real browser, offline: nothing overflows, is clipped, or is asked for."""

from __future__ import annotations

import pytest
from packets import make_packet
from report_notebook import make_notebook
from report_page import (
    FONTS,
    SIZES,
    check_contrast,
    check_first_screen_fits,
    check_nothing_is_clipped,
    check_print,
    launched,
    opener,
)

from mpcore.report.export import notebook_to_html
from mpcore.report.sections import reproduce_command

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    packet = make_packet()
    path = tmp_path_factory.mktemp("report") / "report.html"
    text = notebook_to_html(make_notebook(packet), packet.title, reproduce_command(packet))
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser(chromium):
    with launched(chromium) as found:
        yield found


@pytest.fixture
def opened(browser, report):
    with opener(browser, report) as open_page:
        yield open_page


@pytest.mark.parametrize("font", FONTS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_nothing_overflows_or_is_clipped(opened, size, scheme, font):
    check_nothing_is_clipped(opened(size, scheme, font), size)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_background(opened, scheme):
    check_contrast(opened("desktop", scheme))


def test_first_screen_fits_a_desktop_screen(opened):
    check_first_screen_fits(opened("desktop", "light", "widest"))


def test_the_keyboard_reaches_the_skip_link_first(opened):
    page = opened("desktop", "light")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "report"


def test_print_holds_every_table_whole(opened, tmp_path):
    check_print(opened("desktop", "dark"), tmp_path / "report.pdf")
