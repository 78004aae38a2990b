"""Exercises: a function to write, checked on instances against the reference.

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
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any

import numpy as np

from mpcore.errors import InputError, quoted
from mpcore.workbook import my_progress
from mpcore.workbook.verdict import Verdict, as_numbers, close
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
        telling: instances that come first whatever the seed: those that tell a nearly right
            answer from a right one, which random ones may miss.
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
    telling: tuple[dict[str, Any], ...] = ()
    _hints_given: list[int] = field(default_factory=lambda: [0], repr=False, compare=False)

    def instances(self, seed: int = 0, count: int = INSTANCES) -> list[dict[str, Any]]:
        """The telling instances, then random ones; the same seed gives the same ones.

        Raises InputError for a seed that is no whole number from 0 on.
        """
        if not isinstance(seed, Integral) or seed < 0:
            raise InputError(f"seed = {quoted(seed)} must be a whole number from 0 on")
        drawn = [self.draw(np.random.default_rng([int(seed), i])) for i in range(count)]
        return [*copy.deepcopy(self.telling), *drawn]

    def check(self, answer: Callable, seed: int = 0) -> Verdict:
        """Compare a function with the reference on instances; the progress is kept.

        Args:
            answer: the function that was asked for.
            seed: another seed draws other random instances; a whole number from 0 on.

        Raises InputError for another seed.
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
                    yours.append(_kept(answer(**given)))
            except (Exception, SystemExit) as error:  # what a learner's function raises is told
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
            return self._compared("correct", text, yours, targets, right, along)
        reason = self._known_reason(yours, instances) or _difference(
            yours, targets, right, instances, self.tolerance
        )
        return self._compared("incorrect", reason, yours, targets, right, along)

    def _compared(self, outcome, reason, yours, targets, right, along) -> Verdict:
        shown = (yours, targets, right, self.unit, self.tolerance, *along)
        return Verdict(self.name, outcome, reason, *shown)

    def _incorrect(self, reason: str) -> Verdict:
        return Verdict(self.name, "incorrect", reason)

    def _known_reason(self, yours: list, instances: list[dict]) -> str | None:
        """Why these very results are wrong, where a plausible wrong answer gives them."""
        for wrong in self.wrong:
            theirs = (wrong.answer(**copy.deepcopy(instance)) for instance in instances)
            with np.errstate(all="ignore"):
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
    return a.shape == b.shape and bool(close(a, b, tolerance).all())


def _kept(result: Any) -> Any:
    """A result as it is now: a function may fill the same array again at its next call."""
    try:
        return copy.deepcopy(result)
    except Exception:  # a generator, say; what cannot be copied is no numbers either
        return result


def _said(error: BaseException) -> str:
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
    if isinstance(value, np.generic):
        value = value.item()
    return f"{value:.8g}" if isinstance(value, float) else quoted(value)


def _same(a: Any, b: Any) -> bool:
    if isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[name], b[name]) for name in b)
    if isinstance(b, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=b.dtype.kind == "f")
    return bool(a == b) or (a != a and b != b)


def _difference(
    yours: list, targets: list, right: list[bool], instances: list[dict], tolerance: float
) -> str:
    """The first instance that differs, in words."""
    first = right.index(False)
    y, t = yours[first], targets[first]
    where = described(instances[first])
    a, b = as_numbers(y), as_numbers(t)
    if a is None:
        return f"for {where} your function returns {_kind(y)}, not {_asked(b)}"
    if a.ndim == 0 < b.ndim:
        return f"for {where} your result is one number, not {_asked(b)}"
    if a.shape != b.shape:
        one = "one number" if b.ndim == 0 else list(b.shape)
        return f"for {where} your result has the shape {list(a.shape)}, not {one}"
    at = int(np.flatnonzero(~close(a, b, tolerance))[0])
    if a.ndim:
        where += f", at place {at},"
    agreed = f"{sum(right)} of {len(right)} instances agree"
    y, t = (_plain(side, number, at) for side, number in ((y, a), (t, b)))
    mine, theirs = _short(y), _short(t)
    if mine == theirs:  # they differ further down
        mine, theirs = repr(float(y)), repr(float(t))
    return f"for {where} yours is {mine} where {theirs} is right; {agreed}"


def _plain(side: Any, numbers: np.ndarray, at: int) -> bool | float:
    """One number of a result; True and False stay what they are."""
    number = float(numbers.reshape(-1)[at])
    return bool(number) if np.asarray(side).dtype.kind == "b" else number


def _asked(target: np.ndarray) -> str:
    return f"an array of {target.size} numbers" if target.ndim else "a number"


def _kind(value: Any) -> str:
    """What something is that is no number, or no function."""
    if isinstance(value, np.ndarray):
        return f"an array of dtype {value.dtype} and shape {list(value.shape)}"
    name = type(value).__name__
    kind = f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
    if isinstance(value, list | tuple):
        return f"{kind} of length {len(value)} that is no array of numbers"
    return kind


def exercise(
    lesson: str,
    draw: Callable,
    wrong: list[Wrong],
    hints: list[str],
    unit: str,
    telling: Iterable[dict[str, Any]],
    tolerance: float = 0.0,
) -> Callable[[Callable], Exercise]:
    """Decorator: the reference solution below it becomes the `Exercise` of its name.

    Raises InputError for a reference without a docstring (the question), or too few wrong answers.
    """

    def made(reference: Callable) -> Exercise:
        name = f"{lesson}/{reference.__name__}"
        if not inspect.getdoc(reference) or len(wrong) < 3 or not hints:
            raise InputError(f"exercise {name}: a docstring, hints and 3 wrong answers are needed")
        given = (tuple(wrong), tuple(hints), unit, tolerance, tuple(telling))
        return Exercise(name, reference, draw, *given)

    return made
