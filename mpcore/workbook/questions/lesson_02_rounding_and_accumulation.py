"""What lesson 02 asks: accumulators, swamping and reduction orders."""

import numpy as np

import mpcore as mp
from mpcore.workbook.exercise import Wrong, exercise
from mpcore.workbook.prediction import Reveal, prediction
from mpcore.workbook.tile_trace import trace_of

LESSON = "02_rounding_and_accumulation"
ELEMENT = (0, 1)  # the element of the captured matmul that the lesson follows


# --- predictions ----------------------------------------------------------------------------------


@prediction(
    LESSON,
    "Add 1 to itself again and again in bf16, which can hold numbers beyond 10**38. Where does the "
    "sum stop growing?",
)
def where_it_stalls():
    total, one = np.float32(0), np.float32(1)
    while (after := mp.round_to(total + one, "bf16")) != total:
        total = after
    why = (
        f"At {total:g} its step is 2, so adding 1 lands half-way and the tie goes back to the even "
        f"significand: {total:g} + 1 is {total:g}."
    )
    return Reveal(float(total), why)


@prediction(
    LESSON,
    "One element of the captured matmul, 1536 products, bf16 accumulator. Which order errs least?",
    {
        "sequential": "sequential: one product after the other",
        "split_k:4": "split_k:4: four stretches, then their sums",
        "pairwise": "pairwise: a tree within each k-tile",
    },
)
def the_best_order():
    orders = ("sequential", "split_k:4", "pairwise")
    errors = {o: float(trace_of(*ELEMENT, "fp16", "bf16", o, 64).error[-1]) for o in orders}
    listed = ", ".join(f"{order} {error:.2g}" for order, error in errors.items())
    why = (
        f"The errors are {listed}. In a tree every product passes through few roundings, and the "
        "sums that meet are of similar size."
    )
    return Reveal(min(errors, key=errors.get), why)


@prediction(
    LESSON,
    "Of the 1536 products half are smaller than 0.016 (whatever their sign) and a quarter smaller "
    "than 0.004. Their sequential sum in bf16 soon lies near -2, until at four fifths of the way a "
    "product of -68 comes in. What share of the additions, in per cent, changes nothing at all?",
    within=1.5,
)
def swamped_share():
    trace = trace_of(*ELEMENT, "fp16", "bf16", "sequential", 64)
    largest = int(np.argmax(abs(np.diff(trace.exact, prepend=0))))
    before, after = trace.swamped[:largest], trace.swamped[largest + 1 :]
    why = (
        f"{before.sum()} of the {trace.swamped.sum()} come before the largest product: a quarter "
        f"of the {before.size} additions, since many products are tiny beside a sum near 2, whose "
        f"half step is up to 0.0078. {after.sum()} come after it, nearly all of the {after.size} "
        "that are left: near 70 half a step is 0.25, near 48 it is 0.125."
    )
    return Reveal(100 * float(trace.swamped.mean()), why)


# --- exercises ------------------------------------------------------------------------------------


def _terms(rng, size=24):
    values = rng.standard_normal(size) * 2.0 ** rng.uniform(-3, 5, size)
    return {"terms": mp.round_to(values, "bf16")}


# swamped terms, ties to either side, sums that cancel, and sums below what fp16 can hold
_TELLING_TERMS = [
    np.array([*head, *([one] * (24 - len(head)))])
    for head, one in [
        ((256.0,), 1.0),
        ((1.0, 3.0, 255.0, 258.0, -2.0), 1.0),
        ((1.0,), 2.0**-8),
        ((-256.0, 255.0), -1.0),
        ((2.0**120, 1.0, -(2.0**120)), 0.5),
        ((3 * 2.0**-40,), 2.0**-41),
    ]
]


def _telling_terms(size):
    """Terms of a given number whose sums tell orders and roundings apart."""
    drawn = [_terms(np.random.default_rng(seed), size)["terms"] for seed in range(4)]
    return [*(np.resize(terms, size) for terms in _TELLING_TERMS), *drawn]


def _bf16(x):
    return mp.round_to(x, "bf16")


def _rounded_at_the_end(terms):
    return float(_bf16(terms.sum()))


def _in_order(terms):
    total = 0.0
    for term in terms:
        total = float(_bf16(total + term))
    return total


def _tree(terms, pairs_of):
    level = np.array(terms)
    while level.size > 1:
        left, right = pairs_of(level)
        level = _bf16(left + right)
    return float(level[0])


def _neighbours(level):
    return level[0::2], level[1::2]


def _halves(level):
    return level[: level.size // 2], level[level.size // 2 :]


@exercise(
    LESSON,
    _terms,
    [
        Wrong(
            _rounded_at_the_end,
            "that sums in float64 and rounds once; an accumulator rounds after every addition",
        ),
        Wrong(
            lambda terms: float(terms.sum()),
            "nothing is rounded: after each addition the sum has to go through bf16",
        ),
        Wrong(
            lambda terms: _in_order(terms[::-1]),
            "that starts from the end; the order changes the result, so keep it",
        ),
        Wrong(
            lambda terms: _tree(np.append(terms, np.zeros(8)), _neighbours),
            "that is a tree; sequential means one term after the other into one sum",
        ),
    ],
    ['`mp.round_to(x, "bf16")` rounds one number as well as an array.', "total = 0; then a loop."],
    "sum",
    telling=[{"terms": terms} for terms in _telling_terms(24)],
)
def sequential_sum(terms):
    """Sum of terms (float64 array) in order, rounded to bf16 after every addition, from 0 on."""
    total = 0.0
    for term in terms:
        total = mp.round_to(total + term, "bf16")
    return total


@exercise(
    LESSON,
    lambda rng: {"precision": int(rng.integers(3, 25)), "term": 2.0 ** int(rng.integers(-8, 9))},
    [
        Wrong(
            lambda precision, term: term * 2.0 ** (precision - 1),
            "there the step is just term: the addition is still exact",
        ),
        Wrong(
            lambda precision, term: term * 2.0 ** (precision + 1),
            "it stalls earlier: where the step is twice the term, the sum lands half-way, and the "
            "tie goes back to the even significand",
        ),
        Wrong(
            lambda precision, term: 2.0**precision,
            "right for term = 1; a larger term is swamped later",
        ),
    ],
    [
        "In [2**e, 2**(e + 1)) a format with p significand bits has steps of 2**(e - p + 1).",
        "The sum stalls where the step is 2 * term.",
    ],
    "sum that no longer grows",
    telling=[
        {"precision": precision, "term": term}
        for precision in (3, 8, 11)
        for term in (2.0**-8, 0.5, 1.0, 2.0, 256.0)
    ],
)
def stalls_at(precision, term):
    """The sum at which adding term (a power of two) again and again stops changing anything.

    precision is the number of significand bits (bf16: 8, fp16: 11); ties go to even.
    """
    return term * 2.0**precision


@exercise(
    LESSON,
    lambda rng: _terms(rng, 32),
    [
        Wrong(_in_order, "that is sequential; add neighbours, then neighbouring sums, and so on"),
        Wrong(
            lambda terms: _tree(terms, _halves),
            "that adds i and i + n/2 (a strided tree, as GPUs like it); pairwise adds neighbours",
        ),
        Wrong(_rounded_at_the_end, "every level of the tree has to be rounded, not only the last"),
        Wrong(
            lambda terms: float(_bf16(_bf16(terms[:16].sum()) + _bf16(terms[16:].sum()))),
            "the halves are summed exactly; in a tree every sum of two is rounded",
        ),
    ],
    [
        "terms[0::2] are the left neighbours, terms[1::2] the right ones.",
        "Repeat on the sums until one is left.",
    ],
    "sum",
    telling=[{"terms": terms} for terms in _telling_terms(32)],
)
def pairwise_sum(terms):
    """Sum of 32 terms (float64 array) by a tree of neighbours, each sum rounded to bf16."""
    while terms.size > 1:
        terms = mp.round_to(terms[0::2] + terms[1::2], "bf16")
    return terms[0]


def _split_terms(rng):
    return _terms(rng, 48) | {"parts": int(rng.choice([2, 3, 4, 6]))}


def _split(pieces, combine=_in_order):
    return combine([_in_order(piece) for piece in pieces])


@exercise(
    LESSON,
    _split_terms,
    [
        Wrong(
            lambda terms, parts: _in_order(terms),
            "that is one part; each stretch needs a sum of its own that starts at 0",
        ),
        Wrong(
            lambda terms, parts: _split([terms[i::parts] for i in range(parts)]),
            "those parts are interleaved; split-K takes contiguous stretches of K",
        ),
        Wrong(
            lambda terms, parts: _split(np.split(terms, parts), lambda sums: float(sum(sums))),
            "the parts' sums are added without rounding; they go through the accumulator as well",
        ),
    ],
    [
        "np.split(terms, parts) gives the stretches.",
        "Sum each as in sequential_sum, then the sums in the same way.",
    ],
    "sum",
    telling=[
        {"terms": terms, "parts": parts} for terms in _telling_terms(48) for parts in (1, 2, 3, 6)
    ],
)
def split_k_sum(terms, parts):
    """Sum of terms in `parts` equal stretches, each in order, then their sums in order (bf16)."""
    sums = []
    for piece in np.split(terms, parts):
        total = 0.0
        for term in piece:
            total = mp.round_to(total + term, "bf16")
        sums.append(total)
    total = 0.0
    for part in sums:
        total = mp.round_to(total + part, "bf16")
    return total


def _kahan_with(sign, when_done=False):
    def summed(terms):
        total = carried = 0.0
        for term in terms:
            y = float(_bf16(term + (0.0 if when_done else carried)))
            new = float(_bf16(total + y))
            lost = float(_bf16(y - float(_bf16(new - total))))
            carried = float(_bf16(carried + lost)) if when_done else sign * lost
            total = new
        return float(_bf16(total + carried)) if when_done else total

    return summed


@exercise(
    LESSON,
    lambda rng: _terms(rng, 40),
    [
        Wrong(_in_order, "nothing is carried: that is the plain sequential sum"),
        Wrong(
            lambda terms: float(_bf16(terms.sum())),
            "that is better than Kahan's sum: somewhere an operation is not rounded to bf16",
        ),
        Wrong(
            _kahan_with(-1),
            "the sign of the correction is turned round: what was left out has to be added to the "
            "next term, here it is taken away a second time",
        ),
        Wrong(
            _kahan_with(1, when_done=True),
            "collecting what was lost and adding it at the end is another method (as Neumaier's); "
            "Kahan's adds it to the next term",
        ),
    ],
    [
        "y = term + carried, new = total + y, carried = y - (new - total).",
        "Every one of these operations is rounded to bf16.",
    ],
    "sum",
    telling=[{"terms": terms} for terms in _telling_terms(40)],
)
def kahan_sum(terms):
    """Kahan's sum of terms in bf16: what an addition leaves out is added to the next term.

    y = term + carried; new = total + y; carried = y - (new - total): each operation rounded.
    """
    total = carried = 0.0
    for term in terms:
        y = mp.round_to(term + carried, "bf16")
        new = mp.round_to(total + y, "bf16")
        carried = mp.round_to(y - mp.round_to(new - total, "bf16"), "bf16")
        total = new
    return total
