"""Which axis the outliers of an operator lie on, over many windows.

An outlier lies on the token axis where it is tenfold anything in all other tokens, and on the
channel axis where other tokens reach a tenth of it in the same channel and not elsewhere.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from threading import Lock

import numpy as np

from mpcore.flow.execution import Arithmetic
from mpcore.flow.session import Session, in_threads
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


class _Recorder(Arithmetic):
    """Arithmetic that looks at every operator's input on its way."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.seen: dict[str, list[Outlier]] = {}
        self._lock_seen = Lock()

    def __call__(self, operator: str, x: np.ndarray, step: Step) -> np.ndarray:
        found = [_look(operator, np.abs(x[a:b])) for a, b in pairwise(step.windows)]
        with self._lock_seen:
            self.seen.setdefault(operator, []).extend(found)
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

    In the order of execution; the windows of an operator come in no particular order.
    """
    windows = session.request.windows
    chosen = [i for i in session.first_passages(PASSAGES) if windows[i].scored > 1]
    recorder = _Recorder(session.store, session.oracle.plan)
    in_threads(lambda batch: session.forward(batch, recorder), session.batches(chosen))
    return {name: recorder.seen[name] for name in session.operators if name in recorder.seen}
