"""What several test files share."""

from __future__ import annotations

import os

import pytest
from browser import find_chromium
from hypothesis import settings

# Examples differ from run to run where people work, and are the same ones each time under CI.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI") == "true":
    settings.load_profile("ci")


LONGEST = (
    "test_int8_outliers",
    "test_lessons_in_lab",
    "test_produce",
    "test_language_model",
    "test_lab",
)
"""Files that take longest, the longest first: one that starts late would keep the others idle."""


def pytest_collection_modifyitems(items) -> None:
    """The longest files first, all others in their order."""
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONGEST)))


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a Chromium; skips without one, fails where CI=true."""
    found = find_chromium()
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail("no Chromium; python tests/browser.py gets one")
        pytest.skip("no Chromium; python tests/browser.py gets one")
    return found
