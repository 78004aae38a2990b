"""What lesson 01 asks: decoding, spacing, range and rounding of formats."""

import numpy as np

import mpcore as mp
from mpcore.formats.explain import values_between
from mpcore.workbook.exercise import Wrong, exercise
from mpcore.workbook.prediction import Reveal, prediction
from mpcore.workloads.captured import captured

LESSON = "01_formats"


# --- predictions ----------------------------------------------------------------------------------


@prediction(
    LESSON,
    "fp8_e4m3 has eight values from 1 up to, but not including, 2. How many from 128 up to 256?",
    {
        "fewer": "fewer than eight",
        "same": "eight as well",
        "more": "eight for every 2, so many more",
    },
)
def values_in_a_binade():
    low = len(values_between(1, 2, "fp8_e4m3", 100)) - 1
    high = len(values_between(128, 256, "fp8_e4m3", 100)) - 1
    answer = "same" if low == high else "fewer" if high < low else "more"
    why = (
        f"From 1 to 2 there are {low}, from 128 to 256 there are {high}: every power of two of "
        "the normal range is cut into equally many steps, so the steps grow with the numbers."
    )
    return Reveal(answer, why)


@prediction(
    LESSON,
    "The captured activations reach 2824. What does fp8_e4m3 make of it, without a scale?",
    {
        "near": "the nearest multiple of its step, a few per cent off",
        "largest": "its largest value, a sixth of it",
        "infinity": "infinity",
        "nan": "NaN",
    },
)
def the_largest_activation():
    largest = float(captured("down_proj_11_input").values.max())
    found = mp.explain(largest, "fp8_e4m3")
    answer = "largest" if found.value == found.format.max else "near"
    why = (
        f"{found.format.max:g} is its largest value, and it has no infinity. What lies beyond may "
        "saturate or become NaN: mpcore saturates by default, as NVIDIA's conversions do; "
        "ml_dtypes gives NaN, and so did torch before 2.13."
    )
    return Reveal(answer, why)


@prediction(
    LESSON,
    "Half of the captured activations are larger than 0.065 (whatever their sign), a tenth are "
    "smaller than 0.0072; the smallest value of fp8_e4m3 above zero is 0.00195. What share of "
    "them, in per cent, does it flush to zero?",
    within=2,
)
def flushed_activations():
    values = captured("down_proj_11_input").values
    share = float(np.mean((mp.round_to(values, "fp8_e4m3") == 0) & (values != 0)))
    lowest = mp.get_format("fp8_e4m3").smallest / 2
    why = (
        f"What is not above half of its smallest value, {lowest:.2g}, becomes zero. A tenth lie "
        f"below {np.percentile(abs(values), 10):.2g}, seven times as high: if they lay evenly, a "
        "seventh of that tenth would vanish, and it is a little more."
    )
    return Reveal(100 * share, why)


@prediction(
    LESSON,
    "In int8 the four tokens share one scale: the largest value of all, 2824, becomes 127. The "
    "largest value of the second token is 1.2. How many of that token's values are not zero?",
    {
        "most": "nearly all of them",
        "half": "about a half, the larger ones",
        "few": "a few per cent, the largest ones",
        "none": "none",
    },
)
def int8_survivors():
    values = captured("down_proj_11_input").values
    back = mp.quantize(values, "int8", granularity="per_tensor").dequantize()
    share, step = float(np.mean(back[1] != 0)), float(abs(values).max()) / 127
    answer = "none" if share == 0 else "few" if share < 0.1 else "half" if share < 0.8 else "most"
    why = (
        f"One step is {step:.1f}, and what is not above half of it becomes zero: the second token "
        f"reaches {abs(values[1]).max():.2g}. The first one set the scale, and the second pays."
    )
    return Reveal(answer, why)


# --- exercises ------------------------------------------------------------------------------------


def _a_code(rng):
    code = int(rng.integers(0, 127)) if rng.random() < 0.7 else int(rng.integers(0, 8))
    return {"code": code | (128 if rng.random() < 0.4 else 0)}


# zeros, both ends of the subnormals, 1, and exponent field 15, which IEEE 754 keeps for inf and NaN
_EDGE_CODES = [0x00, 0x01, 0x07, 0x08, 0x38, 0x77, *range(0x78, 0x7F)]


def _without_leading_one(code):
    field, trailing = code >> 3 & 15, code & 7
    sign = -1 if code & 128 else 1
    return sign * trailing / 8 * 2.0 ** (max(field, 1) - 7)


def _without_subnormals(code):
    field, trailing = code >> 3 & 15, code & 7
    sign = -1 if code & 128 else 1
    return sign * (1 + trailing / 8) * 2.0 ** (field - 7)


def _other_bias(code):
    field, trailing = code >> 3 & 15, code & 7
    sign = -1 if code & 128 else 1
    if field == 0:
        return sign * trailing / 8 * 2.0**-7
    return sign * (1 + trailing / 8) * 2.0 ** (field - 8)


@exercise(
    LESSON,
    _a_code,
    [
        Wrong(
            _without_leading_one,
            "the leading 1 is missing: where the exponent field is not 0, the significand is "
            "1 + trailing / 8",
        ),
        Wrong(
            _without_subnormals,
            "right for normal values; but in exponent field 0 there is no leading 1, and the "
            "exponent stays at that of field 1",
        ),
        Wrong(
            _other_bias,
            "the bias of fp8_e4m3 is 7 (8 is that of the fnuz variant): all results are half as "
            "large as they should be",
        ),
        Wrong(
            lambda code: abs(decode_e4m3.reference(code)),
            "the sign is missing: the highest bit (128) makes the value negative",
        ),
    ],
    [
        "`code >> 3 & 15` is the exponent field, `code & 7` the three trailing significand bits.",
        "Exponent field e stands for 2**(e - 7); the significand is 1 + trailing / 8.",
        "Exponent field 0 is special: no leading 1, and the power is 2**-6, as in field 1.",
    ],
    "value of the code",
    telling=[{"code": sign | code} for sign in (0, 128) for code in _EDGE_CODES],
)
def decode_e4m3(code):
    """Value of an fp8_e4m3 code (an int from 0 to 255, NaN left out) from its bits alone."""
    field, trailing = code >> 3 & 15, code & 7
    sign = -1 if code & 128 else 1
    leading = 1 if field > 0 else 0
    return sign * (leading + trailing / 8) * 2.0 ** (max(field, 1) - 7)


@exercise(
    LESSON,
    # every third a power of two, where the step changes
    lambda rng: {
        "x": float(np.float32(2.0 ** rng.choice([*rng.uniform(-13, 15, 2), rng.integers(-13, 15)])))
    },
    [
        Wrong(
            lambda x: 2.0**-10,
            "that is the step just above 1; it doubles at every power of two",
        ),
        Wrong(
            lambda x: x * 2.0**-10,
            "steps do not grow smoothly with x: they are constant between two powers of two, so "
            "round x down to its power of two first",
        ),
        Wrong(
            lambda x: 2.0 ** np.floor(np.log2(x)),
            "that is the power of two below x; it is cut into 1024 steps",
        ),
        Wrong(
            lambda x: 2.0 ** (np.floor(np.log2(x)) - 11),
            "fp16 stores 10 significand bits, so a power of two is cut into 2**10 steps, not 2**11",
        ),
    ],
    [
        "Between 1 and 2 fp16 has 1024 steps. And between 2 and 4?",
        "np.floor(np.log2(x)) is the exponent of the power of two at or below x.",
    ],
    "step",
    # powers of two, what lies just below one, and near both ends of the normal range
    telling=[
        {"x": x} for x in (2.0**-14, 2.0**-13, 0.75, 1.0, 1.5, 2 - 2.0**-11, 2.0, 2.0**15, 65472.0)
    ],
)
def step_at(x):
    """Distance between neighbouring fp16 values at x, where x > 0 is in the normal range."""
    exponent = np.floor(np.log2(x))
    return 2.0 ** (exponent - 10)


_TIES = [sign * tie for sign in (-1, 1) for tie in (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5)]
_BESIDE_TIES = [tie + beside for tie in _TIES if tie > 0 for beside in (-(2.0**-6), 2.0**-6)]
_AND_BEYOND = [sign * x for sign in (-1, 1) for x in (0.0, 6.0, 6.5, 7.0, 7.5, 9.0, 1000.0)]


@exercise(
    LESSON,
    lambda rng: {"x": float(rng.choice([rng.uniform(-7, 7), rng.choice(_TIES)]))},
    [
        Wrong(
            lambda x: float(mp.round_to(x, "fp4_e2m1", "toward_zero")),
            "that cuts off toward zero; take the nearest value",
        ),
        Wrong(
            lambda x: float(mp.round_to(x, "fp4_e2m1", "nearest_away")),
            "right but for ties: a number half-way between two values goes to the one with the "
            "even significand (its last bit is 0)",
        ),
        Wrong(
            lambda x: float(np.round(x)),
            "that rounds to whole numbers, as an integer format would; the steps of fp4 are 0.5 "
            "below 2, 1 below 4 and 2 above",
        ),
        Wrong(
            lambda x: float(np.round(2 * np.clip(x, -6, 6)) / 2),
            "the step is 0.5 only below 2: the values above are 2, 3, 4 and 6",
        ),
        Wrong(
            lambda x: abs(round_to_fp4.reference(x)),
            "the sign is lost: negative numbers stay negative",
        ),
    ],
    [
        "All its values are 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives; beyond 6 stays 6.",
        "Those with an even last bit are 0, 1, 2 and 4.",
        "np.argmin takes the first of equals: list the even values first.",
    ],
    "rounded value",
    telling=[{"x": x} for x in (*_TIES, *_AND_BEYOND, *_BESIDE_TIES)],
)
def round_to_fp4(x):
    """The number x rounded to the nearest of 0, ±0.5, ±1, ±1.5, ±2, ±3, ±4, ±6, ties to even."""
    even_first = np.array([0.0, 1, 2, 4, 0.5, 1.5, 3, 6])
    nearest = even_first[np.argmin(abs(even_first - abs(x)))]
    return np.copysign(nearest, x) if nearest else 0.0


@exercise(
    LESSON,
    # every third as large as the format's largest value times a power of two
    lambda rng: {
        "amax": float(
            np.float32(
                2.0 ** rng.choice([*rng.uniform(-20, 20, 2), np.log2(7) + rng.integers(-20, 20)])
            )
        )
    },
    [
        Wrong(
            lambda amax: 448 / amax,
            "that fills the range, but it is no power of two: multiplying by it rounds once more",
        ),
        Wrong(
            lambda amax: 2.0 ** np.round(np.log2(448 / amax)),
            "rounded to the nearest power, half of the time the largest value lands beyond 448: "
            "round down",
        ),
        Wrong(
            lambda amax: 2.0 ** np.ceil(np.log2(448 / amax)),
            "rounded up, the largest value lands beyond 448 and saturates: round down",
        ),
        Wrong(
            lambda amax: 2.0 ** np.floor(np.log2(256 / amax)),
            "256 is the largest power of two in the format, 448 its largest value: sometimes twice "
            "as much fits",
        ),
        Wrong(
            lambda amax: 2.0 ** -np.floor(np.log2(448 / amax)),
            "that is what the scaled values have to be multiplied with to get back",
        ),
    ],
    [
        "What is the largest factor at all, powers of two or not?",
        "Round its logarithm to base 2 down; np.frexp takes a number apart without rounding.",
    ],
    "scale",
    # 448 = 1.75 * 2**8: significands at and around it, up to 480 = 1.875 * 2**8 and beyond
    telling=[
        {"amax": significand * 2.0**exponent}
        for exponent in (-17, 0, 8, 13)
        for significand in (1.0, 1.5, 1.75 - 2.0**-22, 1.75, 1.75 + 2.0**-22, 1.8125, 1.875, 1.9375)
    ],
)
def power_of_two_scale(amax):
    """Largest power of two s with s * amax <= 448, the largest value of fp8_e4m3 (amax > 0)."""
    fraction, exponent = np.frexp(amax)  # amax = fraction * 2**exponent, 0.5 <= fraction < 1
    return 2.0 ** (9 - exponent if fraction <= 0.875 else 8 - exponent)  # 448 = 0.875 * 2**9


def _small_values(rng):
    x = (rng.standard_normal(200) * 2.0 ** rng.uniform(-26, -18)).astype(np.float32)
    x[:4] = 2.0**-25  # half of the smallest: a tie, which goes to zero
    x[rng.integers(4, 200, 20)] = 0
    return {"x": x}


# at and around half of fp16's smallest value, its smallest value and its smallest normal one
_EDGES = [significand * 2.0**-25 for significand in (0.5, 1, 1 + 2.0**-20, 1.5, 2, 3, 2048, 4096)]
_AT_THE_EDGES = np.float32([*_EDGES, *(-edge for edge in _EDGES), 0, 0, 1, -1])


@exercise(
    LESSON,
    _small_values,
    [
        Wrong(
            lambda x: float(np.mean(x == 0)),
            "that counts the zeros of x itself; the question is what rounding turns into zeros",
        ),
        Wrong(
            lambda x: float(np.mean(mp.round_to(x, "fp16") == 0)),
            "values that were zero before have lost nothing: leave them out of the count",
        ),
        Wrong(
            lambda x: flushed_share.reference(x) * x.size / np.count_nonzero(x),
            "of all values, the zeros among them: divide by x.size",
        ),
        Wrong(
            lambda x: float(np.mean((abs(x) < 2.0**-14) & (x != 0))),
            "below the smallest normal value there are still the subnormals, down to 2**-24",
        ),
        Wrong(
            lambda x: float(np.mean((abs(x) < 2.0**-24) & (x != 0))),
            "a value above half of the smallest rounds up to it: only up to 2**-25 is lost",
        ),
    ],
    [
        'mp.round_to(x, "fp16") gives the rounded values.',
        "Count those that are zero afterwards and were not before, and divide by x.size.",
    ],
    "share",
    tolerance=1e-6,  # of a quotient: any way to compute it is right
    telling=[{"x": _AT_THE_EDGES}, {"x": -abs(_AT_THE_EDGES)}, {"x": _AT_THE_EDGES[:3]}],
)
def flushed_share(x):
    """Share of all values of x (float32 array) that are not zero and that fp16 rounds to zero."""
    rounded = mp.round_to(x, "fp16")
    return np.count_nonzero((rounded == 0) & (x != 0)) / x.size
