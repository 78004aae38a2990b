"""What lesson 03 asks: what a matrix unit cuts off, its last bit, and what promotion mends."""

import numpy as np

import mpcore as mp
from mpcore.workbook.bounds_picture import NAMES, PROMOTED, error_growth
from mpcore.workbook.exercise import Wrong, exercise
from mpcore.workbook.prediction import Reveal, prediction
from mpcore.workbook.unit_probe import last_surviving_bit

LESSON = "03_matrix_units"


# --- predictions ----------------------------------------------------------------------------------


@prediction(
    LESSON,
    "A matrix unit adds the three products 1, -1 and 2**-p at once. Volta's, for fp16 inputs, "
    "finds 2**-23, but zero instead of 2**-24. What is the largest p at which Hopper's unit for "
    "fp8 inputs, which holds its sums in fp32 words, still finds 2**-p?",
)
def last_bit_of_hopper_fp8():
    last, of_fp16 = last_surviving_bit("Hopper.fp8"), last_surviving_bit("Hopper.fp16")
    why = (
        f"Beside the 1 it keeps {last} bits, though its sums lie in fp32 words; for fp16 inputs "
        f"the same architecture keeps {of_fp16}."
    )
    return Reveal(float(last), why)


@prediction(
    LESSON,
    "6144 captured weights are rounded to e4m3, and Hopper's unit for fp8 adds up their squares, "
    "32 at a time. All of them are positive. How many per cent of the sum are missing at the end?",
    within=2,
)
def missing_from_the_sum():
    growth = error_growth()
    missing, promoted = (100 * float(growth.measured[name][-1]) for name in ("unit", "promoted"))
    why = (
        "Every product is cut toward zero, so all errors have one sign and add up. "
        f"{NAMES['unit']} with a promotion every {PROMOTED} products misses {promoted:.2g}%."
    )
    return Reveal(missing, why)


@prediction(
    LESSON,
    "Hopper's fp8 unit again, promoted every 128 products. From 128 squares to all 6144, 48 times "
    "as many: how does the relative error of their sum grow?",
    {
        "length": "about 48 times, as the number of products",
        "root": "about 7 times, as its square root",
        "level": "hardly at all",
    },
)
def growth_with_promotion():
    growth = error_growth()
    factors = {name: float(m[-1] / m[0]) for name, m in growth.measured.items() if m[0]}
    times = growth.depths[-1] / growth.depths[0]
    expected = {"length": times, "root": times**0.5, "level": 1.0}
    nearest = min(expected, key=lambda key: abs(np.log(expected[key] / factors["promoted"])))
    why = (
        f"It grows by a factor of {factors['promoted']:.2g}: each stretch errs by about the same "
        f"share of itself, and so does their sum. Never promoted, it grows {factors['unit']:.2g} "
        "times."
    )
    return Reveal(nearest, why)


# --- exercises ------------------------------------------------------------------------------------


def _chunk(rng):
    terms = rng.standard_normal(9) * 2.0 ** rng.integers(-12, 4, 9)
    return {"terms": mp.round_to(terms, "bf16").astype(float), "fraction": int(rng.choice([7, 13]))}


_TELLING_CHUNKS = [
    [1.0, -1.0, 2.0**-13],
    [1.0, -1.0, 2.0**-14],
    [-1.0, 1.0, -1.75 * 2.0**-8, -1.75 * 2.0**-14],
    [1.0, 2.0**-8, 2.0**-8, 2.0**-14, 2.0**-14],
    [3.5, -0.01171875, 0.2490234375, -0.00046539306640625],
    [-4.0, 1.0, 1.984375 * 2.0**-6, -1.984375 * 2.0**-12],
    [0.0625, -0.06201171875, 2.0**-17, 2.0**-18 * 1.5],
    [-3.984375, -(2.0**-9), -(2.0**-12) * 1.5],
    [1.984375 * 2.0**-6, 1.984375 * 2.0**-12, -2.0, 1.0],
    [1.0] * 9,
]


def _largest(terms):
    return abs(terms).max()


def _unit_of(terms, fraction, of=_largest):
    """What one unit is worth, where `of` the terms sets it."""
    leading = abs(of(terms))
    return 2.0 ** (np.frexp(leading)[1] - 1 - fraction) if leading else 1.0


def _aligned(terms, fraction, cut=np.trunc, of=_largest):
    """The sum of terms, each cut to whole units."""
    unit = _unit_of(terms, fraction, of)
    return cut(terms / unit).sum() * unit


def _cut_at_the_end(terms, fraction):
    unit = _unit_of(terms, fraction)
    return np.trunc(terms.sum() / unit) * unit


@exercise(
    LESSON,
    _chunk,
    [
        Wrong(
            lambda terms, fraction: _aligned(terms, fraction, np.round),
            "that rounds to nearest; the unit cuts off what lies below, toward zero",
        ),
        Wrong(
            lambda terms, fraction: _aligned(terms, fraction, np.floor),
            "that rounds down; toward zero makes a negative term larger, not smaller",
        ),
        Wrong(
            lambda terms, fraction: _aligned(terms, fraction, of=np.max),
            "the largest in magnitude sets the units, and that can be a negative term",
        ),
        Wrong(
            lambda terms, fraction: float(terms.sum()),
            "nothing is cut: each term has to become a whole number of units first",
        ),
        Wrong(
            _cut_at_the_end,
            "that cuts the sum; the unit cuts every term before it adds",
        ),
        Wrong(
            lambda terms, fraction: _aligned(terms, fraction, of=np.sum),
            "the largest term sets the units, not the sum, which is not known yet",
        ),
        Wrong(
            lambda terms, fraction: _aligned(terms, fraction - 1),
            "your units are twice too wide: a largest term from 1 to 2 has the exponent 0 "
            "(np.frexp says 1 there)",
        ),
        Wrong(
            lambda terms, fraction: _aligned(terms, fraction) / _unit_of(terms, fraction),
            "that counts the units; times the length of one they are the sum",
        ),
    ],
    [
        "A number from 2**e on, below 2**(e + 1), has the exponent e; np.frexp gives e + 1.",
        "unit = 2.0 ** (exponent of the largest - fraction).",
        "np.trunc(terms / unit) are the whole numbers; add them up, then multiply by unit.",
    ],
    "sum",
    telling=[
        {"terms": np.array(terms), "fraction": fraction}
        for terms in _TELLING_CHUNKS
        for fraction in (7, 13)
    ],
)
def align_and_cut(terms, fraction):
    """Sum of terms (float64 array, none is zero) as an aligning unit finds it.

    Each is cut, toward zero, to whole multiples of 2**(e - fraction), where e is the exponent of
    the largest (in magnitude); what is left is summed exactly.
    """
    exponent = np.frexp(abs(terms).max())[1] - 1
    unit = 2.0 ** (exponent - fraction)
    return np.trunc(terms / unit).sum() * unit


def _probe(rng):
    return _probed(last=int(rng.integers(3, 19)), size=int(rng.integers(20, 40)))


def _probed(last, size, is_rounded=False):
    found = 2.0 ** -np.arange(size)
    found[last + 1 :] = 0
    if is_rounded:  # half of the last bit comes out as the last bit
        found[last + 1] = 2.0**-last
    return {"found": found}


@exercise(
    LESSON,
    _probe,
    [
        Wrong(
            lambda found: int(np.count_nonzero(found)),
            "one too many: found[0] belongs to p = 0, so counting the survivors gives p + 1",
        ),
        Wrong(
            lambda found: int(np.flatnonzero(found)[-1]),
            "that something is found is not enough: a unit that rounds finds a number other than "
            "2**-p one place further on",
        ),
        Wrong(
            lambda found: float(found[found > 0].min()),
            "that is the smallest value found, 2**-p; asked for is p",
        ),
        Wrong(
            lambda found: len(found) - 1,
            "that is the last p that was tried, whether or not anything was found there",
        ),
        Wrong(
            lambda found: int(np.argmin(found)),
            "that is the first p at which nothing is left; the last survivor comes before it",
        ),
    ],
    [
        "np.flatnonzero(found) gives the places that are not zero.",
        "Compare each with 2.0**-p: a unit that rounds to nearest may find something else.",
    ],
    "p",
    telling=[
        *(_probed(last, size) for last, size in [(13, 20), (23, 30), (24, 30), (25, 40), (0, 5)]),
        *(_probed(last, last + 1) for last in (6, 28)),
        *(_probed(last, 30, is_rounded=True) for last in (13, 24)),
    ],
)
def last_bit(found):
    """The largest p at which a unit's result found[p] is 2**-p, as 1 - 1 + 2**-p should be.

    found is a float64 array, from p = 0 on.
    """
    expected = 2.0 ** -np.arange(len(found))
    return int(np.flatnonzero(found == expected)[-1])


def _products(rng):
    values = abs(rng.standard_normal(48)) * 2.0 ** rng.integers(-8, 1, 48)
    return {
        "products": mp.round_to(values, "bf16").astype(float),
        "every": int(rng.choice([8, 10, 16, 20])),
    }


def _narrow(x, rounding="toward_zero"):
    return float(mp.round_to(x, "e8m13", rounding))


def _master(x):
    return float(np.float32(x))


def _two_level(products, every, inside=_narrow, master=_master, restart=True, rest=True):
    """The two-level sum with one thing wrong at a time."""
    total = part = 0.0
    for start in range(0, len(products) if rest else len(products) // every * every, every):
        for product in products[start : start + every]:
            part = inside(part + product)
        total = master(total + part)
        part = 0.0 if restart else part
    return total


@exercise(
    LESSON,
    _products,
    [
        Wrong(
            lambda products, every: _two_level(products, len(products)),
            "that never promotes before the end: the narrow sum has to be emptied every so often",
        ),
        Wrong(
            lambda products, every: _two_level(products, every, restart=False),
            "after a promotion the narrow sum starts again at 0, else it is counted twice",
        ),
        Wrong(
            lambda products, every: _two_level(products, every, master=_narrow),
            "the master is as narrow as the unit's sum: it has to be held in fp32",
        ),
        Wrong(
            lambda products, every: _two_level(
                products, every, inside=lambda x: _narrow(x, "nearest_even")
            ),
            'inside the unit sums are cut off, not rounded to nearest: "toward_zero" does that',
        ),
        Wrong(
            lambda products, every: _two_level(products, every, rest=False),
            "the products after the last full stretch are missing: they are promoted as well",
        ),
        Wrong(
            lambda products, every: float(np.float32(products.sum())),
            "nothing is cut inside: each addition to the narrow sum goes through e8m13",
        ),
    ],
    [
        "range(0, len(products), every) gives the starts; the last stretch may be shorter.",
        'mp.round_to(part + product, "e8m13", "toward_zero") is one addition inside.',
        'total = mp.round_to(total + part, "fp32") promotes; then part starts at 0 again.',
    ],
    "sum",
    telling=[
        {"products": np.resize(values, 48), "every": every}
        for values in (
            [1.0, 2.0**-13, 1.75 * 2.0**-12],
            [3.0, 0.0009765625 * 1.984375],
            [0.7109375],
            [4096.0, *[1.578125 * 2.0**-7] * 47],  # the master rounds, too
        )
        for every in (7, 16, 48)
    ],
)
def promote(products, every):
    """Sum of products (float64 array) at two levels.

    Inside, products are added one after the other, each sum cut toward zero to e8m13. After
    `every` of them, and after the last, that sum is added to a total in fp32 (to nearest), and
    starts again at 0.
    """
    total = 0.0
    for start in range(0, len(products), every):
        part = 0.0
        for product in products[start : start + every]:
            part = mp.round_to(part + product, "e8m13", "toward_zero")
        total = mp.round_to(total + part, "fp32")
    return total


def _to_bound(rng):
    return {
        "products": rng.standard_normal(int(rng.integers(20, 90))),
        "length": int(rng.choice([4, 8, 16, 32])),
        "fraction": int(rng.choice([13, 23, 24, 25])),
    }


def _size(products):
    return float(abs(products).sum())


@exercise(
    LESSON,
    _to_bound,
    [
        Wrong(
            lambda products, length, fraction: len(products) * 2.0**-fraction * _size(products),
            "a chunk that is not full counts as a whole one: round the number of chunks up",
        ),
        Wrong(
            lambda products, length, fraction: (
                len(products) // length * length * 2.0**-fraction * _size(products)
            ),
            "the last chunk is left out where it is not full: round the number of chunks up",
        ),
        Wrong(
            lambda products, length, fraction: (
                -(-len(products) // length) * 2.0**-fraction * _size(products)
            ),
            "that lets a chunk lose one unit; each of its products may lose nearly one",
        ),
        Wrong(
            lambda products, length, fraction: (
                -(-len(products) // length) * length * 2.0**-fraction * abs(float(products.sum()))
            ),
            "add the magnitudes: where products cancel, the sum is small and the partial sums are "
            "not",
        ),
        Wrong(
            lambda products, length, fraction: most_cut.reference(products, length, fraction) / 2,
            "half a unit is what rounding to nearest loses; cutting off loses up to a whole one",
        ),
    ],
    [
        "int(np.ceil(len(products) / length)) is the number of chunks.",
        "abs(products).sum() bounds every partial sum and every product.",
        "chunks * length * 2.0**-fraction * abs(products).sum().",
    ],
    "bound",
    telling=[
        {
            "products": np.array([1.5, -1.25, 0.5, -0.625] * 16)[:size],
            "length": length,
            "fraction": fraction,
        }
        for size in (1, 16, 17, 40, 64)
        for length, fraction in ((4, 23), (16, 25), (32, 13))
    ],
    tolerance=1e-6,
)
def most_cut(products, length, fraction):
    """At most how much aligning cuts off a sum of products (float64 array), to first order.

    It is cut in chunks of `length` products (the last may be shorter, and counts as a whole one).
    In each of them every product may lose a unit of 2**-fraction times S, the sum of the
    magnitudes of all products.
    """
    chunks = int(np.ceil(len(products) / length))
    return chunks * length * 2.0**-fraction * abs(products).sum()
