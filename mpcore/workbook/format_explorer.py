"""The format explorer: one typed number in two formats, bit by bit and on the number line."""

from __future__ import annotations

import re
from fractions import Fraction
from math import log2

import traitlets

from mpcore.errors import InputError, cut
from mpcore.formats import ROUNDING_MODES, explain, get_element_format, list_formats
from mpcore.formats.explain import explain_code
from mpcore.report import numbers
from mpcore.workbook.explorer import (
    Explorer,
    Whole,
    buttons,
    select,
    slider,
    text_box,
    validate,
)
from mpcore.workbook.format_picture import format_picture, words_for
from mpcore.workloads.captured import captured, captured_names

SIDES = ("left", "right")
MODES = [mode for mode in ROUNDING_MODES if mode != "stochastic"]
WIDEST = 32  # bits that can still be shown as boxes
NO_TENSOR = "none"
SCALES = 16

_BEYOND = 1100  # 2 to this is no float, and one divided by it is 0
_POWER = re.compile(r"([+-]?)(\d+)\s*(?:\*\*|\^)\s*([+-]?\d+)")


def parse_number(text: str) -> float:
    """A typed number: 0.1, -3e-5, 1/3, 2**-14, inf, nan; raises InputError for anything else."""
    cleaned = text.strip().replace("−", "-").replace("_", "")
    if len(cleaned) <= 60:
        try:
            if power := _POWER.fullmatch(cleaned):
                sign = -1.0 if power[1] == "-" else 1.0  # of the whole, as Python has it
                return sign * _power(int(power[2]), int(power[3]))
            if "/" in cleaned:
                return float(Fraction(cleaned))
            return float(cleaned)
        except (ValueError, OverflowError, ZeroDivisionError):
            pass
    raise InputError(
        f'"{cut(text)}" is not a number; type one like 0.1, -3e-5, 1/3, 2**-14, inf or nan'
    )


def _power(base: int, exponent: int) -> float:
    """base ** exponent as the nearest float: exact, then rounded once."""
    if base > 1 and abs(exponent) * log2(base) > _BEYOND:  # too long to compute
        if exponent > 0:
            raise OverflowError
        return 0.0
    return float(Fraction(base) ** exponent)


class FormatExplorer(Explorer):
    """A number in two formats side by side: bits, value, error in units in the last place.

    Attributes:
        value: the number as typed.
        left, right: formats, by any name that `get_format` takes, of at most 32 bits.
        rounding: a rounding mode that needs no random numbers.
        tensor: a captured tensor whose magnitudes are held against both ranges, or "none".
        scale_exponent: the tensor is multiplied by 2**this first, -16 to 16.
    """

    inputs = ("value", "left", "right", "rounding", "tensor", "scale_exponent")

    value = traitlets.Unicode("0.1").tag(sync=True)
    left = traitlets.Unicode("fp8_e4m3").tag(sync=True)
    right = traitlets.Unicode("bf16").tag(sync=True)
    rounding = traitlets.Enum(MODES, "nearest_even").tag(sync=True)
    tensor = traitlets.Unicode("down_proj_11_input").tag(sync=True)

    scale_exponent = Whole(0, min=-SCALES, max=SCALES).tag(sync=True)

    title = traitlets.Unicode("Format explorer: one number in two formats").tag(sync=True)

    @validate("left", "right")
    def _a_format(self, proposal):
        found = get_element_format(proposal["value"])
        if found.bits > WIDEST:
            raise InputError(f"{found} has {found.bits} bits; at most {WIDEST} can be shown")
        return found.name

    @validate("value")
    def _a_number_or_text(self, proposal):
        return proposal["value"].strip()

    @validate("tensor")
    def _a_tensor(self, proposal):
        if proposal["value"] != NO_TENSOR:
            captured(proposal["value"])
        return proposal["value"]

    def controls_of(self):
        names = [name for name in list_formats() if get_element_format(name).bits <= WIDEST]
        return [
            text_box("value", "number (Enter takes it over)"),
            select("left", "format A", _with(names, self.left)),
            select("right", "format B", _with(names, self.right)),
            select("rounding", "rounding", MODES),
            select("tensor", "held against", {NO_TENSOR: "no tensor"} | _tensors()),
            slider("scale_exponent", "scale of the tensor", -SCALES, SCALES),
            buttons(
                "step along the number line",
                {
                    "below:left": ("A ◀", "A ◀: next lower value of format A"),
                    "above:left": ("A ▶", "A ▶: next higher value of format A"),
                    "below:right": ("B ◀", "B ◀: next lower value of format B"),
                    "above:right": ("B ▶", "B ▶: next higher value of format B"),
                },
            ),
        ]

    def press(self, key):
        """`bit:SIDE:INDEX` flips a bit (0 = the lowest), `above:SIDE`, `below:SIDE` go one on."""
        action, _, rest = key.partition(":")
        side, _, index = rest.partition(":")
        if side not in SIDES or action not in ("bit", "above", "below"):
            return super().press(key)
        found = self.explanations()[SIDES.index(side)]
        if action == "bit":
            if not re.fullmatch(r"[0-9]{1,2}", index) or int(index) >= found.format.bits:
                return super().press(key)
            self.value = written(explain_code(found.code ^ (1 << int(index)), found.format).value)
        else:
            neighbour = found.above if action == "above" else found.below
            if neighbour is not None:
                self.value = written(neighbour)

    def explanations(self):
        """The number in format A and in format B: two `Explanation`s."""
        x = parse_number(self.value)
        found = []
        for name in (self.left, self.right):
            f = get_element_format(name)
            found.append(explain(x, f, self.rounding, f.natural_overflow))
        return tuple(found)

    def draw(self):
        found = self.explanations()
        chosen = None if self.tensor == NO_TENSOR else captured(self.tensor)
        self.spoken = words_for(found)
        exponent = self.scale_exponent
        self.picture = format_picture(found, self.rounding, chosen, exponent, self.spoken)
        self.notes = {"scale_exponent": f"2{numbers.superscript(exponent)}"}
        self.off = [] if chosen else ["scale_exponent"]
        self.off += [
            f"{end}:{side}"
            for side, one in zip(SIDES, found, strict=True)
            for end in ("above", "below")
            if getattr(one, end) is None
        ]


def written(value: float) -> str:
    """A value so that reading it gives the same number, short where it can be."""
    short = f"{value:.8g}"
    return short if float(short) == value else repr(value)


def _with(names: list[str], chosen: str) -> list[str]:
    return names if chosen in names else [*names, chosen]


def _tensors() -> dict[str, str]:
    return {name: captured(name).what.partition(" (")[0] for name in captured_names()}
