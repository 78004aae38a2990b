"""Which axis the outliers of an operator lie on, over many windows.

An outlier lies on the token axis where it is tenfold anything in all other tokens, and on the
channel axis where other tokens reach a tenth of it in the same channel and not elsewhere.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from mpcore.flow.execution import Arithmetic
from mpcore.flow.session import Batch, Session, in_threads
from mpcore.formats import get_format
from mpcore.records import ActivationProfile, PolicyRule
from mpcore.workloads.language_model import Step

LEAD = 10
"""How many times larger an outlier is than what it is compared with."""


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

    @property
    def axis(self) -> str:
        """ "token", "channel" or "none"."""
        if self.largest >= LEAD * self.elsewhere:
            return "token"
        return "none" if self.largest >= LEAD * self.same_channel else "channel"


def main_axis(found: list[Outlier]) -> str:
    """The axis of most windows: "token", "channel" or "none"; a tie is "none"."""
    (first, count), *rest = Counter(outlier.axis for outlier in found).most_common()
    return "none" if rest and rest[0][1] == count else first


def median_outlier(found: list[Outlier]) -> tuple[int, Outlier]:
    """(number, outlier) of the window whose outlier is of median size: it stands for all."""
    order = sorted(range(len(found)), key=lambda i: found[i].largest)
    number = order[len(found) // 2]
    return number, found[number]


class _Recorder(Arithmetic):
    """Arithmetic that looks at every operator's input on its way, window by window."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.seen: dict[str, list[Outlier]] = {}

    def __call__(self, operator: str, x: np.ndarray, step: Step) -> np.ndarray:
        self.seen[operator] = [_look(operator, np.abs(x[a:b])) for a, b in pairwise(step.windows)]
        return super().__call__(operator, x, step)


class _Captor(Arithmetic):
    """Arithmetic that keeps one operator's input."""

    def __init__(self, store, plan, operator: str):
        super().__init__(store, plan)
        self.operator, self.kept = operator, np.empty(0)

    def __call__(self, operator: str, x: np.ndarray, step: Step) -> np.ndarray:
        if operator == self.operator:
            self.kept = x
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


PASSAGES = 4
"""Passages a slice that are looked at."""


def record_outliers(session: Session) -> dict[str, list[Outlier]]:
    """Operator -> its largest activation in the fp32 run of some windows (of two tokens or more).

    Operators in the order of execution, each with its windows in their order.
    """

    def look(batch: Batch) -> dict[str, list[Outlier]]:
        recorder = _Recorder(session.store, session.oracle.plan)
        session.forward(batch, recorder)
        return recorder.seen

    seen = in_threads(look, session.batches(_looked_at(session)))
    return {
        name: [outlier for found in seen for outlier in found[name]]
        for name in session.operators
        if all(name in found for found in seen)
    }


def activation_profile(
    session: Session, outlier: Outlier, number: int, rule: PolicyRule
) -> ActivationProfile:
    """What enters an operator in the fp32 run, token by token, in one of the windows looked at.

    `number` counts those windows from 0; `rule` is the failing policy's for this operator.
    """
    index = _looked_at(session)[number]
    (batch,) = session.batches([index])
    captor = _Captor(session.store, session.oracle.plan, outlier.operator)
    session.forward(batch, captor)
    size = np.abs(captor.kept)
    window = session.request.windows[index]
    zero_below = None
    if rule.activation_granularity == "per_tensor":
        fmt = get_format(rule.activation_format)
        zero_below = float(size.max() / fmt.max * fmt.smallest / 2)
    return ActivationProfile(
        operator=outlier.operator,
        slice=window.slice,
        passage=window.passage,
        largest=[_short(value) for value in size.max(axis=1)],
        median=[_short(value) for value in np.median(size, axis=1)],
        format=rule.activation_format,
        zero_below=zero_below,
        share_below=float(np.mean(size <= zero_below)) if zero_below else None,
    )


def _looked_at(session: Session) -> list[int]:
    """Indices of the windows whose outliers are recorded."""
    windows = session.request.windows
    return [i for i in session.first_passages(PASSAGES) if windows[i].scored > 1]


def _short(value: float) -> float:
    """Four digits: enough for a picture."""
    return float(f"{value:.4g}")
