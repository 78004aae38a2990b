"""Host names, user names and local paths, taken out of what leaves this computer."""

from __future__ import annotations

import getpass
import os
import re
import socket
from pathlib import Path

from mpcore.paths import ROOT

# Account names that many computers share: they identify nobody, and are words of their own.
SHARED_NAMES = {"root", "user", "admin", "runner", "jovyan", "ubuntu", "nobody", "localhost"}


def redact(text: str) -> str:
    """Text with the project's folder as '.', homes as '~', host and user as [host] and [user]."""
    for folder, short in ((str(ROOT), "."), (_home(), "~")):
        if len(folder) > 2:
            text = re.sub(rf"{re.escape(folder)}(?![\w-])", short, text)
    text = re.sub(r"(/home|/Users)/[^/\s\"'<>&:]+", r"\1/[user]", text)
    text = re.sub(r"([A-Za-z]:\\+Users\\+)[^\\\s\"'<>&]+", r"\1[user]", text)
    text = re.sub(r"(/private)?(/var/folders|/tmp)/[^\s\"'<>&:,;)]+", "[temporary]", text)
    for name, mark in ((socket.gethostname(), "[host]"), (_user(), "[user]")):
        for part in dict.fromkeys((name, name.partition(".")[0])):
            if len(part) >= 3 and part.lower() not in SHARED_NAMES:
                text = re.sub(rf"(?<![\w-]){re.escape(part)}(?![\w-])", mark, text)
    return text


def redact_html(html: str) -> str:
    """The same for HTML: style sheets and tags are left alone, but for the text in attributes."""
    parts = re.split(r"(<style.*?</style>|<[^>]*>)", html, flags=re.DOTALL)
    parts[::2] = [redact(part) for part in parts[::2]]
    parts[1::2] = [
        re.sub(r'((?:title|alt|aria-label)=")([^"]*)', lambda m: m[1] + redact(m[2]), tag)
        if not tag.startswith("<style")
        else tag
        for tag in parts[1::2]
    ]
    return "".join(parts)


def _home() -> str:
    try:
        return str(Path.home())
    except RuntimeError:
        return ""


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return os.environ.get("USERNAME", "")
