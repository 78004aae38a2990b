"""Predictions: say what will happen, lock it, look for it yourself, and only then be told."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite

import traitlets

from mpcore.errors import InputError
from mpcore.workbook import my_progress
from mpcore.workbook.explorer import Explorer, buttons, radio, text_box
from mpcore.workbook.format_explorer import parse_number
from mpcore.workbook.verdict_html import text_html


@dataclass(frozen=True)
class Reveal:
    """What really happens, computed when it is asked for."""

    answer: str | float  # the key of the right choice, or the number
    why: str  # one or two sentences


@dataclass(frozen=True)
class PredictionSpec:
    """A question with a choice or a number for an answer.

    Attributes:
        name: `LESSON/name`, under which the answer is locked.
        question: one sentence.
        reveal: computes what really happens.
        choices: key -> text; empty where a number is asked for.
        within: a number counts as right within this factor of the true one (2 = half to double).
    """

    name: str
    question: str
    reveal: Callable[[], Reveal]
    choices: dict[str, str]
    within: float = 1.0

    def tolerance(self) -> str:
        """How near a number has to be, in words."""
        if self.within < 1.05:
            return "it has to be the very one"
        return f"right from {1 / self.within:.2g} to {self.within:.2g} times the true one"

    def judged(self, answer: str) -> bool:
        """Whether an answer is right."""
        truth = self.reveal().answer
        if self.choices:
            return answer == truth
        return _near(parse_number(answer), float(truth), self.within)


def _near(given: float, truth: float, within: float) -> bool:
    if not isfinite(given) or not isfinite(truth) or truth == 0 or given == 0:
        return given == truth
    return 1 / within <= given / truth <= within


class Prediction(Explorer):
    """A question that keeps its answer to itself until yours is locked and you ask for it.

    Two steps, so that there is time to look for the answer in between: `lock(answer)` and
    `reveal()` do from code what the buttons do. Both stay done, over restarts too
    (`mpcore.workbook.my_progress.forget(name)` takes them back).
    """

    inputs = ("answer",)

    answer = traitlets.Unicode().tag(sync=True)

    def __init__(self, spec: PredictionSpec) -> None:
        self.spec = spec
        self._locked, self._revealed = self._found()
        super().__init__(answer=self._locked or "")
        self.title = f"Predict: {spec.question}"

    def _found(self) -> tuple[str | None, bool]:
        """What is recorded, where it is an answer to this question (an earlier version may have
        had other ones), and whether the truth has been asked for."""
        try:
            entry = my_progress.entry("predictions", self.spec.name) or {}
        except my_progress.ProgressError:
            return None, False
        found = entry.get("answer")
        is_answer = isinstance(found, str) and self._is_answer(found)
        return (found, entry.get("revealed") is True) if is_answer else (None, False)

    def _is_answer(self, text: str) -> bool:
        if self.spec.choices:
            return text in self.spec.choices
        try:
            parse_number(text)
        except InputError:
            return False
        return True

    @property
    def is_locked(self) -> bool:
        """Whether the answer is locked, and so what really happens can be asked for."""
        return self._locked is not None

    @property
    def is_revealed(self) -> bool:
        """Whether what really happens is shown."""
        return self.is_locked and self._revealed

    def controls_of(self):
        if self.spec.choices:
            ask = radio("answer", self.spec.question, self.spec.choices)
        else:
            ask = text_box("answer", f"your number ({self.spec.tolerance()})")
        steps = {
            "lock": ("Lock it in", "lock this prediction in"),
            "reveal": ("Reveal", "reveal what really happens, and why"),
        }
        return [ask, buttons("final answer", steps)]

    def press(self, key):
        """`lock` locks the answer that is chosen, `reveal` then shows what really happens."""
        if key == "lock":
            self.lock(self.answer)
        elif key == "reveal":
            self.reveal()
        else:
            super().press(key)

    def lock(self, answer: str | float) -> str:
        """Lock an answer; raises InputError where it is none, or another one is locked."""
        answer = str(answer).strip()
        if self.is_locked:
            raise InputError(f"{self.spec.name}: locked already, your answer was {self._locked}")
        if self.spec.choices:
            if answer not in self.spec.choices:
                known = ", ".join(self.spec.choices)
                raise InputError(f"{self.spec.name}: choose one of {known}, then lock it in")
        else:
            parse_number(answer)
        right = self.spec.judged(answer)
        try:
            if self._found()[0] is None:
                my_progress.forget(self.spec.name)  # what is no answer to this question
            self._locked = my_progress.note_prediction(self.spec.name, answer, right)["answer"]
        except my_progress.ProgressError:
            self._locked = answer  # locked as long as this kernel runs
        self.answer = self._locked
        self.redraw()
        return self.spoken

    def reveal(self) -> str:
        """Show what really happens, and why; raises InputError where no answer is locked."""
        if not self.is_locked:
            raise InputError(f"{self.spec.name}: lock your prediction in first")
        self._revealed = True
        with suppress(my_progress.ProgressError):  # else shown as long as this kernel runs
            my_progress.note_reveal(self.spec.name)
        self.redraw()
        return self.spoken

    def draw(self):
        if not self.is_locked:
            self.spoken = "Your prediction is not locked yet."
            self.off = ["reveal"]
            return
        if self.answer != self._locked:
            self.answer = self._locked  # a locked answer does not move
        said = self._in_words(self._locked)
        if not self._revealed:
            self.spoken = (
                f"You said: {said}. It is locked: now look for the answer in what follows, "
                "then come back and press Reveal."
            )
            self.off = ["answer", "lock"]
            return
        truth = self.spec.reveal()
        verdict = "✓ right" if self.spec.judged(self._locked) else "✗ it is otherwise"
        is_so = self._in_words(truth.answer)
        self.spoken = f"You said: {said}. {verdict}: {is_so}. {truth.why}"
        self.off = ["answer", "lock", "reveal"]

    def _in_words(self, answer: str | float) -> str:
        if self.spec.choices:
            return self.spec.choices[str(answer)]
        return f"{parse_number(str(answer)):.6g}"

    def static_html(self):
        answers = "; ".join(self.spec.choices.values())
        return text_html(f"{answers}. {self.spoken}" if answers else self.spoken, head=self.title)


def prediction(
    lesson: str, question: str, choices: dict[str, str] | None = None, within: float = 1.0
) -> Callable[[Callable[[], Reveal]], PredictionSpec]:
    """Decorator: the function below it, which computes the `Reveal`, becomes the prediction."""

    def made(reveal: Callable[[], Reveal]) -> PredictionSpec:
        name = f"{lesson}/{reveal.__name__}"
        return PredictionSpec(name, question, reveal, choices or {}, within)

    return made
