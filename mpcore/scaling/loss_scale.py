"""Loss scaling: one factor that lifts all gradients of a step into the range of a format.

The loss is multiplied by the scale before backward, and the gradients are divided by it before the
optimizer sees them. A dynamic scale is found by trial: it grows until a step overflows.
"""

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import NamedTuple

import numpy as np

from mpcore.scaling.granularity import ScalingError


class ScaleState(NamedTuple):
    """What a loss scale remembers from one step to the next."""

    scale: float  # a float32 value
    good_steps: int  # steps without overflow since the scale last changed


@dataclass(frozen=True)
class LossScale:
    """Settings of a loss scale; the defaults are those of `torch.amp.GradScaler`.

    Raises:
        ScalingError: a setting that is not in its range.
    """

    init: float = 65536.0  # the first scale; rounded to float32, in which PyTorch holds it
    growth: float = 2.0  # factor after `interval` good steps, above 1
    backoff: float = 0.5  # factor after an overflow, between 0 and 1
    interval: int = 2000  # good steps in a row before the scale grows
    dynamic: bool = True  # False: the scale never moves; overflowed steps are skipped all the same

    def __post_init__(self):
        for name, low, high in (
            ("init", 0.0, 2.0**128),
            ("growth", 1.0, 2.0**128),
            ("backoff", 0.0, 1.0),
        ):
            value = getattr(self, name)
            number = isinstance(value, Real) and not isinstance(value, bool)
            if not (number and low < value < high):
                raise ScalingError(
                    f"loss scale: {name} = {value!r} must be a number above {low:g}, below {high:g}"
                )
        if not 0 < _float32(self.init) < math.inf:
            raise ScalingError(
                f"loss scale: init = {self.init!r} is 0 or infinite in float32, which keeps the "
                "scale; 65536 is usual"
            )
        whole = isinstance(self.interval, Integral) and not isinstance(self.interval, bool)
        if not (whole and self.interval >= 1):
            raise ScalingError(
                f"loss scale: interval = {self.interval!r} must be a whole number from 1 on"
            )
        if not isinstance(self.dynamic, bool):
            raise ScalingError(f"loss scale: dynamic = {self.dynamic!r} must be True or False")

    def start(self):
        """The `ScaleState` before the first step."""
        return ScaleState(_float32(self.init), 0)

    def update(self, state, overflowed):
        """The `ScaleState` after a step.

        The rule is PyTorch's (`amp_update_scale_cuda_kernel` in
        aten/src/ATen/native/cuda/AmpKernels.cu, called by `torch.amp.GradScaler.update`): the
        factors are applied in double precision, the scale is stored in float32, and a scale that
        would grow to infinity stays as it is, though the count starts again. Nothing stops a scale
        that keeps falling from reaching zero, there as here.

        Args:
            state: the `ScaleState` in which the step was made.
            overflowed: whether a gradient of the step was infinite or NaN; such a step is skipped.
        """
        if not self.dynamic:
            return state
        if overflowed:
            return ScaleState(_float32(state.scale * self.backoff), 0)
        good_steps = state.good_steps + 1
        if good_steps < self.interval:
            return ScaleState(state.scale, good_steps)
        grown = _float32(state.scale * self.growth)
        return ScaleState(grown if math.isfinite(grown) else state.scale, 0)


def _float32(value):
    """`value` rounded to float32, as a Python float; infinite beyond the range."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float32(value))
