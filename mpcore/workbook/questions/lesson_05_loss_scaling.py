"""What lesson 05 asks: small gradients, loss scales, and the steps that they cost."""

import numpy as np

import mpcore as mp
from mpcore.scaling import LossScale
from mpcore.workbook.exercise import Wrong, exercise
from mpcore.workbook.prediction import Reveal, prediction
from mpcore.workloads.digits_training import TrainingSettings, captured_gradient, train

LESSON = "05_loss_scaling"


def trained(format, exponent, dynamic=False):
    """The lesson's run in a format, from the scale 2**exponent on."""
    scale = LossScale(2.0**exponent, interval=20, dynamic=dynamic)
    return train(TrainingSettings(format=format, loss_scale=scale))


# --- predictions ----------------------------------------------------------------------------------


@prediction(
    LESSON,
    "At step 100 of this training run, what share of the backward signals (those that are not "
    "zero), in per cent, does fp16 flush to zero without a loss scale?",
    within=2,
)
def flushed_without_scale():
    signals = captured_gradient(100)
    signals = signals[signals != 0]
    share = float(np.mean(mp.round_to(signals, "fp16") == 0))
    why = (
        f"The largest is only {abs(signals).max():.2g}, and half of them lie below "
        f"{np.median(abs(signals)):.1g}: the upper half of the format's range is empty."
    )
    return Reveal(100 * share, why)


@prediction(
    LESSON,
    "The same run with weights, activations and backward signals in fp8_e4m3, still without a "
    "loss scale. How does it end?",
    {
        "same": "about as the fp32 run",
        "slower": "somewhat worse: a little noise in every step",
        "fails": "it hardly learns",
    },
)
def e4m3_without_scale():
    low, oracle = (trained(f, 0).loss[-20:].mean() for f in ("fp8_e4m3", "fp32"))
    answer = "fails" if low > 5 * oracle else "slower" if low > 1.2 * oracle else "same"
    why = (
        f"Its loss ends at {low:.2f}, that of fp32 at {oracle:.2f}: where a layer's signal is "
        "flushed, every layer below it gets nothing at all."
    )
    return Reveal(answer, why)


@prediction(
    LESSON,
    "Dynamic loss scaling in fp16, started at 2**24 and halved at every overflow. How many steps "
    "at the start are skipped?",
    within=1.01,
)
def skipped_at_the_start():
    run = trained("fp16", 24, dynamic=True)
    first = int(np.argmin(run.overflowed))
    why = f"The first step that is made has the scale {run.scale[first]:.0f}, 2**{24 - first}."
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
            "the scale never grows: the present step counts too, and with it the fifth doubles it",
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
)
def unscale(gradient, scale):
    """The float32 gradient of the loss itself; gradient is a float16 array, of scale * loss."""
    return gradient.astype(np.float32) / np.float32(scale)


def _maybe_broken(rng):
    gradient = rng.standard_normal(30).astype(np.float32) * np.float32(1e4)
    kind = rng.choice(["fine", "infinity", "minus infinity", "nan", "large"])
    bad = {"infinity": np.inf, "minus infinity": -np.inf, "nan": np.nan, "large": 1e9}
    if kind in bad:
        gradient[rng.integers(0, 30)] = bad[kind]
    return {"gradient": gradient}


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
            "an overflow first shows as an infinity; NaN comes only where two of them meet",
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
            lambda gradient: not np.isfinite(gradient).any(),
            "one bad value is enough, the others do not excuse it: any and all are exchanged",
        ),
    ],
    ["Which values make a step useless?", "np.isfinite is False for all of them."],
    "True is 1",
)
def must_skip(gradient):
    """Whether a step has to be skipped: whether gradient (float32) holds an infinity or a NaN."""
    return not np.isfinite(gradient).all()


def _signals(rng):
    x = (rng.standard_normal(300) * 2.0 ** rng.uniform(-34, -16, 300)).astype(np.float32)
    x[rng.integers(0, 300, 90)] = 0
    return {"gradient": x, "scale": 2.0 ** int(rng.integers(3, 9))}


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
)
def flushed_under_scale(gradient, scale):
    """Share of the values of gradient (float32) that are not zero and that fp16 flushes to zero
    once the loss is multiplied by scale: of those that are not zero."""
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
)
def steps_skipped(start, safe, per_skip):
    """Steps skipped at the start, where the first scale is 2**start, every scale above 2**safe
    overflows, and an overflow divides the scale by 2**per_skip."""
    return max(0, int(np.ceil((start - safe) / per_skip)))
