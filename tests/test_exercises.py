"""Every exercise: its stub, its reference, its wrong answers; every prediction: locked first."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import mpcore as mp
from mpcore.errors import InputError
from mpcore.workbook import my_progress
from mpcore.workbook.exercise import Exercise, Wrong, exercise
from mpcore.workbook.lesson import LESSONS, lesson
from mpcore.workbook.prediction import Prediction

EXERCISES = [e for name in LESSONS for e in lesson(name).exercises.values()]
PREDICTIONS = [p for name in LESSONS for p in lesson(name).predictions.values()]
OTHER_SEED = 20_000  # not the seed that the exercises were written with


@pytest.fixture(autouse=True)
def own_progress(tmp_path, monkeypatch):
    monkeypatch.setenv("MPCORE_NOTEBOOKS", str(tmp_path))
    return tmp_path


def run_source(source: str) -> dict:
    """What a cell defines, with the imports of a lesson's first cell."""
    space = {"np": np, "mp": mp}
    exec(source, space)
    return space


@pytest.mark.parametrize("name", LESSONS)
def test_a_lesson_asks_enough(name):
    assert len(lesson(name).exercises) >= 4
    assert len(lesson(name).predictions) >= 2


@pytest.mark.parametrize("e", EXERCISES, ids=lambda e: e.name)
def test_the_stub_is_not_attempted_and_leaves_no_trace(e: Exercise, own_progress):
    stub = run_source(e.stub_source())[e.reference.__name__]
    assert e.check(stub).outcome == "not attempted"
    assert not (own_progress / "progress.json").exists()
    assert "..." in e.stub_source() and e.reference.__doc__ in e.stub_source()


@pytest.mark.parametrize("e", EXERCISES, ids=lambda e: e.name)
def test_the_solution_as_shown_passes_on_random_instances(e: Exercise):
    solution = run_source(e.solution().text)[e.reference.__name__]
    for seed in (0, OTHER_SEED):
        verdict = e.check(solution, seed)
        assert verdict.outcome == "correct", verdict
        assert len(verdict.right) == len(e.telling) + 20
    assert my_progress.entry("exercises", e.name)["solved"]


@pytest.mark.parametrize("e", EXERCISES, ids=lambda e: e.name)
def test_instances_differ_and_come_back_with_their_seed(e: Exercise):
    described = [repr(instance) for instance in e.instances(7)]
    assert described == [repr(instance) for instance in e.instances(7)]
    assert len(set(described)) > 10


@pytest.mark.parametrize(
    ("e", "wrong"),
    [(e, wrong) for e in EXERCISES for wrong in e.wrong],
    ids=lambda value: value.name if isinstance(value, Exercise) else "",
)
def test_a_plausible_wrong_answer_gets_its_own_reason(e: Exercise, wrong: Wrong):
    for seed in (0, OTHER_SEED):
        verdict = e.check(wrong.answer, seed)
        assert verdict.outcome == "incorrect"
        assert verdict.reason == wrong.reason


@pytest.mark.parametrize("e", EXERCISES, ids=lambda e: e.name)
def test_reasons_and_hints_are_each_their_own(e: Exercise):
    assert len({wrong.reason for wrong in e.wrong}) == len(e.wrong) >= 3
    seen = [e.hint().text for _ in e.hints]
    assert len(set(seen)) == len(e.hints)
    assert e.hint().text == seen[0]


@pytest.mark.parametrize("e", EXERCISES, ids=lambda e: e.name)
def test_another_wrong_answer_is_told_where_it_differs(e: Exercise):
    def unlikely(**instance):
        return np.asarray(e.reference(**instance), dtype=float) + 12345.678

    verdict = e.check(unlikely)
    assert verdict.outcome == "incorrect"
    assert "yours is" in verdict.reason and "is right" in verdict.reason
    svg, caption = verdict.picture()
    assert "✗" in svg and "agree" in caption


@exercise(
    "test",
    lambda rng: {"x": rng.standard_normal(4)},
    [Wrong(lambda x: x, "a"), Wrong(lambda x: -x, "b"), Wrong(lambda x: 3 * x, "c")],
    ["double it"],
    "y",
    telling=[],
)
def doubled(x):
    """Twice x."""
    return 2 * x


def in_place(x):
    x *= 2
    return x


def sometimes_nothing(x):
    return 2 * x if x[0] > 0 else None


def raising(x):
    raise ZeroDivisionError("division by zero")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (in_place, "changes its argument x"),
        (sometimes_nothing, "returns nothing"),
        (raising, "raises ZeroDivisionError: division by zero"),
        (lambda x: 2 * x[:3], "shape [3], not [4]"),
        (lambda x: "8", "returns a str, not an array"),
        (lambda y: 2 * y, "unexpected keyword argument"),
        (3, "takes the function itself, not an int"),
        (np.zeros(3), "takes the function itself"),
    ],
)
def test_an_answer_of_another_kind_gets_one_clear_line(answer, said):
    verdict = doubled.check(answer)
    assert verdict.outcome == "incorrect"
    assert said in verdict.reason
    assert "\n" not in verdict.reason
    assert verdict._repr_html_()


def test_a_check_never_changes_what_it_draws():
    before = copy.deepcopy(doubled.instances(0))
    doubled.check(in_place)
    for one, other in zip(before, doubled.instances(0), strict=True):
        np.testing.assert_array_equal(one["x"], other["x"])


def test_what_was_solved_stays_solved():
    doubled.check(lambda x: 2 * x)
    doubled.check(lambda x: x)
    assert my_progress.entry("exercises", "test/doubled") | {"last": ""} == {
        "solved": True,
        "attempts": 2,
        "last": "",
    }


def test_an_exercise_without_enough_wrong_answers_is_refused():
    with pytest.raises(InputError, match="3 wrong answers"):
        exercise("test", None, [], ["hint"], "y", [])(in_place)


@pytest.mark.parametrize("spec", PREDICTIONS, ids=lambda spec: spec.name)
def test_a_prediction_keeps_its_answer_until_yours_is_locked(spec):
    shown = Prediction(spec)
    truth = spec.reveal()
    assert truth.why not in shown.spoken + shown.static_html()
    answer = str(truth.answer)
    if spec.choices:
        assert answer in spec.choices
        wrong = next(key for key in spec.choices if key != answer)
    else:
        wrong = str(float(answer) * 10)
    assert spec.judged(answer)
    assert not spec.judged(wrong)
    assert "it is otherwise" in shown.lock(wrong)
    assert truth.why in shown.spoken
    with pytest.raises(InputError, match="locked already"):
        shown.lock(answer)
    shown.answer = answer  # as a front end might
    assert shown.answer == wrong
    again = Prediction(spec)  # after a restart
    assert again.is_locked and truth.why in again.spoken
    my_progress.forget(spec.name)
    assert not Prediction(spec).is_locked


def test_a_number_that_has_to_be_the_very_one_is():
    exact = [p for p in PREDICTIONS if not p.choices and "the very one" in p.tolerance()]
    assert exact
    for spec in exact:
        truth = float(spec.reveal().answer)
        right = [spec.judged(str(truth + off)) for off in (-1, -1e-9, 0, 1e-9, 1, 2)]
        assert right == [False, False, True, False, False, False]


@pytest.mark.parametrize("spec", PREDICTIONS, ids=lambda spec: spec.name)
def test_an_answer_of_an_earlier_version_is_none(spec):
    my_progress.note_prediction(spec.name, "gone", False)
    shown = Prediction(spec)
    assert not shown.is_locked
    shown.lock(str(spec.reveal().answer))
    assert Prediction(spec).is_locked


@pytest.mark.parametrize("spec", PREDICTIONS, ids=lambda spec: spec.name)
def test_no_answer_is_no_prediction(spec):
    shown = Prediction(spec)
    for answer in ("", "maybe"):
        with pytest.raises(InputError):
            shown.lock(answer)
    assert not shown.is_locked


def test_an_unknown_question_names_those_there_are():
    with pytest.raises(AttributeError, match="did you mean step_at"):
        _ = lesson("01_formats").step_att
    with pytest.raises(InputError, match="01_formats"):
        lesson("99_nothing")
