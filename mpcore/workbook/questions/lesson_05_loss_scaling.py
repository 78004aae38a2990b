"""What lesson 05 asks: small gradients, loss scales, and the steps that they cost."""

import numpy as np

import mpcore as mp
from mpcore.scaling import LossScale
from mpcore.workbook.exercise import Wrong, exercise
from mpcore.workbook.prediction import Reveal, prediction
from mpcore.workbook.questions.loss_scale_window import window as window  # an exercise, too
from mpcore.workloads.digits_training import captured_gradient, trained

LESSON = "05_loss_scaling"


def static(exponent):
    """A loss scale that stays at 2**exponent."""
    return LossScale(2.0**exponent, dynamic=False)


# --- predictions ----------------------------------------------------------------------------------


@prediction(
    LESSON,
    "At step 100 of this training run half of the backward signals (those that are not zero) lie "
    "below 1e-4, and the largest is 0.18. What share, in per cent, does fp16 flush to zero?",
    within=2,
)
def flushed_without_scale():
    signals = captured_gradient(100)
    signals = abs(signals[signals != 0])
    share = float(np.mean(mp.round_to(signals, "fp16") == 0))
    why = (
        f"fp16 reaches down to 2**-25 = 3e-8 before it flushes; the signals reach down to "
        f"{signals.min():.0e}, with a long tail."
    )
    return Reveal(100 * share, why)


@prediction(
    LESSON,
    "The same run with weights, activations and backward signals in fp8_e4m3, still without a "
    "loss scale. How does it go?",
    {
        "same": "about as the fp32 run",
        "slower": "it learns, but more slowly",
        "stuck": "its loss never leaves that of guessing",
        "breaks": "it learns for a while, then its loss shoots up",
    },
)
def e4m3_without_scale():
    loss, oracle = trained("fp8_e4m3", static(0)).loss, trained("fp32", static(0)).loss
    guessing, best = np.log(10), int(np.argmin(loss[: int(np.argmax(loss))]))
    breaks = loss.max() > 2 * guessing and loss[best] < 0.8 * guessing
    ends_well = loss[-20:].mean() < 1.2 * oracle[-20:].mean()
    answer = "breaks" if breaks else "same" if ends_well else "slower"
    why = (
        f"By step {best} its loss has come down to {loss[best]:.2f}; at step "
        f"{int(np.argmax(loss))} it is {loss.max():.1f}, far above that of guessing "
        f"({guessing:.2f}), and it ends at {loss[-20:].mean():.2f} where fp32 has "
        f"{oracle[-20:].mean():.2f}. Why it shoots up is counted below, at the logits."
    )
    return Reveal(answer, why)


@prediction(
    LESSON,
    "Dynamic loss scaling in fp16, started at 2**24 and halved at every overflow; the largest "
    "signal of the first step is 0.16, and fp16 ends at 65504. How many steps at the start are "
    "skipped?",
)
def skipped_at_the_start():
    run = trained("fp16", LossScale(2.0**24, interval=20))
    first = int(np.argmin(run.overflowed))
    largest, made = float(abs(captured_gradient(0)).max()), 24 - first
    why = (
        f"Skipped are the scales from 2**24 down to 2**{made + 1}, under which the largest signal "
        f"would be {largest:.2f} * 2**{made + 1} = {largest * 2 ** (made + 1):.0f}; under "
        f"2**{made} it is {largest * 2**made:.0f} and fits."
    )
    return Reveal(first, why)


# --- exercises ------------------------------------------------------------------------------------


def _state(rng):
    return {
        "scale": 2.0 ** int(rng.integers(4, 20)),
        "good_steps": int(rng.choice([0, 1, 2, 3, 4, 4, 4])),  # often one before the scale grows
        "overflowed": bool(rng.random() < 0.4),
    }


def _never_reset(scale, good_steps, overflowed):
    if overflowed:
        return scale / 2, good_steps
    return after_step.reference(scale, good_steps, overflowed)


def _one_late(scale, good_steps, overflowed):
    if overflowed:
        return scale / 2, 0
    return (scale * 2, 0) if good_steps == 5 else (scale, good_steps + 1)


def _keeps_counting(scale, good_steps, overflowed):
    if overflowed:
        return scale / 2, 0
    good_steps += 1
    return (scale * 2 if good_steps == 5 else scale), good_steps


@exercise(
    LESSON,
    _state,
    [
        Wrong(
            _never_reset,
            "after an overflow the count of good steps starts again at 0: they have to follow "
            "each other",
        ),
        Wrong(
            _one_late,
            "one step late: the present step counts too, and with it the fifth doubles the scale",
        ),
        Wrong(_keeps_counting, "once the scale has grown, the count starts again at 0"),
        Wrong(
            lambda scale, good_steps, overflowed: (scale / 2 if overflowed else scale * 2, 0),
            "doubled after every good step, the scale overflows every other time: it has to wait "
            "for five good steps in a row",
        ),
    ],
    [
        "Two cases: overflowed, and not.",
        "Where the step was good, count it first and compare with 5 then.",
    ],
    "scale and count",
    # every count of good steps, with either outcome; scales of 1 and below move as all others do
    telling=[
        {"scale": scale, "good_steps": good_steps, "overflowed": overflowed}
        for scale in (0.5, 1.0, 2.0**24)
        for good_steps in range(5)
        for overflowed in (False, True)
    ],
)
def after_step(scale, good_steps, overflowed):
    """(scale, good_steps) after a step: an overflow halves the scale, and five good steps in a
    row double it. good_steps counts those since the scale last changed."""
    if overflowed:
        return scale / 2, 0
    good_steps = good_steps + 1
    if good_steps == 5:
        return scale * 2, 0
    return scale, good_steps


def _fp16_gradient(rng):
    gradient = (rng.standard_normal(50) * 2.0 ** rng.uniform(-14, 2, 50)).astype(np.float16)
    return {"gradient": gradient, "scale": 2.0 ** int(rng.integers(10, 15))}


# an overflow, the largest value, both sides of zero, subnormals
_FP16_EDGES = np.float16([np.inf, -np.inf, np.nan, 65504, -65504, 1, 0, 2.0**-24, -(2.0**-15)])


@exercise(
    LESSON,
    _fp16_gradient,
    [
        Wrong(
            lambda gradient, scale: (gradient / np.float16(scale)).astype(np.float32),
            "divided in fp16, the small values vanish once more, and the scale was for nothing: "
            "go to float32 first",
        ),
        Wrong(
            lambda gradient, scale: gradient.astype(np.float32) * np.float32(scale),
            "that scales a second time; the loss was multiplied, so divide",
        ),
        Wrong(
            lambda gradient, scale: gradient.astype(np.float32),
            "the scale is still in it: the optimizer would take steps that are much too long",
        ),
    ],
    ["gradient.astype(np.float32) holds the same numbers with more room.", "Then divide."],
    "gradient",
    telling=[{"gradient": _FP16_EDGES, "scale": 2.0**exponent} for exponent in (0, 10, 16, 24)],
)
def unscale(gradient, scale):
    """The float32 gradient of the loss itself; gradient is a float16 array, of scale * loss."""
    return gradient.astype(np.float32) / np.float32(scale)


def _maybe_broken(rng):
    gradient = rng.standard_normal(30).astype(np.float32) * np.float32(1e4)
    kind = rng.choice(["fine", "infinity", "minus infinity", "nan", "large", "huge"])
    bad = {"infinity": np.inf, "minus infinity": -np.inf, "nan": np.nan, "large": 1e9}
    if kind in bad:
        gradient[rng.integers(0, 30)] = bad[kind]
    if kind == "huge":  # finite, though their sum is not
        gradient[:2] = 3e38
    return {"gradient": gradient}


def _with_one_bad(bad, place):
    gradient = np.float32([0, 2, -3, 0.5, -1e30])
    gradient[place] = bad
    return gradient


# fine but large, with a sum or squares beyond float32, and one bad value in each place
_GRADIENTS_OF_ALL_KINDS = [
    np.zeros(5, np.float32),
    np.float32([65504, 1e9, -1e9]),
    np.float32([3.4e38, 3.4e38, -3.4e38]),
    np.float32([np.inf, -np.inf, 1]),
    np.full(3, np.nan, np.float32),
    *(_with_one_bad(bad, place) for bad in (np.inf, -np.inf, np.nan) for place in (0, 2, 4)),
]


def _quiet_sum(gradient):
    with np.errstate(all="ignore"):
        return gradient.sum()


@exercise(
    LESSON,
    _maybe_broken,
    [
        Wrong(
            lambda gradient: bool(np.isinf(gradient).any()),
            "infinity minus infinity is NaN: an overflow can arrive as NaN as well",
        ),
        Wrong(
            lambda gradient: bool(np.isnan(gradient).any()),
            "an overflow shows as an infinity first, wherever the format has one; NaN comes later",
        ),
        Wrong(
            lambda gradient: bool((gradient == np.inf).any()),
            "there are a negative infinity and NaN, too; np.isfinite knows all three",
        ),
        Wrong(
            lambda gradient: bool((abs(gradient) > 65504).any() or np.isnan(gradient).any()),
            "a float32 gradient beyond 65504 is large, but finite: the step can be made",
        ),
        Wrong(
            lambda gradient: not np.isfinite(_quiet_sum(gradient)),
            "the sum of finite values can overflow where none of them has; look at each",
        ),
        Wrong(
            lambda gradient: not np.isfinite(gradient).any(),
            "one bad value is enough, the others do not excuse it: any and all are exchanged",
        ),
    ],
    ["Which values make a step useless?", "np.isfinite is False for all of them."],
    "True is 1",
    telling=[{"gradient": gradient} for gradient in _GRADIENTS_OF_ALL_KINDS],
)
def must_skip(gradient):
    """Whether a step has to be skipped: whether gradient (float32) holds an infinity or a NaN."""
    return not np.isfinite(gradient).all()


def _signals(rng):
    x = (rng.standard_normal(300) * 2.0 ** rng.uniform(-34, -16, 300)).astype(np.float32)
    scale = 2.0 ** int(rng.integers(3, 9))
    x[:5] = np.float32(2.0**-25 / scale)  # half of the smallest: a tie, which goes to zero
    x[rng.integers(5, 300, 90)] = 0
    return {"gradient": x, "scale": scale}


# at and around half of fp16's smallest value, its smallest value and its smallest normal one
_EDGES = [significand * 2.0**-25 for significand in (0.5, 1, 1 + 2.0**-20, 1.5, 2, 3, 2048, 4096)]
_SCALED_EDGES = np.float32([*_EDGES, *(-edge for edge in _EDGES), 0, 0, 1, -1])


def _lost(values, before):
    return np.count_nonzero((values == 0) & (before != 0))


@exercise(
    LESSON,
    _signals,
    [
        Wrong(
            lambda gradient, scale: (
                _lost(mp.round_to(gradient, "fp16"), gradient) / np.count_nonzero(gradient)
            ),
            "that is the share without the scale; what is rounded is gradient * scale",
        ),
        Wrong(
            lambda gradient, scale: float(np.mean(mp.round_to(gradient * scale, "fp16") == 0)),
            "that counts the zeros of gradient itself; only what was not zero can be lost",
        ),
        Wrong(
            lambda gradient, scale: (
                _lost(mp.round_to(gradient * scale, "fp16"), gradient) / gradient.size
            ),
            "the zeros of the ReLU have nothing to lose: divide by the number of values that are "
            "not zero",
        ),
        Wrong(
            lambda gradient, scale: (
                _lost(np.where(abs(gradient * scale) < 2.0**-14, 0, gradient), gradient)
                / np.count_nonzero(gradient)
            ),
            "below the smallest normal value fp16 still has its subnormals",
        ),
        Wrong(
            lambda gradient, scale: (
                _lost(mp.round_to(gradient / scale, "fp16"), gradient) / np.count_nonzero(gradient)
            ),
            "the loss is multiplied by the scale, and so are the gradients; here they are divided",
        ),
    ],
    ["Round gradient * scale.", "Count what became zero and was not; mind what to divide by."],
    "share",
    tolerance=1e-6,  # of a quotient: any way to compute it is right
    telling=[
        {"gradient": sign * _SCALED_EDGES / np.float32(scale), "scale": scale}
        for sign in (1, -1)
        for scale in (1.0, 8.0, 2.0**10)
    ],
)
def flushed_under_scale(gradient, scale):
    """Of the values of gradient (float32 array) that are not zero, the share that fp16 flushes to
    zero once the loss is multiplied by scale."""
    rounded = mp.round_to(gradient * np.float32(scale), "fp16")
    lost = np.count_nonzero((rounded == 0) & (gradient != 0))
    return lost / np.count_nonzero(gradient)


def _exponents(rng):
    return {
        "start": int(rng.integers(0, 31)),
        "safe": int(rng.integers(8, 20)),
        "per_skip": int(rng.integers(1, 4)),
    }


@exercise(
    LESSON,
    _exponents,
    [
        Wrong(
            lambda start, safe, per_skip: -(-(start - safe) // per_skip),
            "a start at or below the safe scale skips nothing: not a negative number of steps",
        ),
        Wrong(
            lambda start, safe, per_skip: (start - safe) // per_skip,
            "two things: a partial step down counts too, so round up; and never below 0",
        ),
        Wrong(
            lambda start, safe, per_skip: max(0, start - safe),
            "right where an overflow halves the scale; here it falls by 2**per_skip at once",
        ),
        Wrong(
            lambda start, safe, per_skip: max(0, (start - safe) // per_skip),
            "rounded down, the scale is still too high: the last, partial, step down counts too",
        ),
        Wrong(
            lambda start, safe, per_skip: max(0, -(-(start - safe) // per_skip)) + 1,
            "one too many: the step at a safe scale is made, not skipped",
        ),
    ],
    ["How far is it down, in powers of two?", "Divide by per_skip and round up; never below 0."],
    "skipped steps",
    # below, at and just above what is safe; a whole number of steps down, and a part more
    telling=[
        {"start": 16 + above, "safe": 16, "per_skip": per_skip}
        for above in (-9, -1, 0, 1, 2, 3, 4, 6, 7)
        for per_skip in (1, 2, 3)
    ]
    + [{"start": 24, "safe": 8, "per_skip": 3}],
)
def steps_skipped(start, safe, per_skip):
    """Steps skipped at the start, where the first scale is 2**start, every scale above 2**safe
    overflows, and an overflow divides the scale by 2**per_skip."""
    return max(0, int(np.ceil((start - safe) / per_skip)))
