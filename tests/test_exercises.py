"""Every exercise: its stub, reference, wrong answers; every prediction: locked, then revealed."""

from __future__ import annotations

import copy
import re
from html import unescape

import numpy as np
import pytest

import mpcore as mp
from mpcore.errors import InputError
from mpcore.workbook import my_progress
from mpcore.workbook.bounds_picture import PROMOTED, squares
from mpcore.workbook.exercise import Exercise, Wrong, exercise
from mpcore.workbook.lesson import LESSONS, lesson
from mpcore.workbook.prediction import Prediction
from mpcore.workbook.tile_trace import trace_of
from mpcore.workbook.unit_probe import last_surviving_bit
from mpcore.workloads.captured import captured
from mpcore.workloads.digits_training import captured_gradient

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
    with pytest.raises(InputError, match="Lock your prediction in first"):
        shown.reveal()
    assert "press Reveal" in shown.lock(wrong)
    for locked in (shown, Prediction(spec)):  # now there is time to look, in another kernel too
        assert locked.is_locked and not locked.is_revealed
        assert truth.why not in locked.spoken + locked.static_html()
        assert "right" not in locked.spoken and "otherwise" not in locked.spoken
    assert "it is otherwise" in shown.reveal()
    assert truth.why in shown.spoken and truth.why in unescape(shown.static_html())
    with pytest.raises(InputError, match="Locked already"):
        shown.lock(answer)
    shown.answer = answer  # as a front end might
    assert shown.answer == wrong
    again = Prediction(spec)  # after a restart
    assert again.is_revealed and truth.why in again.spoken
    my_progress.forget(spec.name)
    assert not Prediction(spec).is_locked


@pytest.mark.parametrize("spec", PREDICTIONS[:2], ids=lambda spec: spec.name)
def test_a_prediction_offers_its_steps_one_after_the_other(spec):
    shown = Prediction(spec)
    shown.answer = answer = str(spec.reveal().answer)
    offered = [["answer", "lock"], ["reveal"], []]
    for step in ("lock", "reveal", None):
        open_steps = offered.pop(0)
        assert [s for s in ("answer", "lock", "reveal") if s not in shown.off] == open_steps
        assert repr(shown) == repr(Prediction(spec))
        if step:
            shown._pressed({"press": step})
    assert "✓ right" in shown.spoken
    assert my_progress.entry("predictions", spec.name)["answer"] == answer


def test_the_figures_that_a_question_gives_are_the_captured_ones():
    x = abs(captured("down_proj_11_input").values)
    trace = trace_of(0, 1, "fp16", "bf16", "sequential", 64)
    products = abs(np.diff(trace.exact, prepend=0))
    figures = {
        "01_formats/the_largest_activation": [f"{x.max():.0f}"],
        "01_formats/flushed_activations": [
            f"{np.median(x):.2g}",
            f"{np.percentile(x, 10):.2g}",
            f"{mp.get_format('fp8_e4m3').smallest:.3g}",
        ],
        "01_formats/int8_survivors": [f"{x.max():.0f}", f"{x[1].max():.2g}"],
        "02_rounding_and_accumulation/swamped_share": [
            f"{np.median(products):.2g}",
            f"{np.percentile(products, 25):.1g}",
            f"-{products.max():.0f}",
            f"{np.median(trace.values[: products.argmax()]):.0f} ",
        ],
        "03_matrix_units/last_bit_of_hopper_fp8": [f"2**-{last_surviving_bit('Volta.fp16')} "],
        "03_matrix_units/missing_from_the_sum": [f"{squares()[0].size} captured weights"],
        "03_matrix_units/growth_with_promotion": [
            f"{PROMOTED} squares to all {squares()[0].size}",
            f"{squares()[0].size / PROMOTED:g} times",
        ],
        "05_loss_scaling/flushed_without_scale": [f"{abs(captured_gradient(100)).max():.2g}"],
        "05_loss_scaling/skipped_at_the_start": [f"{abs(captured_gradient(0)).max():.2g}"],
    }
    asked = {spec.name: spec.question.replace(",", " ") for spec in PREDICTIONS}
    for name, stated in figures.items():
        for figure in stated:
            assert figure in asked[name], (name, figure)


def test_where_no_progress_can_be_kept_a_prediction_still_goes_on(own_progress, monkeypatch):
    (own_progress / "file").write_text("a file where the folder should be")
    monkeypatch.setenv("MPCORE_NOTEBOOKS", str(own_progress / "file"))
    shown = Prediction(PREDICTIONS[0])
    shown.lock(str(PREDICTIONS[0].reveal().answer))
    assert "✓ right" in shown.reveal()


def test_how_near_a_number_has_to_be_is_said_and_holds():
    numeric = [p for p in PREDICTIONS if not p.choices]
    exact = [p for p in numeric if p.is_exact]
    assert exact and len(exact) < len(numeric)
    for spec in numeric:
        factor = f"within a factor of {spec.within:g}."
        said = "Your number has to be exact." if spec.is_exact else factor
        assert Prediction(spec).spoken.endswith(said)
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
def test_a_revealed_number_has_three_digits_unless_it_has_to_be_exact(spec):
    shown = Prediction(spec)
    shown.lock(next(iter(spec.choices), "7"))
    told = re.search(r"(?:right|otherwise): (.*?)\. ", shown.reveal())[1]
    truth = spec.reveal().answer
    if spec.choices:
        assert told == spec.choices[truth]
    elif spec.is_exact:
        assert float(told) == truth
    else:
        assert float(told) == float(f"{truth:.3g}") and len(re.sub(r"\D", "", told)) <= 3


@pytest.mark.parametrize("spec", PREDICTIONS, ids=lambda spec: spec.name)
def test_no_answer_is_no_prediction(spec):
    shown = Prediction(spec)
    for answer in ("", " ", "maybe"):
        with pytest.raises(InputError) as error:
            shown.lock(answer)
        assert spec.name not in str(error.value) and "value:" not in str(error.value)
        if not answer.strip():
            first = "Choose an answer first" if spec.choices else "Type a number first"
            assert str(error.value) == first
    assert not shown.is_locked


@pytest.mark.parametrize("code", [doubled.solution()._repr_html_()])
def test_a_solution_scrolls_and_breaks_no_word(code):
    for tag in re.findall(r"<(?:pre|code)[^>]*>", code):
        assert "overflow-x:auto" in tag and "white-space:pre;" in tag and "word-break:normal" in tag


def test_an_unknown_question_names_those_there_are():
    with pytest.raises(AttributeError, match="did you mean step_at"):
        _ = lesson("01_formats").step_att
    with pytest.raises(InputError, match="01_formats"):
        lesson("99_nothing")
