"""Exercises: a function to write, checked on random instances against the reference.

An exercise is its reference solution. The stub in the notebook is that function's signature and
docstring, `solution()` shows its source, and `check(function)` compares with it. Each plausible
wrong answer is a function too, with the reason why it is wrong: a learner whose results are the
same gets that very reason.
"""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mpcore.errors import InputError
from mpcore.workbook import my_progress
from mpcore.workbook.verdict import Verdict, as_numbers
from mpcore.workbook.verdict_html import code_html, text_html

INSTANCES = 20


@dataclass(frozen=True)
class Wrong:
    """A plausible wrong answer, and why it is wrong."""

    answer: Callable
    reason: str


@dataclass(frozen=True)
class Exercise:
    """A question whose answer is a function.

    Attributes:
        name: `LESSON/function`, under which progress is kept.
        reference: the solution; its docstring is the question.
        draw: rng -> keyword arguments of one random instance.
        wrong: plausible wrong answers.
        hints: from a nudge to nearly the answer.
        unit: what the results are, for the picture's axis.
        tolerance: relative difference that still counts as equal; 0 asks for the same numbers.
    """

    name: str
    reference: Callable
    draw: Callable[[np.random.Generator], dict[str, Any]]
    wrong: tuple[Wrong, ...]
    hints: tuple[str, ...]
    unit: str
    tolerance: float = 0.0
    _hints_given: list[int] = field(default_factory=lambda: [0], repr=False, compare=False)

    def instances(self, seed: int = 0, count: int = INSTANCES) -> list[dict[str, Any]]:
        """Random instances; the same seed gives the same ones."""
        return [self.draw(np.random.default_rng([seed, i])) for i in range(count)]

    def check(self, answer: Callable, seed: int = 0) -> Verdict:
        """Compare a function with the reference on random instances; the progress is kept.

        Args:
            answer: the function that was asked for.
            seed: another seed draws other instances.
        """
        verdict = self._verdict(answer, seed)
        if verdict.outcome == "not attempted":
            return verdict
        try:
            my_progress.note_attempt(self.name, verdict.outcome == "correct")
        except my_progress.ProgressError as error:  # the answer is what counts
            return replace(verdict, reason=f"{verdict.reason} ({error})")
        return verdict

    def hint(self) -> Shown:
        """The next hint; after the last one they start again."""
        number = self._hints_given[0] % len(self.hints)
        self._hints_given[0] += 1
        return Shown(f"Hint {number + 1} of {len(self.hints)}: {self.hints[number]}")

    def solution(self) -> Shown:
        """The reference solution, as source."""
        return Shown(self.solution_source(), is_code=True)

    def solution_source(self) -> str:
        """The reference as it would be written in the notebook."""
        source = textwrap.dedent(inspect.getsource(self.reference))
        node = ast.parse(source).body[0]
        return "\n".join(source.splitlines()[node.lineno - 1 :]) + "\n"

    def stub_source(self) -> str:
        """The reference's signature and docstring, with `...` for the rest."""
        source = self.solution_source()
        function = ast.parse(source).body[0]
        lines = source.splitlines()
        return "\n".join([*lines[: function.body[0].end_lineno], "    ..."]) + "\n"

    def _verdict(self, answer: Callable, seed: int) -> Verdict:
        if not callable(answer):
            return self._incorrect(f"check takes the function itself, not {_kind(answer)}")
        instances = self.instances(seed)
        targets = [self.reference(**copy.deepcopy(instance)) for instance in instances]
        yours = []
        for instance in instances:
            given = copy.deepcopy(instance)
            try:
                with np.errstate(all="ignore"):
                    yours.append(answer(**given))
            except Exception as error:  # whatever a learner's function raises is told to them
                what = _said(error)
                return self._incorrect(f"for {described(instance)} your function raises {what}")
            if not _same(given, instance):
                changed = next(name for name in instance if not _same(given[name], instance[name]))
                return self._incorrect(
                    f"your function changes its argument {changed}; work on a copy of it"
                )
        nothing = [value is None or value is ... for value in yours]
        if all(nothing):
            text = f"replace the … in {self.reference.__name__}, run that cell, then check again"
            return Verdict(self.name, "not attempted", text)
        if any(nothing):
            where = described(instances[nothing.index(True)])
            return self._incorrect(f"for {where} your function returns nothing")
        right = [agree(y, t, self.tolerance) for y, t in zip(yours, targets, strict=True)]
        along = _first_number(instances)
        if all(right):
            text = f"all {len(instances)} instances agree (drawn with seed {seed})"
            return Verdict(self.name, "correct", text, yours, targets, right, self.unit, *along)
        reason = self._known_reason(yours, instances) or _difference(
            yours, targets, right, instances
        )
        return Verdict(self.name, "incorrect", reason, yours, targets, right, self.unit, *along)

    def _incorrect(self, reason: str) -> Verdict:
        return Verdict(self.name, "incorrect", reason)

    def _known_reason(self, yours: list, instances: list[dict]) -> str | None:
        """Why these very results are wrong, where a plausible wrong answer gives them."""
        for wrong in self.wrong:
            theirs = (wrong.answer(**copy.deepcopy(instance)) for instance in instances)
            if all(agree(y, t, self.tolerance) for y, t in zip(yours, theirs, strict=True)):
                return wrong.reason
        return None


@dataclass(frozen=True, repr=False)
class Shown:
    """A hint or a solution, as the value of a cell."""

    text: str
    is_code: bool = False

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return code_html(self.text) if self.is_code else text_html(self.text)


def agree(yours: Any, target: Any, tolerance: float = 0.0) -> bool:
    """Whether two results are the same numbers in the same shape; NaN equals NaN."""
    a, b = as_numbers(yours), as_numbers(target)
    if a is None or b is None:
        return False
    return a.shape == b.shape and bool(np.allclose(a, b, rtol=tolerance, atol=0, equal_nan=True))


def _said(error: Exception) -> str:
    """An exception of a learner's in a line of bounded length."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # its own __str__ may raise
        text = ""
    return f"{type(error).__name__}: {text[:200]}".rstrip(": ")


def _first_number(instances: list[dict[str, Any]]) -> tuple[list[float], str]:
    """The first argument that is one number in every instance, and its name; ([], "") for none."""
    for name in instances[0]:
        given = [instance[name] for instance in instances]
        if all(isinstance(x, int | float) and not isinstance(x, bool) for x in given):
            return [float(x) for x in given], name
    return [], ""


def described(instance: dict[str, Any]) -> str:
    """The arguments of an instance, in a line."""
    return ", ".join(f"{name} = {_short(value)}" for name, value in instance.items())


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        if value.size > 6:
            return f"an array {list(value.shape)} starting {_short(value.reshape(-1)[:3])}"
        return "[" + ", ".join(_short(item) for item in value.reshape(-1).tolist()) + "]"
    if isinstance(value, float | np.floating):
        return f"{float(value):.8g}"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _same(a: Any, b: Any) -> bool:
    if isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[name], b[name]) for name in b)
    if isinstance(b, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=b.dtype.kind == "f")
    return bool(a == b) or (a != a and b != b)


def _difference(yours: list, targets: list, right: list[bool], instances: list[dict]) -> str:
    """The first instance that differs, in words."""
    first = right.index(False)
    y, t = yours[first], targets[first]
    where = described(instances[first])
    a, b = as_numbers(y), as_numbers(t)
    if a is None or b is None:
        return f"for {where} your function returns {_kind(y)}, not {_kind(t)}"
    if a.shape != b.shape:
        return f"for {where} your result has the shape {list(a.shape)}, not {list(b.shape)}"
    if a.ndim:
        at = int(np.flatnonzero(~np.isclose(a, b, rtol=0, atol=0, equal_nan=True))[0])
        y, t = a.reshape(-1)[at], b.reshape(-1)[at]
        where += f", at place {at},"
    agreed = f"{sum(right)} of {len(right)} instances agree"
    mine, theirs = _short(y), _short(t)
    if mine == theirs:  # they differ further down
        mine, theirs = repr(float(y)), repr(float(t))
    return f"for {where} yours is {mine} where {theirs} is right; {agreed}"


def _kind(value: Any) -> str:
    words = {np.ndarray: "an array", int: "an int", np.float64: "a number", float: "a number"}
    return words.get(type(value), f"a {type(value).__name__}")


def exercise(
    lesson: str, draw: Callable, wrong: list[Wrong], hints: list[str], unit: str, **options: Any
) -> Callable[[Callable], Exercise]:
    """Decorator: the reference solution below it becomes the `Exercise` of its name.

    Raises InputError for a reference without a docstring (the question), or too few wrong answers.
    """

    def made(reference: Callable) -> Exercise:
        name = f"{lesson}/{reference.__name__}"
        if not inspect.getdoc(reference) or len(wrong) < 3 or not hints:
            raise InputError(f"exercise {name}: a docstring, hints and 3 wrong answers are needed")
        return Exercise(name, reference, draw, tuple(wrong), tuple(hints), unit, **options)

    return made
