"""What rounding did to an array: how many values overflowed, vanished, were clamped or changed."""

from dataclasses import dataclass
from operator import add

import numpy as np

from mpcore.formats.registry import get_element_format


@dataclass(frozen=True)
class Counts:
    """Events among `total` roundings. Two counts add up with `+`."""

    total: int = 0  # values that were rounded
    overflow: int = 0  # finite values that became infinite, or NaN where there is no infinity
    underflow: int = 0  # values other than zero that became zero
    saturation: int = 0  # values beyond the largest (infinities too) that became finite
    nan: int = 0  # results that are NaN
    inexact: int = 0  # results that are not NaN and differ from the value

    def __add__(self, other):
        return Counts(*map(add, vars(self).values(), vars(other).values()))

    def incidence(self, event):
        """Share of the roundings with this event, such as "overflow": 0 to 1."""
        return getattr(self, event) / self.total if self.total else 0.0


def count_events(before, after, f):
    """`Counts` of an array before and after rounding to the format `f` (same shapes)."""
    f = get_element_format(f)
    before, after = np.asarray(before), np.asarray(after)
    with np.errstate(over="ignore"):
        low, high = before.dtype.type(f.min), before.dtype.type(f.max)
    # Rounding makes zeros and never unmakes one.
    vanished = int(np.count_nonzero(before)) - int(np.count_nonzero(after))
    changed = int(np.count_nonzero(before != after))
    if not before.size or (before.max() <= high and before.min() >= low):  # the common case
        return Counts(before.size, underflow=vanished, inexact=changed)
    nan_after = np.isnan(after)
    beyond = (before > high) | (before < low)
    finite_after = np.isfinite(after)
    return Counts(
        total=before.size,
        overflow=int(np.count_nonzero(beyond & ~finite_after & np.isfinite(before))),
        underflow=vanished - int(np.count_nonzero(np.isnan(before) & (after == 0))),
        saturation=int(np.count_nonzero(beyond & finite_after)),
        nan=int(np.count_nonzero(nan_after)),
        inexact=int(np.count_nonzero((after != before) & ~nan_after)),
    )
