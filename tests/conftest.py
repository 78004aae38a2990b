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


def pytest_collection_modifyitems(items) -> None:
    """The case's own file first: it takes longest, and would keep one core idle at the end."""
    items.sort(key=lambda item: item.path.stem != "test_int8_outliers")


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a Chromium; skips without one, fails where CI=true."""
    found = find_chromium()
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail("no Chromium; python tests/browser.py gets one")
        pytest.skip("no Chromium; python tests/browser.py gets one")
    return found
