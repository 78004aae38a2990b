"""Which axis the outliers of an operator lie on, over many windows.

The typical token is the median over a window's tokens. A largest value of at least ten times the
typical token's own largest lies on the token axis: one scale for all tokens is that much too coarse
for most of them. Where the typical token has a tenth of it in the same channel, and that is tenfold
the typical value, it lies on the channel axis. Anything else lies on no single axis.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from mpcore.diagnosis.isolate import in_words
from mpcore.flow.execution import Arithmetic
from mpcore.flow.session import Batch, Session, in_threads
from mpcore.formats import get_format
from mpcore.records import ActivationProfile, PolicyRule
from mpcore.workloads.language_model import Step

LEAD = 10
"""How many times larger an outlier is than what it is compared with."""


@dataclass(frozen=True)
class Outlier:
    """The largest |activation| entering an operator in one window, and what it stands above."""

    operator: str
    largest: float
    token: int
    channel: int
    typical_token: float  # median over tokens of a token's largest
    elsewhere: float  # largest in all other tokens
    same_channel: float  # largest in the same channel's other tokens
    typical_in_channel: float  # median over tokens in the same channel
    typical: float  # median of all values

    @property
    def lead(self) -> float:
        """How many times coarser one scale is than the typical token's own would be."""
        return self.largest / self.typical_token if self.typical_token else 1.0

    @property
    def axis(self) -> str:
        """ "token", "channel" or "none"."""
        if self.lead >= LEAD:
            return "token"
        lasting = LEAD * self.typical_in_channel >= max(self.largest, LEAD**2 * self.typical)
        return "channel" if lasting and self.largest > 0 else "none"


def main_axis(found: list[Outlier]) -> str:
    """The axis of most windows: "token", "channel" or "none"; a tie is "none"."""
    (first, count), *rest = Counter(outlier.axis for outlier in found).most_common()
    return "none" if rest and rest[0][1] == count else first


def median_outlier(found: list[Outlier]) -> tuple[int, Outlier]:
    """(number, outlier) of the window whose outlier is of median size: it stands for all."""
    order = sorted(range(len(found)), key=lambda i: found[i].largest)
    number = order[len(found) // 2]
    return number, found[number]


def axis_in_words(members: list[str], outliers: dict[str, list[Outlier]]) -> str:
    """Where the outliers of the set lie, axis by axis, the token axis first."""
    found: dict[str, list[str]] = {"token": [], "channel": [], "none": []}
    for name in members:
        found[main_axis(outliers[name])].append(name)
    tokens = [o.token for name in found["token"] for o in outliers[name] if o.axis == "token"]
    first = tokens.count(0)
    often = "" if first == len(tokens) else f" in {first} of {len(tokens)} windows"
    words = {
        "token": f"token axis (the token at position 0{often}, not a channel)"
        if 2 * first > len(tokens)
        else "token axis (single tokens, not channels)",
        "channel": "channel axis",
        "none": "no single axis",
    }
    return "; ".join(
        f"{words[axis]} in {in_words(names).replace(';', ' and')}"
        for axis, names in found.items()
        if names
    )


def axis_evidence(spike: Outlier, found: list[Outlier]) -> dict[str, Any]:
    """One window's outlier, and in how many windows it lies on that axis at that token."""
    fields = (
        *("operator", "axis", "largest", "token", "channel"),
        *("typical_token", "elsewhere", "same_channel", "typical_in_channel", "typical"),
    )
    same = sum(outlier.axis == spike.axis and outlier.token == spike.token for outlier in found)
    return {
        **{field: getattr(spike, field) for field in fields},
        "windows": len(found),
        "windows_alike": same,
    }


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
    return Outlier(
        operator=operator,
        largest=float(size[token, channel]),
        token=token,
        channel=channel,
        typical_token=float(np.median(size.max(axis=1))),
        elsewhere=float(others.max()),
        same_channel=float(others[:, channel].max()),
        typical_in_channel=float(np.median(size[:, channel])),
        typical=float(np.median(size)),
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
