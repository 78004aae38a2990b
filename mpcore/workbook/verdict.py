"""What a check found, in words and as a picture: your results beside the target."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from numbers import Real
from typing import Any, Literal

import numpy as np

from mpcore.workbook.drawing import BLUE, FG, LINE, MUTED, ORANGE, SMALL, WIDTH, Drawing
from mpcore.workbook.explorer import boxed, figure_html
from mpcore.workbook.format_picture import shown
from mpcore.workbook.verdict_html import text_html

_HEAD = {"not attempted": "◯ Not attempted:", "incorrect": "✗ Not yet:", "correct": "✓ Correct:"}
_COLOUR = {"not attempted": MUTED, "incorrect": ORANGE, "correct": BLUE}
_MOST = 64  # values that a picture can hold
TOP, HEIGHT, LEFT = 30.0, 120.0, 84.0  # of the panels; left of them the values' axis
PANEL = (WIDTH - LEFT - 24) / 2  # width of one
LEFTS = (LEFT, LEFT + PANEL + 16)
_ENDS = {"text_anchor": "end"}


@dataclass(frozen=True, repr=False)
class Verdict:
    """The outcome of a check."""

    name: str
    outcome: Literal["not attempted", "incorrect", "correct"]
    reason: str  # one sentence
    yours: list[Any] = field(default_factory=list)  # per instance
    targets: list[Any] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)
    unit: str = ""
    tolerance: float = 0.0  # relative
    along: list[float] = field(default_factory=list)  # what the instances are drawn in order of
    along_name: str = ""

    def __repr__(self) -> str:
        return f"{_HEAD[self.outcome]} {self.reason}"

    def _repr_html_(self) -> str:
        words = text_html(self.reason, _COLOUR[self.outcome], _HEAD[self.outcome])
        drawn = self.picture()
        return boxed(words) + (figure_html(*drawn) if drawn else "")

    def picture(self) -> tuple[str, str] | None:
        """(SVG, caption): yours left, the target right; None where there is nothing to compare."""
        found = self._columns()
        if found is None:
            return None
        yours, targets, what = found
        same = close(yours, targets, self.tolerance)
        drawing = Drawing(170)
        ticks, place, how = _axis(np.concatenate([yours, targets]))
        for value in ticks:
            drawing.text(LEFT - 6, _y(place(value)) + 4, shown(value, 3), SMALL, MUTED, **_ENDS)
        for left, title, values in zip(LEFTS, ("yours", "target"), (yours, targets), strict=True):
            _panel(drawing, left, title, values, same, ticks, place)
        label = f"yours beside the target: {int(same.sum())} of {same.size} {what} agree"
        is_ordered = self.along and what == "instances"
        across = f"from left to right: {self.along_name}; " if is_ordered else ""
        upwards = f"upwards: {self.unit}{how}"
        return drawing.svg(label), f"{label}; {across}{upwards}. ✗ marks what differs."

    def _columns(self) -> tuple[np.ndarray, np.ndarray, str] | None:
        """Numbers to draw: one for each instance, or the places of the first that differs."""
        yours, targets = (
            [as_numbers(value) for value in side] for side in (self.yours, self.targets)
        )
        if not yours or any(value is None for value in [*yours, *targets]):
            return None
        if any(y.shape != t.shape for y, t in zip(yours, targets, strict=True)):
            return None
        if all(y.ndim == 0 for y in yours):
            order = np.argsort(self.along) if self.along else np.arange(len(yours))
            return np.array(yours)[order], np.array(targets)[order], "instances"
        at = self.right.index(False) if False in self.right else 0
        all_yours, all_targets = yours[at].reshape(-1), targets[at].reshape(-1)
        differ = np.flatnonzero(~close(all_yours, all_targets, self.tolerance))
        start = int(differ[0]) // _MOST * _MOST if differ.size else 0
        part = slice(start, start + _MOST)
        what = f"places of instance {at}"
        if all_yours.size > _MOST:
            what = f"places from {start} on of instance {at}"
        return all_yours[part], all_targets[part], what


def close(yours: np.ndarray, targets: np.ndarray, tolerance: float) -> np.ndarray:
    """Where two float64 arrays agree, within a relative tolerance; NaN equals NaN."""
    with np.errstate(all="ignore"):
        return np.isclose(yours, targets, rtol=tolerance, atol=0, equal_nan=True)


def as_numbers(value: Any) -> np.ndarray | None:
    """A result as a float64 array of any shape; None where it is no numbers.

    Numbers are those of Python (Fraction and Decimal too), NumPy and ml_dtypes.
    """
    try:
        with np.errstate(all="ignore"):  # a long double may be beyond a float
            array = np.asarray(value)
            if array.dtype.kind in "biuf" or _is_of_ml_dtypes(array.dtype):
                return array.astype(np.float64)
            if array.dtype.kind == "O":
                flat = [_as_float(item) for item in array.reshape(-1)]
                return np.array(flat, np.float64).reshape(array.shape)
    except Exception:  # rows of different lengths; and a learner's object may raise anything
        pass
    return None


def _is_of_ml_dtypes(dtype: np.dtype) -> bool:
    return dtype.type.__module__ == "ml_dtypes"


def _as_float(item: object) -> float:
    """A number as a float, infinity where it is beyond one; raises TypeError for no number."""
    if not isinstance(item, Real | Decimal):
        number = as_numbers(item) if isinstance(item, np.ndarray | np.generic) else None
        if number is None or number.ndim:
            raise TypeError
        return float(number)
    try:
        return float(item)
    except OverflowError:
        return float("inf") if item > 0 else float("-inf")


def _axis(values: np.ndarray):
    """(values to name, value -> 0..1, how in words): by signed logarithm for many decades."""
    finite = values[np.isfinite(values)]
    sizes = np.abs(finite[finite != 0])
    least, most = (sizes.min(), sizes.max()) if sizes.size else (1.0, 1.0)
    is_logarithmic = least < most / 1000

    def along(value):
        """Where a number lies, in units that neither the span nor a quotient can overflow."""
        if not is_logarithmic:
            return value / most
        with np.errstate(divide="ignore"):  # the logarithm of 0
            return np.sign(value) * np.logaddexp(0, np.log(np.abs(value)) - np.log(least))

    ends = _ends(finite)
    low, high = (along(ends[0]), along(ends[-1])) if ends else (0.0, 1.0)
    span = (high - low) or 1.0

    def place(value: float) -> float:
        if not np.isfinite(value):
            return 1.08 if value > 0 else -0.08
        return float((along(value) - low) / span)

    ticks = list(ends)
    if ends and ends[0] < 0 < ends[-1] and 0.15 < place(0.0) < 0.85:
        ticks.insert(1, 0.0)
    return ticks, place, " (logarithmic)" if is_logarithmic else ""


def _ends(finite: np.ndarray) -> tuple[float, ...]:
    """The least and the greatest value; one where they are the same, none where there are none."""
    return tuple(dict.fromkeys((float(finite.min()), float(finite.max())))) if finite.size else ()


def _y(share: float) -> float:
    return TOP + HEIGHT - 12 - share * (HEIGHT - 24)


def _panel(d: Drawing, left: float, title: str, values, same, ticks, place) -> None:
    d.text(left, 18, title, font_weight=600)
    for value in ticks:
        d.line(left, _y(place(value)), left + PANEL, _y(place(value)), LINE)
    d.rect(left, TOP, PANEL, HEIGHT, stroke=LINE, stroke_width=1)
    step = PANEL / (len(values) + 1)
    for i, value in enumerate(values):
        x, y = left + step * (i + 1), _y(place(value))
        is_wrong = title == "yours" and not same[i]
        if np.isnan(value):
            words, colour = ("✗ NaN", ORANGE) if is_wrong else ("NaN", MUTED)
            foot = TOP + HEIGHT - 4
            upright = f"rotate(-90 {x + 3:.1f} {foot})"  # many of them stand side by side
            d.text(x + 3, foot, words, 9, colour, transform=upright)
        elif same[i]:
            d.add("circle", cx=x, cy=y, r=3.4, fill=BLUE)
        elif is_wrong:
            d.text(x, y + 4.5, "✗", SMALL, ORANGE, text_anchor="middle", font_weight=700)
        else:
            d.add("circle", cx=x, cy=y, r=3.4, fill="none", stroke=FG, stroke_width=1.4)
