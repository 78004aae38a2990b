"""Which axis an outlier lies on: the largest activation, and the largest along either axis."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mpcore.flow.execution import Arithmetic
from mpcore.flow.session import Session
from mpcore.workloads.language_model import Step


@dataclass(frozen=True)
class Outlier:
    """The largest |activation| entering an operator in one window, and its surroundings."""

    operator: str
    largest: float
    token: int
    channel: int
    same_token: float  # largest in the same token's other channels
    same_channel: float  # largest in the same channel's other tokens
    elsewhere: float  # largest in all other tokens
    first_ratio: float  # largest at position 0 ÷ largest at any other position


class _Recorder(Arithmetic):
    """Arithmetic that looks at every operator's input on its way."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.seen: dict[str, Outlier] = {}

    def __call__(self, operator: str, x: np.ndarray, step: Step) -> np.ndarray:
        self.seen[operator] = _look(operator, np.abs(x))
        return super().__call__(operator, x, step)


def _look(operator: str, size: np.ndarray) -> Outlier:
    token, channel = (int(i) for i in np.unravel_index(size.argmax(), size.shape))
    others = np.delete(size, token, axis=0)
    after_first = size[1:].max()
    return Outlier(
        operator=operator,
        largest=float(size[token, channel]),
        token=token,
        channel=channel,
        same_token=float(np.delete(size[token], channel).max()),
        same_channel=float(others[:, channel].max()),
        elsewhere=float(others.max()),
        first_ratio=float(size[0].max() / after_first) if after_first else 1.0,
    )


def record_outliers(session: Session, window: int = 0) -> dict[str, Outlier]:
    """Every linear operator's largest activation in one window of the fp32 run."""
    recorder = _Recorder(session.store, session.oracle.plan)
    batch = session.batches([window], rows=1)[0]
    session.forward(batch, recorder)
    return recorder.seen
