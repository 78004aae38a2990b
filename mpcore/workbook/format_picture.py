"""The picture of the format explorer: bits, number line with rounding bins, range of a tensor."""

from __future__ import annotations

from decimal import Decimal
from itertools import pairwise
from math import isfinite, isinf, isnan

import numpy as np

from mpcore.formats import Explanation, Format
from mpcore.formats.explain import explain, next_value, values_between
from mpcore.report import numbers
from mpcore.workbook.drawing import BG, BLUE, FG, LINE, MUTED, ORANGE, SMALL, WIDTH, Drawing
from mpcore.workbook.tensor_range import binades, losses
from mpcore.workloads.captured import CapturedTensor

COLOURS, LETTERS = (BLUE, ORANGE), ("A", "B")
SIDES = ("left", "right")
LEFT = 10.0  # margin, on both sides
BITS_HEIGHT, RAIL_HEIGHT, RANGE_HEIGHT = 108.0, 74.0, 176.0
REACH = 3.2  # units in the last place of the coarser format, to both sides of the number
TOLD_APART = 48  # values of a format that a number line can show

LEAST_BAR = 2.0  # a single large value decides a scale: even one is seen
LOWEST, HIGHEST = -48, 20  # binades of the range panel: one axis for every choice


def format_picture(
    found: tuple[Explanation, Explanation],
    rounding: str,
    tensor: CapturedTensor | None,
    exponent: int,
    label: str,
) -> str:
    """The whole picture as SVG; the tensor times 2**exponent; `label` is the text alternative."""
    height = 2 * BITS_HEIGHT + 2 * RAIL_HEIGHT + 46 + (RANGE_HEIGHT if tensor else 0)
    drawing = Drawing(height)
    for i in (0, 1):
        _bits(drawing, i * BITS_HEIGHT, i, found[i])
    top = 2 * BITS_HEIGHT
    _number_line(drawing, top, found, rounding)
    if tensor:
        _ranges(drawing, top + 2 * RAIL_HEIGHT + 46, found, tensor, exponent)
    return drawing.svg(label, has_buttons=True)


def words_for(found: tuple[Explanation, Explanation]) -> str:
    """What the picture says, in one sentence."""
    x = shown(found[0].x)
    parts = [f"in {e.format} it is {shown(e.value)}{_error_words(e, ' (', ')')}" for e in found]
    return f"{x}: {'; '.join(parts)}."


def _error_words(e: Explanation, before: str, after: str) -> str:
    if isnan(e.error):
        return ""
    if e.error == 0:
        return f"{before}exact{after}"
    share = f", {numbers.share(abs(e.error / e.x))} of it" if e.x else ""
    return f"{before}{shown(abs(e.error_in_ulp), 3)} ulp off{share}{after}"


def shown(value: float, digits: int = 8) -> str:
    """A value with at most so many significant digits, and a real minus."""
    if isnan(value):
        return "NaN"
    if isinf(value):
        return "∞" if value > 0 else f"{numbers.MINUS}∞"
    mantissa, e, exponent = f"{value:.{digits}g}".partition("e")
    power = f"{numbers.THIN}×{numbers.THIN}10{numbers.superscript(int(exponent))}" if e else ""
    return (mantissa + power).replace("-", numbers.MINUS)


def equal_to(value: float, most: int = 20) -> str:
    """`= 0.1015625` with every digit, or `≈` and ten of them where it has more than `most`."""
    if isfinite(value):
        exact = f"{Decimal(value):f}"
        if len(exact.lstrip("-0.")) <= most and len(exact) <= most + 6:
            return f"= {exact}".replace("-", numbers.MINUS)
        return f"≈ {shown(value, 10)}"
    return f"= {shown(value)}"


# --- bits ---------------------------------------------------------------------------------------


def _bits(d: Drawing, top: float, i: int, e: Explanation) -> None:
    f, colour = e.format, COLOURS[i]
    note = f.note.partition(":")[0] or "integer"
    d.text(LEFT, top + 16, f"{LETTERS[i]}  {f.name}", fill=colour, font_weight=600)
    d.text(WIDTH - LEFT, top + 16, f"{note}, {f.bits} bits", SMALL, MUTED, text_anchor="end")
    width = min(27.0, (WIDTH - 2 * LEFT) / f.bits)
    for position in range(f.bits):
        index = f.bits - 1 - position  # the highest bit stands first
        bit, field = e.code >> index & 1, _field(f, position)
        x = LEFT + position * width
        label = f"{LETTERS[i]}, bit {index}, {field}: {bit}"
        with d.button(f"bit:{SIDES[i]}:{index}", label):
            d.rect(
                x + 1,
                top + 25,
                width - 2,
                27,
                fill=colour if field == "exponent" else BG,
                fill_opacity=0.22 if field == "exponent" else 1,
                stroke=colour,
                stroke_width=1.2 if field == "significand" else 2,
                rx=3,
            )
            d.text(
                x + width / 2,
                top + 43.5,
                str(bit),
                min(15, width * 0.75),
                FG,
                text_anchor="middle",
                font_weight=600,
            )
    d.text(LEFT, top + 70, _fields_in_words(e), SMALL, MUTED)
    d.text(LEFT, top + 90, equal_to(e.value), font_weight=600)
    d.text(WIDTH - LEFT, top + 90, _error_words(e, "", "") or _kind_words(e), text_anchor="end")


def _field(f: Format, position: int) -> str:
    if f.kind == "int":
        return "sign" if f.is_signed and position == 0 else "magnitude"
    if f.is_signed and position == 0:
        return "sign"
    return "exponent" if position < f.is_signed + f.exponent_bits else "significand"


def _fields_in_words(e: Explanation) -> str:
    f = e.format
    if f.kind == "int":
        return (
            "two's complement: the highest bit counts negative" if f.is_signed else "plain binary"
        )
    if e.kind in ("nan", "infinity"):
        return f"a code set apart for {_kind_words(e)}"
    sign = f"sign {numbers.MINUS}" if e.sign else "sign +"
    least = " (the least, no leading 1)" if e.exponent_field == 0 else ""
    exponent = f"exponent field {e.exponent_field}{least}: 2{numbers.superscript(e.exponent)}"
    leading = 1 if e.exponent_field else 0
    digits = f"{e.trailing:0{f.mantissa_bits}b}"
    return f"{sign} · {exponent} · significand {leading}.{digits} {equal_to(e.significand)}"


def _kind_words(e: Explanation) -> str:
    return {"nan": "NaN", "infinity": "infinity"}.get(e.kind, f"{e.kind} value")


# --- number line --------------------------------------------------------------------------------


def _number_line(d: Drawing, top: float, found, rounding: str) -> None:
    x = found[0].x
    d.text(LEFT, top + 18, "Number line", font_weight=600)
    if isnan(x):
        d.text(LEFT, top + 44, "NaN has no place on it.", fill=MUTED)
        return
    how = rounding.replace("_", " ")
    d.text(
        WIDTH - LEFT,
        top + 18,
        f"each box holds all that rounds to its value ({how})",
        SMALL,
        MUTED,
        text_anchor="end",
    )
    low, high = _view(x, found)
    place = _scale(low, high)
    words = []
    for i in (0, 1):
        words += _rail(d, top + 28 + i * RAIL_HEIGHT, i, found[i], (low, high), rounding)
    bottom = top + 28 + 2 * RAIL_HEIGHT
    if low <= x <= high:
        at = place(x)
        d.line(at, top + 28, at, bottom - 16, FG, stroke_width=1.6, stroke_dasharray="5 3")
    for left, y, text, style in words:
        d.text_on_top(left, y, text, SMALL, **style)
    if low <= x <= high:
        anchor = "start" if at < 90 else "end" if at > WIDTH - 90 else "middle"
        d.text(at, bottom, f"x = {shown(x)}", SMALL, text_anchor=anchor, font_weight=600)
    else:
        beyond = "right ▶" if x > high else "left ◀"
        d.text(
            WIDTH / 2,
            bottom,
            f"x = {shown(x)} lies further {beyond}",
            SMALL,
            text_anchor="middle",
            font_weight=600,
        )


def _view(x: float, found) -> tuple[float, float]:
    """The stretch of the number line that is shown: some values of the coarser format, of those
    that reach so far."""
    furthest = max(e.format.max for e in found)
    lowest = min(e.format.min for e in found)
    centre = min(max(x, lowest), furthest)
    steps = [e.ulp for e in found if e.format.min <= centre <= e.format.max and isfinite(e.ulp)]
    reach = REACH * max(steps)
    return centre - reach, centre + reach


def _scale(low: float, high: float):
    return lambda v: LEFT + (v - low) / (high - low) * (WIDTH - 2 * LEFT)


def _rail(d: Drawing, top: float, i: int, e: Explanation, view, rounding: str) -> list[tuple]:
    """The boxes of one format. Returns what is to be written on them: (x, y, text, style)."""
    colour, f = COLOURS[i], e.format
    (low, high), place = view, _scale(*view)
    base = top + 40
    d.text(LEFT, top + 12, LETTERS[i], SMALL, colour, font_weight=600)
    values = values_between(low, high, f, TOLD_APART)
    if values is None:
        d.rect(LEFT, base - 22, WIDTH - 2 * LEFT, 22, fill=colour, fill_opacity=0.25)
        text = f"a value every {shown(e.ulp, 3)}: too close to tell apart here"
        return [(LEFT + 16, base - 6, text, {})]
    if not values:
        end = f.max if low > f.max else f.min
        becomes = explain(low, f, rounding, f.natural_overflow).value
        d.rect(LEFT, base - 22, WIDTH - 2 * LEFT, 22, fill=colour, fill_opacity=0.12)
        text = f"beyond {shown(end)}, the end of {f.name}: everything here becomes {shown(becomes)}"
        return [(LEFT + 16, base - 6, text, {})]
    # what rounds to a value just outside can still lie inside
    values = [
        v
        for v in (next_value(values[0], f, -1), *values, next_value(values[-1], f, 1))
        if v is not None
    ]
    bounds = [low, *(boundary(a, b, f, rounding) for a, b in pairwise(values)), high]
    free_from, words = LEFT + 14, []
    for k, value in enumerate(values):
        start, stop = (min(max(bound, low), high) for bound in (bounds[k], bounds[k + 1]))
        is_ours = value == e.value
        if stop > start:
            opacity = 0.5 if is_ours else 0.2 if k % 2 else 0.08
            d.rect(
                place(start),
                base - 22,
                place(stop) - place(start),
                22,
                fill=colour,
                fill_opacity=opacity,
            )
        if low <= value <= high:
            at = place(value)
            d.line(at, base - 26, at, base + 5, colour, stroke_width=3 if is_ours else 1.6)
            text = shown(value, 7)
            half = 3.6 * len(text)
            anchor_at = min(max(at, LEFT + half), WIDTH - LEFT - half)
            if is_ours or anchor_at - half > free_from:
                style = {"fill": FG, "font_weight": 600} if is_ours else {"fill": MUTED}
                words.append((anchor_at, base + 18, text, style | {"text_anchor": "middle"}))
                free_from = anchor_at + half + 8
    d.line(LEFT, base, WIDTH - LEFT, base, colour, stroke_width=1.2)
    return words


def boundary(a: float, b: float, f: Format, rounding: str) -> float:
    """Where, between two neighbouring values a < b, what rounds to a ends and to b begins."""
    if rounding in ("nearest_even", "nearest_away"):
        return a / 2 + b / 2
    if rounding == "to_odd":
        return b if explain(a, f).code & 1 else a
    goes_up = rounding == "toward_positive" or (rounding == "toward_zero" and a < 0)
    return a if goes_up else b


# --- range of a real tensor ---------------------------------------------------------------------


def _ranges(d: Drawing, top: float, found, tensor: CapturedTensor, exponent: int) -> None:
    place = _scale(LOWEST, HIGHEST)
    times = f", times 2{numbers.superscript(exponent)}" if exponent else ""
    d.text(LEFT, top + 18, f"Where a real tensor lies{times}", font_weight=600)
    d.text(LEFT, top + 35, tensor.what, SMALL, MUTED)
    base = top + 96
    shares: dict[int, float] = {}
    for at, share in binades(tensor.name).items():
        shown_at = min(max(at + exponent, LOWEST), HIGHEST - 1)
        shares[shown_at] = shares.get(shown_at, 0) + share
    tallest = max(shares.values())
    for at, share in shares.items():
        height = max(54 * share / tallest, LEAST_BAR)
        width = place(at + 1) - place(at) - 1.2
        d.rect(place(at) + 0.6, base - height, width, height, fill=MUTED, fill_opacity=0.6)
    d.line(LEFT, base, WIDTH - LEFT, base, LINE, stroke_width=1)
    for i in (0, 1):
        _range_bar(d, base + 5 + 22 * i, i, found[i].format, place)
    if isfinite(found[0].x) and found[0].x:
        at = place(min(max(np.log2(abs(found[0].x)), LOWEST), HIGHEST))
        d.line(at, top + 42, at, base + 50, FG, stroke_width=1.6, stroke_dasharray="5 3")
    for i in (0, 1):
        lost = map(numbers.share, losses(tensor.name, found[i].format, exponent))
        text = "{}: {} flushed to zero, {} beyond".format(LETTERS[i], *lost)
        d.text_on_top(LEFT + 2, base + 17.5 + 22 * i, text, SMALL)
    for power in range(LOWEST, HIGHEST + 1, 8):
        anchor = {LOWEST: "start"}.get(power, "middle")
        d.text(
            place(power),
            base + 66,
            f"2{numbers.superscript(power)}",
            SMALL,
            MUTED,
            text_anchor=anchor,
        )


def _range_bar(d: Drawing, top: float, i: int, f: Format, place) -> None:
    ends = [min(max(np.log2(v), LOWEST), HIGHEST) for v in (f.smallest, f.smallest_normal, f.max)]
    first, normal, last = map(place, ends)
    d.rect(first, top, normal - first, 16, fill=COLOURS[i], fill_opacity=0.18)
    d.rect(normal, top, last - normal, 16, fill=COLOURS[i], fill_opacity=0.4)
