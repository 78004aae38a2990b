"""The map of the workbook: it is complete, it links, and it shows a learner's progress."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from mpcore.paths import DATA, NOTEBOOKS
from mpcore.records import load_case
from mpcore.workbook import my_progress
from mpcore.workbook import workbook_map as the_map
from mpcore.workbook.lesson import LESSONS, Lesson, lesson
from mpcore.workbook.workbook_map import workbook, workbook_map

ASKING = "lessons/01_formats.ipynb"


@pytest.fixture(autouse=True)
def own_progress(tmp_path, monkeypatch):
    monkeypatch.setenv("MPCORE_NOTEBOOKS", str(tmp_path))


class Table(HTMLParser):
    """The rows of a table as text, and its links; every tag that opens has to close."""

    def __init__(self, html):
        super().__init__()
        self.rows, self.links, self.open, self.caption = [], [], [], ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        if tag != "br":
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag == "a":
            self.links.append(dict(attributes)["href"])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "caption" in self.open:
            self.caption += data
        else:
            self.rows[-1][-1] += data


def shown():
    """The map's table: heads, path -> cells."""
    table = Table(workbook_map()._repr_html_())
    head, *rows = table.rows
    return head, dict(zip(table.links, rows, strict=True)), table


def test_every_notebook_is_on_the_map():
    shipped = {path.relative_to(NOTEBOOKS).as_posix() for path in NOTEBOOKS.rglob("*.ipynb")}
    shipped = {path for path in shipped if ".ipynb_checkpoints" not in path}
    listed = [one.path for one in workbook().notebooks]
    assert len(set(listed)) == len(listed)
    assert shipped == set(listed)


def test_every_lesson_that_asks_is_on_the_map():
    assert {f"lessons/{name}.ipynb" for name in LESSONS} <= {n.path for n in workbook().notebooks}


@pytest.mark.parametrize("route", workbook().routes, ids=lambda route: route.name)
def test_a_route_leads_over_notebooks_of_the_map_each_once(route):
    path = [step.notebook for step in route.steps]
    assert len(set(path)) == len(path) >= 2
    assert set(path) <= {one.path for one in workbook().notebooks}


@pytest.mark.parametrize("name", sorted(path.stem for path in (DATA / "cases").glob("*.toml")))
def test_every_profile_of_a_case_has_a_duration(name):
    assert set(workbook().reports[name]) == {"default", *load_case(name).profile}


def test_the_table_links_notebooks_and_numbers_the_routes():
    head, rows, _ = shown()
    assert head == [
        "Notebook",
        "Minutes",
        "Route: newcomer",
        "Route: practitioner",
        "Route: senior review",
        "Progress",
    ]
    assert list(rows) == [one.path for one in workbook().notebooks]
    assert rows["00_start_here.ipynb"][2:] == ["—", "—", "—", "—"]
    assert rows["lessons/02_rounding_and_accumulation.ipynb"][2:5] == ["2", "3", "3"]
    case = ["5", "1 (by the launcher)", "1 (its report)", "—"]
    assert rows["cases/int8_outliers.ipynb"][2:] == case


def test_the_table_can_be_read_aloud_and_in_the_dark():
    html = workbook_map()._repr_html_()
    assert html.count('scope="col"') == 6
    assert html.count('scope="row"') == len(workbook().notebooks)
    assert set(re.findall(r"(?<![\w-])color: (\w+)", html)) == {"inherit"}
    assert "background" not in html and "#" not in html


def test_progress_counts_what_is_solved_and_what_is_locked():
    asked = lesson("01_formats")
    exercises, predictions = list(asked.exercises.values()), list(asked.predictions.values())
    before = f"0 of {len(exercises)} exercises, 0 of {len(predictions)} predictions"
    assert shown()[1][ASKING][-1] == before
    my_progress.note_attempt(exercises[0].name, correct=True)
    my_progress.note_attempt(exercises[1].name, correct=False)  # tried is not solved
    my_progress.note_prediction(predictions[0].name, "1", right=False)  # locked, right or wrong
    after = f"1 of {len(exercises)} exercises, 1 of {len(predictions)} predictions"
    assert shown()[1][ASKING][-1] == after
    assert after in repr(workbook_map())


def test_one_of_a_kind_is_counted_in_the_singular(monkeypatch):
    class Asked(Lesson):
        def __init__(self, name):
            self.exercises, self.predictions = {}, {"p": one}

    one = next(iter(lesson("01_formats").predictions.values()))
    monkeypatch.setattr(the_map, "lesson", Asked)
    assert shown()[1][ASKING][-1] == "0 of 1 prediction"


def test_the_caption_says_how_to_take_the_progress_along(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = re.search(r"As a table: (.*)", shown()[2].caption)[1]
    exec(code, {})
    assert (tmp_path / "progress.csv").read_text().startswith("kind,name,result")
