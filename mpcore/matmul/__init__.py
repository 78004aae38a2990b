"""How products are rounded and summed: tiles, reduction orders, accumulators.

Floor 3: imports only formats and scaling.
"""

import sys
from types import ModuleType

from mpcore.matmul.accumulators import Accumulator, MatrixUnit
from mpcore.matmul.error_bounds import ErrorBounds, error_bounds
from mpcore.matmul.mma import mma
from mpcore.matmul.multiply import MatmulCounts, MatmulResult, matmul
from mpcore.matmul.options import REDUCTIONS, MatmulError, Tile
from mpcore.matmul.reference import matmul_reference

__all__ = [
    "REDUCTIONS",
    "Accumulator",
    "ErrorBounds",
    "MatmulCounts",
    "MatmulError",
    "MatmulResult",
    "MatrixUnit",
    "Tile",
    "error_bounds",
    "matmul",
    "matmul_reference",
    "mma",
]


class _CallableRoom(ModuleType):
    """`mpcore.matmul` names this room and the function that people call: `mp.matmul(a, b)`."""

    def __call__(self, *args, **options):
        return matmul(*args, **options)


sys.modules[__name__].__class__ = _CallableRoom
