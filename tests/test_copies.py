"""Working copies of the notebooks: updated while they are as shipped, never touched afterwards."""

from __future__ import annotations

import json
import os

import pytest

from mpcore.errors import InputError
from mpcore.workbook.copies import RECORD, refresh, sources_digest

DAMAGES = [
    "",
    "[",
    "[1]",
    '{"a.ipynb": 5}',
    '{"a.ipynb": {"made_from": 5}}',
    '{"a.ipynb": {"x": 1}}',
]


class Place:
    """A folder of shipped notebooks, one of copies, and how to change either."""

    def __init__(self, folder):
        self.shipped, self.copies = folder / "shipped", folder / "mine"

    def ship(self, source: str, name: str = "a.ipynb") -> None:
        write(self.shipped / name, source)

    def edit(self, source: str, name: str = "a.ipynb") -> None:
        write(self.copies / name, source)

    def refresh(self) -> list[str]:
        return refresh(self.shipped, self.copies)

    def names(self) -> list[str]:
        return sorted(path.name for path in self.copies.rglob("*") if path.is_file())

    def source(self, name: str = "a.ipynb") -> str:
        return json.loads((self.copies / name).read_text())["cells"][0]["source"]


def write(path, source: str, outputs=(), **metadata) -> None:
    cell = {"cell_type": "code", "source": source, "outputs": list(outputs)}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"cells": [cell], "metadata": metadata}))


@pytest.fixture
def place(tmp_path):
    found = Place(tmp_path)
    found.ship("1")
    return found


def test_absent_notebooks_are_copied_in_the_same_tree(place):
    place.ship("2", "lessons/b.ipynb")
    place.ship("3", "lessons/.ipynb_checkpoints/b-checkpoint.ipynb")
    assert place.refresh() == ["2 notebooks copied to mine; work there as you like"]
    assert place.names() == [RECORD, "a.ipynb", "b.ipynb"]
    shipped, copy = place.shipped / "lessons" / "b.ipynb", place.copies / "lessons" / "b.ipynb"
    assert sources_digest(copy.read_bytes()) == sources_digest(shipped.read_bytes())
    assert place.refresh() == []


def test_a_copy_comes_without_the_results_that_would_answer_its_questions(place):
    place.ship("2", "lessons/b.ipynb")
    shipped = json.loads((place.shipped / "lessons" / "b.ipynb").read_text())
    shipped["cells"][0] |= {"outputs": [{"output_type": "stream", "text": "256"}]}
    (place.shipped / "lessons" / "b.ipynb").write_text(json.dumps(shipped))
    place.refresh()
    assert "256" not in (place.copies / "lessons" / "b.ipynb").read_text()


@pytest.mark.parametrize("inside", [".", "inside", "a/b", "../shipped/inside", "../link/inside"])
def test_copies_among_the_shipped_notebooks_are_refused_in_one_line(place, inside):
    (place.shipped.parent / "link").symlink_to(place.shipped)
    before = sorted(place.shipped.parent.rglob("*"))
    with pytest.raises(InputError, match="cannot lie among the shipped") as error:
        refresh(place.shipped, place.shipped / inside)
    assert "\n" not in str(error.value)
    assert sorted(place.shipped.parent.rglob("*")) == before


def test_copies_beside_the_shipped_notebooks_are_fine(place):
    assert refresh(place.shipped, place.shipped.with_name("shipped too"))
    assert refresh(place.shipped, place.shipped / ".." / "mine")


@pytest.mark.skipif(os.name == "nt", reason="rights are other things there")
def test_copies_of_what_cannot_be_written_can_be_written(place):
    (place.shipped / "a.ipynb").chmod(0o444)
    assert place.refresh() == ["1 notebook copied to mine; work there as you like"]
    assert (place.copies / "a.ipynb").stat().st_mode & 0o200


def test_a_copy_that_was_only_run_follows_the_shipped_one(place):
    place.refresh()
    output = {"output_type": "stream", "name": "stdout", "text": ["1"]}
    write(place.copies / "a.ipynb", "1", [output], kernelspec={"name": "mine"})
    assert place.refresh() == []
    place.ship("2")
    assert place.refresh() == ["a.ipynb: updated; you had not changed it"]
    assert place.source() == "2"
    assert place.refresh() == []


def test_a_source_is_the_same_as_a_text_or_as_lines(place):
    place.ship("a = 1\nb = 2")
    place.refresh()
    cell = {"cell_type": "code", "source": ["a = 1\n", "b = 2"]}
    (place.copies / "a.ipynb").write_text(json.dumps({"cells": [cell]}))
    place.ship("3")
    assert place.refresh() == ["a.ipynb: updated; you had not changed it"]


def test_a_changed_copy_stays_and_the_new_version_is_put_beside_it_once(place):
    place.refresh()
    place.edit("mine")
    assert place.refresh() == []
    place.ship("2")
    line = "a.ipynb: kept as you have it; the new version: a (new).ipynb"
    assert place.refresh() == [line]
    assert (place.source(), place.source("a (new).ipynb")) == ("mine", "2")
    assert place.refresh() == []
    (place.copies / "a (new).ipynb").unlink()  # seen, and not wanted
    assert place.refresh() == []
    assert place.names() == [RECORD, "a.ipynb"]


def test_an_offer_makes_room_for_the_next_unless_somebody_changed_it(place):
    place.refresh()
    place.edit("mine")
    for number, (edited, names) in enumerate(
        [(False, ["a (new).ipynb"]), (True, ["a (new).ipynb"]), (False, ["a (new 2).ipynb"])], 2
    ):
        place.ship(str(number))
        assert place.refresh() == [f"a.ipynb: kept as you have it; the new version: {names[0]}"]
        assert place.source(names[0]) == str(number)
        if edited:
            place.edit("mine too", names[0])
    assert (place.source(), place.source("a (new).ipynb")) == ("mine", "mine too")


def test_a_copy_that_takes_over_the_new_version_is_unchanged_again(place):
    place.refresh()
    place.edit("mine")
    place.ship("2")
    place.refresh()
    os.replace(place.copies / "a (new).ipynb", place.copies / "a.ipynb")
    assert place.refresh() == []
    place.ship("3")
    assert place.refresh() == ["a.ipynb: updated; you had not changed it"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_loses_nothing(place, damage):
    place.refresh()
    place.edit("mine")
    (place.copies / RECORD).write_text(damage)
    place.ship("2")
    assert place.refresh() == ["a.ipynb: kept as you have it; the new version: a (new).ipynb"]
    assert (place.source(), place.source("a (new).ipynb")) == ("mine", "2")
    assert place.refresh() == []


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b'{"cells": 3}', b"[" * 100_000])
def test_a_copy_that_cannot_be_read_loses_nothing(place, content):
    place.refresh()
    (place.copies / "a.ipynb").write_bytes(content)
    assert place.refresh() == []
    place.ship("2")
    assert place.refresh() == ["a.ipynb: kept as you have it; the new version: a (new).ipynb"]
    assert (place.copies / "a.ipynb").read_bytes() == content


def test_a_notebook_of_ones_own_with_the_same_name_stays(place):
    place.edit("mine")
    place.refresh()
    assert (place.source(), place.source("a (new).ipynb")) == ("mine", "1")


def test_a_damaged_shipped_notebook_replaces_nothing(place):
    place.refresh()
    (place.shipped / "a.ipynb").write_text("{")
    assert place.refresh() == ["a.ipynb: left out; the shipped file is no notebook"]
    assert place.source() == "1"


def test_a_write_that_fails_leaves_the_old_copy_and_names_the_file(place, monkeypatch):
    place.refresh()
    place.ship("2")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mpcore.workbook.copies.os.replace", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*mine.a\.ipynb'"):
        place.refresh()
    assert place.source() == "1"
    assert place.names() == [RECORD, "a.ipynb"]
