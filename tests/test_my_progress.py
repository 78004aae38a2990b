"""A learner's progress: one file that survives what files meet, and exports what it holds."""

from __future__ import annotations

import csv
import json
import os
import threading

import pytest
from filelock import FileLock
from test_exercises import doubled

from mpcore.workbook import my_progress
from mpcore.workbook.lesson import lesson
from mpcore.workbook.my_progress import ProgressError


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MPCORE_NOTEBOOKS", str(tmp_path / "mine"))
    return tmp_path / "mine"


def test_nothing_is_written_before_there_is_something_to_keep(folder):
    assert my_progress.read()["exercises"] == {}
    assert not folder.exists()


def test_what_is_noted_is_read_back():
    my_progress.note_attempt("a/b", False)
    my_progress.note_attempt("a/b", True)
    my_progress.note_prediction("a/c", "448", True)
    assert my_progress.entry("exercises", "a/b")["attempts"] == 2
    assert my_progress.entry("exercises", "a/b")["solved"] is True
    assert my_progress.entry("predictions", "a/c")["answer"] == "448"
    assert my_progress.entry("predictions", "a/b") is None


def test_a_locked_prediction_stays():
    my_progress.note_prediction("p", "first", False)
    assert my_progress.note_prediction("p", "second", True)["answer"] == "first"
    my_progress.note_reveal("p")
    assert my_progress.entry("predictions", "p")["revealed"] is True
    my_progress.note_reveal("q")  # never locked: nothing to reveal
    assert my_progress.entry("predictions", "q") is None
    my_progress.forget("p")
    assert my_progress.note_prediction("p", "second", True)["answer"] == "second"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"exercises": 3}', "\x00", "[" * 100_000])
def test_an_unreadable_file_is_put_aside_and_never_lost(folder, content):
    folder.mkdir()
    (folder / "progress.json").write_text(content)
    my_progress.note_attempt("a", True)
    assert my_progress.entry("exercises", "a")["solved"]
    [aside] = folder.glob("progress.unreadable-*.json")
    assert aside.read_text() == content


def put(folder, content) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "progress.json").write_text(content, encoding="utf-8")


@pytest.mark.parametrize(
    "entries",
    [
        {"a": 5},
        {"a": [1]},
        {"a": None, "": "x"},
        {"a": {"solved": [], "attempts": {}, "answer": 3, "last": None}},
        {"\ud800": {"solved": True, "attempts": 1, "answer": "\udfff"}},
    ],
    ids=repr,
)
@pytest.mark.parametrize("ending", ["csv", "json"])
def test_entries_of_any_shape_are_exported_and_written_again(folder, entries, ending):
    put(folder, json.dumps({"exercises": entries, "predictions": entries}))
    exported = my_progress.export(folder / f"all.{ending}").read_text(encoding="utf-8")
    sound = {name: e for name, e in entries.items() if isinstance(e, dict)}
    if ending == "json":
        assert json.loads(exported)["exercises"] == sound
    my_progress.note_attempt("b", True)
    assert set(my_progress.read()["exercises"]) == {*sound, "b"}
    assert my_progress.entry("predictions", "a") == sound.get("a")
    assert not list(folder.glob("progress.unreadable-*.json"))


def test_names_that_no_file_can_hold_as_they_are_can_be_kept():
    my_progress.note_prediction("\ud800", "\udfff", True)
    assert my_progress.entry("predictions", "\ud800")["answer"] == "\udfff"


def test_what_is_nested_too_deeply_to_be_written_again_is_put_aside(folder):
    deep = '{"exercises": {}, "predictions": {}, "x": ' + "[" * 800 + "]" * 800 + "}"
    put(folder, deep)
    my_progress.note_attempt("a", True)
    my_progress.export(folder / "all.json")
    assert my_progress.entry("exercises", "a")["solved"]


def test_a_file_that_another_kernel_has_mended_meanwhile_is_not_put_aside(folder, monkeypatch):
    put(folder, "{")
    parsed = my_progress._parsed

    def mended_after_the_first_look(file):
        found = parsed(file)
        if found is None:
            put(folder, '{"exercises": {"theirs": {"solved": true}}, "predictions": {}}')
        return found

    monkeypatch.setattr(my_progress, "_parsed", mended_after_the_first_look)
    assert my_progress.read()["exercises"] == {"theirs": {"solved": True}}
    assert not list(folder.glob("progress.unreadable-*.json"))


def test_only_who_holds_the_lock_puts_a_file_aside(folder, monkeypatch):
    put(folder, "{")
    monkeypatch.setattr(my_progress, "PATIENCE_S", 0.1)
    with FileLock(folder / ".progress.json.lock"):
        assert my_progress.read()["exercises"] == {}
    assert (folder / "progress.json").read_text() == "{"


@pytest.mark.skipif(os.name == "nt", reason="rights are other things there")
def test_the_file_keeps_its_rights_and_a_link_to_it_stays(folder):
    my_progress.note_attempt("a", True)
    file = folder / "progress.json"
    file.chmod(0o640)
    os.replace(file, folder / "elsewhere.json")
    file.symlink_to("elsewhere.json")
    my_progress.note_attempt("b", True)
    assert file.is_symlink() and file.stat().st_mode & 0o777 == 0o640
    assert set(my_progress.read()["exercises"]) == {"a", "b"}


def refuse_locks(*_, **__):
    raise NotImplementedError("no locks here")


@pytest.mark.parametrize(
    ("notebooks", "lock"), [("~nosuchuser/x", FileLock), ("circle", FileLock), ("x", refuse_locks)]
)
def test_whatever_hinders_keeping_the_verdict_is_given(tmp_path, monkeypatch, notebooks, lock):
    (tmp_path / "circle").symlink_to("circle")
    place = notebooks if notebooks.startswith("~") else str(tmp_path / notebooks)
    monkeypatch.setenv("MPCORE_NOTEBOOKS", place)
    monkeypatch.setattr(my_progress, "FileLock", lock)
    verdict = doubled.check(lambda x: 2 * x)
    assert verdict.outcome == "correct" and verdict.reason.endswith(")")
    assert "\n" not in verdict.reason
    with pytest.raises(ProgressError):
        my_progress.note_prediction("p", "1", True)
    shown = lesson("02_rounding_and_accumulation").the_best_order
    assert shown.lock("pairwise") and shown.is_locked


def test_odd_entries_are_no_reason_to_stop(folder):
    folder.mkdir()
    odd = {"exercises": {"a": 3, "b": {"attempts": "x"}}, "predictions": {"p": None}}
    (folder / "progress.json").write_text(json.dumps(odd))
    my_progress.note_attempt("a", True)
    my_progress.note_attempt("b", False)
    assert my_progress.note_prediction("p", "1", True)["answer"] == "1"
    assert my_progress.entry("exercises", "b")["attempts"] == 1
    my_progress.export(folder / "all.csv")


def test_attempts_at_once_are_all_counted():
    threads = [threading.Thread(target=my_progress.note_attempt, args=("a", False)) for _ in "1234"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert my_progress.entry("exercises", "a")["attempts"] == 4


def test_what_cannot_be_read_just_now_is_left_where_it_is(folder, monkeypatch):
    my_progress.note_attempt("a", True)

    def refuse(*_, **__):
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.read_text", refuse)
        with pytest.raises(ProgressError, match="Too many open files"):
            my_progress.read()
    assert my_progress.entry("exercises", "a")["solved"]


def test_a_folder_that_cannot_be_written_to_is_named(folder, tmp_path):
    folder.write_text("a file where the folder should be")
    with pytest.raises(ProgressError, match="progress cannot be kept") as error:
        my_progress.note_attempt("a", True)
    assert "\n" not in str(error.value)
    verdict = doubled.check(lambda x: 2 * x)
    assert verdict.outcome == "correct" and "progress cannot be kept" in verdict.reason


def test_the_export_holds_everything(tmp_path):
    my_progress.note_attempt("01/x", True)
    my_progress.note_prediction("01/y", '=HYPERLINK("x")', False)
    table = my_progress.export(tmp_path / "progress.csv")
    rows = list(csv.reader(table.read_text(encoding="utf-8").splitlines()))
    assert [row[:3] for row in rows[1:]] == [
        ["exercise", "01/x", "solved"],
        ["prediction", "01/y", "wrong"],
    ]
    assert rows[2][4].startswith("'=")  # no formula for a spreadsheet
    data = json.loads(my_progress.export(tmp_path / "progress.json").read_text(encoding="utf-8"))
    assert set(data["exercises"]) == {"01/x"}


@pytest.mark.parametrize(
    "name", ["progress.txt", "there.csv", "no/such/folder.csv", "a\0.csv", "\ud800.csv"]
)
def test_an_export_that_cannot_be_is_refused_in_one_line(tmp_path, name):
    (tmp_path / "there.csv").write_text("mine")
    with pytest.raises(ProgressError) as error:
        my_progress.export(tmp_path / name)
    assert "\n" not in str(error.value)
    assert (tmp_path / "there.csv").read_text() == "mine"
    assert not any(part.suffix == ".part" for part in tmp_path.rglob("*"))


@pytest.mark.parametrize("path", ["~nosuchuser/a.csv", None, 5])
def test_an_export_to_what_is_no_place_is_refused_in_one_line(path):
    with pytest.raises(ProgressError) as error:
        my_progress.export(path)
    assert "\n" not in str(error.value)


def test_nothing_half_written_is_left(folder):
    my_progress.note_attempt("a", True)
    assert set(os.listdir(folder)) <= {"progress.json", ".progress.json.lock"}
