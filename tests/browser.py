"""Where a Chromium is, and getting one where there is none.

`python tests/browser.py` is run before the tests: it finds one, or tries to get one. Without any,
tests that need a browser are skipped with a line, unless CI=true makes that a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find_chromium() -> str | None:
    """The executable: CHROMIUM, then PATH, then playwright's own; None where there is none."""
    given = os.environ.get("CHROMIUM")
    for name in [given] if given else NAMES:
        if (found := shutil.which(name)) and _runs(found):
            return found
    if given:
        return None
    try:
        from playwright.sync_api import sync_playwright

        with sync_playwright() as playwright:
            own = playwright.chromium.executable_path
    except Exception:  # an unsupported system makes playwright raise errors of many kinds
        return None
    return own if Path(own).is_file() and _runs(own) else None


def _runs(executable: str) -> bool:
    """Whether it starts: a downloaded browser can lack the system's libraries."""
    try:
        return subprocess.run([executable, "--version"], capture_output=True).returncode == 0
    except OSError:
        return False


def obtain_chromium() -> str | None:
    """Find a Chromium, else download playwright's, else install Debian's where we are root."""
    attempts = [[sys.executable, "-m", "playwright", "install", "chromium"]]
    if hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("apt-get"):
        attempts.append(["apt-get", "install", "-y", "--no-install-recommends", "chromium"])
    for command in [None, *attempts]:
        if command:
            print("no browser yet; trying:", " ".join(command[-3:]), flush=True)
            subprocess.run(command, stdin=subprocess.DEVNULL, check=False)
        if found := find_chromium():
            return found
    return None


def main() -> int:
    """Print where the browser is; 1 where there is none and CI insists."""
    if found := obtain_chromium():
        print(f"browser: {found}")
        return 0
    print("no Chromium could be found or installed: browser tests are skipped", file=sys.stderr)
    return 1 if os.environ.get("CI") == "true" else 0


if __name__ == "__main__":
    sys.exit(main())
