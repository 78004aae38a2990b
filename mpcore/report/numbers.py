"""How numbers read in a report: sensible digits, a real minus, thin spaces. Nowhere else."""

from __future__ import annotations

import math

from mpcore.records import Estimate

MINUS = "−"
THIN = "\u202f"  # narrow no-break space: a number never parts from its unit
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def count(value: float) -> str:
    """A whole number with thin spaces between thousands: 12 480."""
    return f"{round(value):,}".replace(",", THIN).replace("-", MINUS)


def loss(value: float) -> str:
    """A loss in nats to three decimals, the resolution that the token counts here support."""
    text = f"{value:.3f}"
    return (text[1:] if float(text) == 0 and text[0] == "-" else text).replace("-", MINUS)


def loss_estimate(estimate: Estimate) -> str:
    """A loss with its interval: 0.553 (0.510 to 0.597)."""
    return f"{loss(estimate.value)} ({loss(estimate.low)} to {loss(estimate.high)})"


def share(value: float) -> str:
    """A share as per cent: 62 %, 0.31 %, < 0.01 %, 0 %."""
    percent = 100 * value
    if percent == 0:
        return f"0{THIN}%"
    if abs(percent) < 0.01:
        return f"<{THIN}0.01{THIN}%"
    digits = 0 if abs(percent) >= 10 else 1 if abs(percent) >= 1 else 2
    if 0 < 100 - percent < 1:  # 99.7 % must not read as 100 %
        digits = 2
    return f"{percent:.{digits}f}{THIN}%".replace("-", MINUS)


def number(value: float, digits: int = 3) -> str:
    """A figure to `digits` significant digits; powers of ten outside 10⁻³ … 10⁶."""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return str(value).replace("-", MINUS)
    exponent = math.floor(math.log10(abs(value)))
    if exponent < -3 or exponent >= 6:
        mantissa, _, power = f"{value:.{max(digits - 2, 0)}e}".partition("e")
        text = f"{mantissa}{THIN}×{THIN}10{superscript(int(power))}"
        return text.replace("-", MINUS)
    if exponent >= digits - 1:
        return count(round(value, digits - 1 - exponent))
    return f"{value:.{digits - 1 - exponent}f}".replace("-", MINUS)


def estimate(figure: Estimate, digits: int = 3) -> str:
    """Any figure with its interval."""
    return (
        f"{number(figure.value, digits)} "
        f"({number(figure.low, digits)} to {number(figure.high, digits)})"
    )


def half_width(figure: Estimate) -> float:
    """Half of the interval's width."""
    return (figure.high - figure.low) / 2


def plain(value: object) -> str:
    """Anything that a record's free-form field may hold, as one line of text."""
    if value is None:
        return "not recorded"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return count(value) if abs(value) >= 10_000 else str(value).replace("-", MINUS)
    if isinstance(value, float):
        return number(value)
    if isinstance(value, Estimate):
        return estimate(value)
    if isinstance(value, dict):
        if set(value) == {"value", "low", "high"}:
            return estimate(Estimate(**value))
        return "; ".join(f"{words(key)}: {plain(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(plain(item) for item in value) or "none"
    return str(value)


def words(name: object) -> str:
    """A field's name as words, in the symbols that the report uses."""
    return str(name).replace("_", " ").replace("delta nll", "ΔNLL")


def ranges(values: list[int]) -> str:
    """Whole numbers as ranges: 0–4, 7, 9–29."""
    runs: list[list[int]] = []
    for value in sorted(set(values)):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ", ".join(str(low) if low == high else f"{low}–{high}" for low, high in runs)


def superscript(value: int) -> str:
    """A whole number in superscript digits."""
    return str(value).translate(_SUPERSCRIPT)


def title(name: object) -> str:
    """A field's name as a heading: words, the first letter a capital."""
    text = words(name)
    return text[:1].upper() + text[1:]
