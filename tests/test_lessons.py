"""The lessons as documents: stored clean, every number in a sentence computed beside it."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from copy import deepcopy
from itertools import pairwise

import pytest

from mpcore.paths import NOTEBOOKS
from mpcore.report.notebook_format import nbformat
from mpcore.workbook.authoring import (
    IGNORED,
    KEPT,
    STUB,
    as_stored,
    clean,
    lessons,
    main,
    with_kept_outputs,
    with_stubs,
)
from mpcore.workbook.lesson import LESSONS, lesson

CLAIM = re.compile(
    r"(?:(?<![^\s(=^])[-−])?(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?%?(?!\w)"
)
NO_CLAIM = (
    re.compile(r"^#+ .*$", re.MULTILINE),  # headings: "02 Rounding"
    re.compile(r"`[^`]*`"),  # code
    re.compile(r"\$\$.*?\$\$|\$[^$]*\$", re.DOTALL),  # formulas
    re.compile(r"\[[^\]]*\]\([^)]*\)"),  # links
)


def read(path):
    return nbformat.read(path, 4)


def numbers_in(text: str) -> set[str]:
    """Numbers as a reader sees them: 48.25, 41%, 4.5e-05, -2; 16.0 is 16."""
    found = {number.replace(",", "").replace("−", "-") for number in CLAIM.findall(text)}
    return {re.sub(r"\.0$", "", number) for number in found}


def sections_of(notebook) -> list[list]:
    """Its cells, section by section."""
    sections = [[]]
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and cell.source.startswith("## "):
            sections.append([])
        sections[-1].append(cell)
    return sections


def claims_of(cells) -> set[str]:
    """Numbers that the sentences of some cells state."""
    text = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    for pattern in NO_CLAIM:
        text = pattern.sub(" ", text)
    return numbers_in(text)


def proofs_of(cells) -> set[str]:
    """Numbers that stored outputs print, which nbval recomputes, and those that the code sets.

    A sentence may give the size of a negative one ("0.8 below"), but never turn a sign round.
    """
    found: set[str] = set()
    for cell in cells:
        if cell.cell_type == "code":
            found |= numbers_in(re.sub(r"[^\w.%+-]", " ", without_comments(cell.source)))
            for output in cell.outputs:
                found |= numbers_in(output.get("text") or output.data["text/plain"])
    return found | {number.removeprefix("-") for number in found}


def without_comments(source: str) -> str:
    """Code without what it says about itself: a comment proves nothing."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return tokenize.untokenize(token for token in tokens if token.type != tokenize.COMMENT)


def unproved(notebook) -> set[str]:
    """Numbers that a sentence states and nothing in the same section computes."""
    sections = sections_of(notebook)
    return set().union(*(claims_of(cells) - proofs_of(cells) for cells in sections))


@pytest.mark.parametrize(
    ("sentence", "code", "printed", "missing"),
    [
        ("It errs by 0.3 ulp.", "", "-0.3", set()),
        ("It errs by -0.3 ulp.", "", "0.3", {"-0.3"}),
        ("It errs by −0.3 ulp.", "", "-0.3", set()),
        ("It holds 448.", "x = 1  # up to 448", "1", {"448"}),
        ("It holds 448.", "x = 448", "1", set()),
    ],
)
def test_a_sign_counts_and_a_comment_proves_nothing(sentence, code, printed, missing):
    output = nbformat.v4.new_output("stream", text=printed)
    cells = [nbformat.v4.new_markdown_cell(sentence)]
    cells += [nbformat.v4.new_code_cell(code, outputs=[output])]
    assert unproved(nbformat.v4.new_notebook(cells=cells)) == missing


LESSON_FILES = [path for path in lessons() if path.exists()]


@pytest.mark.parametrize("path", LESSON_FILES, ids=lambda path: path.stem)
def test_every_number_in_a_sentence_is_computed_in_the_lesson(path):
    assert unproved(read(path)) == set()


@pytest.mark.parametrize("path", LESSON_FILES, ids=lambda path: path.stem)
def test_a_lesson_is_stored_as_nbstripout_leaves_it(path):
    stored = path.read_text(encoding="utf-8")
    assert as_stored(with_kept_outputs(clean(read(path)))) == stored, (
        f"{path.name} holds traces of a run: python -m mpcore.workbook.authoring {path.name}"
    )
    for cell in read(path).cells:
        assert re.fullmatch(r"[a-z0-9-]+(_[a-z0-9]+)*", cell.id), "an id says what the cell is for"
        if cell.cell_type == "code":
            assert set(cell.metadata) <= {"tags", "jupyter"}
            assert set(cell.metadata.get("tags", [])) <= {KEPT, IGNORED, "exercise"}
            assert "NBVAL_" not in cell.source  # comments by which nbval passes cells over
            kept = KEPT in cell.metadata.get("tags", [])
            assert bool(cell.outputs) == kept
            for output in cell.outputs:
                text = output.get("text") or output.data["text/plain"]
                assert len(text.splitlines()) <= 12 and max(map(len, text.splitlines())) <= 90


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_asks_all_its_questions_and_its_stubs_are_their_solutions_heads(name):
    path = NOTEBOOKS / "lessons" / f"{name}.ipynb"
    notebook = read(path)
    assert as_stored(with_stubs(read(path), name)) == path.read_text(encoding="utf-8")
    stubs = {c.id.removeprefix(STUB) for c in notebook.cells if c.id.startswith(STUB)}
    assert stubs == set(lesson(name).exercises)
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    for question in lesson(name).predictions:
        assert f"ask.{question}" in code
    for question in lesson(name).exercises:
        assert f"ask.{question}.check({question})" in code


def test_an_author_is_told_what_cannot_be_stored(tmp_path, capsys):
    stray = nbformat.v4.new_code_cell(id=f"{STUB}nothing")
    files = {
        "absent.ipynb": None,
        "text.ipynb": "hello",
        f"{LESSONS[0]}.ipynb": nbformat.writes(nbformat.v4.new_notebook(cells=[stray])),
    }
    for name, text in files.items():
        if text is not None:
            (tmp_path / name).write_text(text, encoding="utf-8")
        assert main([str(tmp_path / name)]) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith(f"authoring: {name}: ")
    assert "stub-nothing: no such exercise; there are" in line


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_has_the_parts_that_every_lesson_has(name):
    headings = re.findall(
        r"^## (.+)$",
        "\n".join(
            cell.source
            for cell in read(NOTEBOOKS / "lessons" / f"{name}.ipynb").cells
            if cell.cell_type == "markdown"
        ),
        re.MULTILINE,
    )
    assert headings[-3:] == ["Summary", "Exercises", "What would change your mind"]


@pytest.mark.parametrize("path", LESSON_FILES, ids=lambda path: path.stem)
def test_a_lesson_needs_no_network_and_hides_only_plumbing(path):
    for cell in read(path).cells:
        if cell.cell_type == "code":
            for node in ast.walk(ast.parse(cell.source)):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    names = [a.name for a in node.names] + [getattr(node, "module", "") or ""]
                    assert not {"requests", "urllib", "http", "socket"} & {
                        name.split(".")[0] for name in names
                    }
            if cell.metadata.get("jupyter", {}).get("source_hidden"):
                assert "import" in cell.source


@pytest.mark.parametrize("path", LESSON_FILES, ids=lambda path: path.stem)
def test_every_link_of_a_lesson_leads_somewhere(path):
    for cell in read(path).cells:
        if cell.cell_type == "markdown":
            for target in re.findall(r"\]\(([^)#]+)\)", cell.source):
                assert (path.parent / target).exists(), target
            assert "![" not in cell.source or "![](" not in cell.source  # pictures have a text


@pytest.mark.parametrize("path", LESSON_FILES, ids=lambda path: path.stem)
def test_a_widget_or_picture_is_never_compared_and_everything_else_is(path):
    for cell in read(path).cells:
        if cell.cell_type == "code" and IGNORED in cell.metadata.get("tags", []):
            last = cell.source.strip().splitlines()[-1]
            assert "print" not in last, "what is printed can be compared: take the tag off"


def changed(number: str, by: int = 4) -> str:
    """Another number of the same look: its last digit is moved on."""
    digit = re.search(r"\d(?!.*\d)", number)
    other = str((int(digit[0]) + by) % 10)
    return number[: digit.start()] + other + number[digit.end() :]


def with_sentences_changed(notebook, number: str, other: str):
    """The notebook with one number changed in every sentence that states it."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            where = rf"(?<![\w.]){re.escape(number)}(?![\w.]*\d)"
            cell.source = re.sub(where, other, cell.source)
    return notebook


@pytest.mark.parametrize("path", LESSON_FILES, ids=lambda path: path.stem)
def test_each_changed_number_in_a_sentence_is_noticed(path):
    """Of the nine other last digits, some may be printed beside it by chance, most are not."""
    stored = read(path)

    def is_noticed(number: str, other: str) -> bool:
        return bool(unproved(with_sentences_changed(deepcopy(stored), number, other)))

    for number in claims_of(stored.cells):
        others = [changed(number, by) for by in range(1, 10)]
        assert sum(is_noticed(number, other) for other in others) >= 5, number


def prediction_sections(notebook):
    """(cells of a section after its last prediction, its predictions' code)."""
    for cells in sections_of(notebook):
        asks = [i for i, c in enumerate(cells) if c.id.startswith("predict-")]
        if asks:
            yield cells[asks[-1] + 1 :], [cells[i].source for i in asks]


@pytest.mark.parametrize("name", LESSONS)
def test_what_answers_a_prediction_is_folded_and_a_line_stops_the_reader(name):
    asked = []
    for rest, predictions in prediction_sections(read(NOTEBOOKS / "lessons" / f"{name}.ipynb")):
        asked += predictions
        assert rest[0].cell_type == "markdown" and rest[0].source.startswith(
            "**Stop here, and lock"
        )
        shown = next(i for i, c in enumerate(rest) if KEPT in c.metadata.get("tags", []))
        said = next(c for c in rest[shown:] if c.cell_type == "markdown")
        assert said.source.startswith("<details><summary>") and said.source.endswith("</details>")
        assert said.source.count("\n\n") >= 2  # else it would not be Markdown
        for question in predictions:
            spec = lesson(name).predictions[question.removeprefix("ask.")]
            if not spec.choices:
                open_text = [c for c in rest if not c.source.startswith("<details>")]
                assert f"{spec.reveal().answer:.3g}" not in claims_of(open_text)
    assert len(asked) == len(lesson(name).predictions)


COUNTED = {1: "one hint", 2: "two hints", 3: "three hints", 4: "four hints"}


@pytest.mark.parametrize("name", LESSONS)
def test_each_exercise_says_how_to_get_help_and_how_many_hints_there_are(name):
    cells = read(NOTEBOOKS / "lessons" / f"{name}.ipynb").cells
    heads = {after.id: before for before, after in pairwise(cells)}
    for key, e in lesson(name).exercises.items():
        said = heads[f"{STUB}{key}"].source
        assert f"`ask.{key}.hint()` has {COUNTED[len(e.hints)]}," in said
        assert f"`ask.{key}.solution()`" in said


@pytest.mark.parametrize("path", LESSON_FILES, ids=lambda path: path.stem)
def test_what_stands_for_a_picture_without_its_kernel_is_said_before_the_first_one(path):
    cells = read(path).cells
    first = next(
        (
            i
            for i, c in enumerate(cells)
            if re.search(r"^(ask\.|\w+(Explorer|Player)\()", c.source, re.M)
        ),
        len(cells),
    )
    assert any("*Error displaying widget: model not found*" in c.source for c in cells[:first])
