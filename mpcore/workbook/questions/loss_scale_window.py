"""An exercise of lesson 05 that takes more room: between which loss scales a gradient fits."""

from functools import partial

import numpy as np

import mpcore as mp
from mpcore.workbook.exercise import Wrong, exercise


def _to_fit(rng):
    fmt = str(rng.choice(["fp8_e5m2", "fp16"]))
    powers = rng.uniform(-22, rng.uniform(-8, 0), 200)
    if rng.random() < 0.5:  # edges: ties that are flushed, and a largest value that just fits
        powers = np.round(powers)
        powers[0] = np.log2(mp.get_format(fmt).max) - rng.integers(16, 20)
    gradient = (2.0**powers * rng.choice([-1, 1], 200)).astype(np.float32)
    gradient[rng.choice(np.arange(1, 200), 100, replace=False)] = 0
    return {
        "gradient": gradient,
        "fmt": fmt,
        "most_flushed": float(rng.choice([0, 0.05, 0.1, 0.2])),
    }


def _at_the_edges(fmt, most_flushed, factor):
    """A largest value that just fits, a share that is just allowed, ties where `factor` is 1."""
    significand = 2 * np.frexp(mp.get_format(fmt).max)[0]  # from 1 on, below 2
    sizes = [significand, *(factor * 2.0**-power for power in range(9)), 3e-4]
    return {
        "gradient": np.float32([*sizes[:5], *(-size for size in sizes[5:]), *([0] * 6)]),
        "fmt": fmt,
        "most_flushed": most_flushed,
    }


def _window(gradient, fmt, most_flushed, least=None, of_all=False, largest=np.max):
    """The window where a value below `least` of the format counts as flushed, as a share of the
    zeros as well (`of_all`), and where `largest` of the scaled values has to fit."""
    f, sizes = mp.get_format(fmt), abs(gradient[gradient != 0])
    usable = []
    for n in range(-60, 61):
        scaled = sizes * np.float32(2.0**n)
        lost = scaled < getattr(f, least) if least else mp.round_to(scaled, f) == 0
        share = np.count_nonzero(lost) / (gradient.size if of_all else sizes.size)
        if share <= most_flushed and largest(scaled) <= f.max:
            usable.append(n)
    return usable[0], usable[-1]


def _one_too_high(gradient, fmt, most_flushed):
    low, high = window.reference(gradient, fmt, most_flushed)
    return low, high + 1


def _turned_round(gradient, fmt, most_flushed):
    low, high = window.reference(gradient, fmt, most_flushed)
    return -high, -low


@exercise(
    "05_loss_scaling",
    _to_fit,
    [
        Wrong(
            partial(_window, of_all=True),
            "the share is one of the values that are not zero: the zeros have nothing to lose",
        ),
        Wrong(
            partial(_window, least="smallest_normal"),
            "below the smallest normal value there are still the subnormals: your lower end is too "
            "high",
        ),
        Wrong(
            partial(_window, least="smallest"),
            "a value above half of the smallest one rounds up to it: flushed is only what is at "
            "that half or below",
        ),
        Wrong(
            partial(_window, largest=np.median),
            "one value beyond the largest spoils the step: look at the largest of them, not at a "
            "typical one",
        ),
        Wrong(
            partial(_window, largest=lambda scaled: 0),
            "nothing limits the upper end: mp.round_to saturates unless told otherwise, so compare "
            "the scaled values themselves with the largest one",
        ),
        Wrong(
            _one_too_high,
            "the upper end is one too high: rounded up, the logarithm gives the first scale that "
            "overflows",
        ),
        Wrong(
            _turned_round,
            "turned round: the loss is multiplied by the scale, so small gradients need a positive "
            "exponent",
        ),
    ],
    [
        "Leave the zeros out, then try the whole numbers from -60 to 60 one after the other.",
        "A scale is usable if both hold: few enough become zero, and the largest still fits.",
        "mp.get_format(fmt).max is the largest value of the format.",
    ],
    "exponents",
    telling=[
        _at_the_edges(fmt, share / 11, factor)
        for fmt in ("fp8_e5m2", "fp16", "fp8_e4m3")
        for share in (1, 3)
        for factor in (1, 1.5)
    ],
)
def window(gradient, fmt, most_flushed):
    """(low, high): least and greatest whole n for which 2**n is a usable loss scale.

    It is usable if, once multiplied by it, of the values of gradient (float32 array) that are not
    zero at most the share most_flushed is flushed to zero in the format fmt, and none is larger
    than the largest value of fmt.
    """
    sizes = abs(gradient[gradient != 0])
    usable = []
    for n in range(-60, 61):
        scaled = sizes * np.float32(2.0**n)
        flushed = np.mean(mp.round_to(scaled, fmt) == 0)
        if flushed <= most_flushed and scaled.max() <= mp.get_format(fmt).max:
            usable.append(n)
    return usable[0], usable[-1]
