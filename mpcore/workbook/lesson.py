"""A lesson's exercises and predictions, by name: `ask = lesson("01_formats")`."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module

from mpcore.errors import InputError, quoted
from mpcore.workbook.exercise import Exercise
from mpcore.workbook.prediction import Prediction, PredictionSpec

LESSONS = (
    "01_formats",
    "02_rounding_and_accumulation",
    "03_matrix_units",
    "05_loss_scaling",
)
"""Notebooks; the module `workbook.questions.lesson_NAME` asks the questions of each."""


class Lesson:
    """The questions of one lesson: an attribute for each exercise and each prediction."""

    def __init__(self, name: str) -> None:
        if name not in LESSONS:
            raise InputError(f"lesson {quoted(name)} is unknown; there are {', '.join(LESSONS)}")
        module = import_module(f"mpcore.workbook.questions.lesson_{name}")
        self.name = name
        found = vars(module).items()
        self.exercises = {key: value for key, value in found if isinstance(value, Exercise)}
        self.predictions = {key: value for key, value in found if isinstance(value, PredictionSpec)}

    def __getattr__(self, key: str) -> Exercise | Prediction:
        if key.startswith("__"):
            raise AttributeError(key)
        if key in self.exercises:
            return self.exercises[key]
        if key in self.predictions:
            return Prediction(self.predictions[key])
        known = [*self.exercises, *self.predictions]
        close = get_close_matches(key, known, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise AttributeError(f"{self.name} asks nothing called {key}{hint}; {', '.join(known)}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.exercises, *self.predictions]

    def __repr__(self) -> str:
        return f"{self.name}: {len(self.exercises)} exercises, {len(self.predictions)} predictions"


def lesson(name: str) -> Lesson:
    """The questions of a lesson; raises InputError naming the lessons there are."""
    return Lesson(name)
