"""Passages: what a slice has to be, and one line that names the file where it is not."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from mpcore.paths import PASSAGES
from mpcore.records import Protocol
from mpcore.workloads.checkpoint import CheckpointError
from mpcore.workloads.passages import (
    CONTENTS,
    PassageError,
    cut_windows,
    read_slice,
    slice_names,
)


def encode(text: str) -> np.ndarray:
    """A token a character; refuses what the real tokeniser would lose."""
    if "\x04" in text:
        raise CheckpointError("the text holds characters that the tokeniser has no tokens for")
    return np.arange(len(text), dtype=np.int64)


CHECKPOINT = SimpleNamespace(encode=encode)


@pytest.fixture
def french(tmp_path):
    """A copy of one slice, with the table of contents; returns the slice's folder."""
    shutil.copy(PASSAGES / CONTENTS, tmp_path)
    return shutil.copytree(PASSAGES / "french", tmp_path / "french")


def test_every_slice_is_listed_and_complete():
    assert [len(read_slice(name)) for name in slice_names()] == [10] * 5
    listed = (PASSAGES / CONTENTS).read_text(encoding="utf-8")
    assert all(f"[{name}]" in listed for name in slice_names())


def first(folder):
    return min(folder.glob("*.txt"))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: first(folder).unlink(), "passages 9 where 10 is expected"),
        (lambda folder: first(folder).write_bytes(b""), "sha256 .* where .* is expected"),
        (lambda folder: first(folder).write_bytes(b"caf\xe9"), "not readable as UTF-8"),
        (lambda folder: [p.unlink() for p in list(folder.glob("*"))[:3]], "at least 8"),
        (shutil.rmtree, r"slice 'french' is not in .*; there are \[\]"),
    ],
)
def test_a_slice_with_a_missing_or_damaged_passage_is_refused(french, damage, said):
    damage(french)
    with pytest.raises(PassageError, match=said) as caught:
        read_slice("french", french.parent)
    assert "french" in str(caught.value) and "\n" not in str(caught.value)


def test_line_ends_do_not_count(french):
    first(french).write_bytes(first(french).read_bytes().replace(b"\n", b"\r\n"))
    assert read_slice("french", french.parent) == read_slice("french")


def test_a_slice_of_ones_own_needs_no_listing(french):
    french.rename(french.with_name("letters"))
    assert len(read_slice("letters", french.parent)) == 10


@pytest.mark.parametrize("tokens", [0, 8])
@pytest.mark.parametrize(
    ("text", "said"), [("", "tokens: 0"), ("a", "tokens: 1"), ("a\x04b", "no tokens for")]
)
def test_a_passage_that_cannot_be_scored_is_named(tokens, text, said):
    texts = {f"p{i}": "abcdef" for i in range(8)} | {"p3": text}
    with pytest.raises(PassageError, match=rf"passage mine/p3\.txt: .*{said}"):
        cut_windows("mine", texts, CHECKPOINT, Protocol(), tokens)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[[x", "not readable as TOML"),
        (b"\xff", "not readable as TOML"),
        (b"arithmetic = 5\n", "needs passages and sha256"),
        (b"[arithmetic]\n", "needs passages and sha256"),
        (b"[arithmetic]\npassages = 10\n", "needs passages and sha256"),
    ],
)
def test_a_damaged_table_of_contents_is_one_line(tmp_path, content, said):
    shutil.copytree(PASSAGES / "arithmetic", tmp_path / "arithmetic")
    (tmp_path / CONTENTS).write_bytes(content)
    with pytest.raises(PassageError, match=said):
        read_slice("arithmetic", tmp_path)


@pytest.mark.parametrize("name", ["../passages/arithmetic", "arithmetic/", ".", ".."])
def test_a_slice_is_a_name_and_no_path(name):
    with pytest.raises(PassageError, match="is not in"):
        read_slice(name)
