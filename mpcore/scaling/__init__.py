"""Which range is chosen: who shares a scale, what the scale is, and values divided by it.

Floor 2: imports only formats.
"""

from mpcore.scaling.granularity import (
    GRANULARITIES,
    Partition,
    ScalingError,
    check_granularity,
    elements_and_granularity,
    partition,
)
from mpcore.scaling.loss_scale import LossScale, ScaleState
from mpcore.scaling.quantize import Quantized, quantize
from mpcore.scaling.scaled import ScaledValues, scale_and_round

__all__ = [
    "GRANULARITIES",
    "LossScale",
    "Partition",
    "Quantized",
    "ScaleState",
    "ScaledValues",
    "ScalingError",
    "check_granularity",
    "elements_and_granularity",
    "partition",
    "quantize",
    "scale_and_round",
]
