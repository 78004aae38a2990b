"""Operands for the silicon check: seeded classes of cases, and the reference model's vectors.

A case is one element of D: a row of A, a column of B, an element of C. The classes are those of the
vectors, and four more: `exact` (no unit loses a bit, so a difference means that the replay itself
is wrong), `far` (products over many binades), `residue` (the two largest products cancel, so that
D shows the lowest bits that a unit keeps) and `zeros` (most products are, and C is tiny).
"""

import numpy as np

from mpcore.formats.codes import decode, encode
from mpcore.formats.registry import get_format

EXACT = "exact"
_FP32 = get_format("fp32")


def _exact(rng, shape, f, name):
    return rng.integers(-2, 3, shape).astype(float)


def _normal(rng, shape, f, name):
    return rng.standard_normal(shape)


def _spread(rng, shape, f, name):
    widest = 8 if name == "C" else 4
    return rng.standard_normal(shape) * 2 ** rng.uniform(-widest, widest, shape)


def _far(rng, shape, f, name):
    deepest = 30 if name == "C" else 15
    binade = -rng.integers(0, deepest + 1, shape) * (rng.random(shape) < 0.7)
    return _signed(rng, shape) * rng.uniform(1, 2, shape) * 2.0**binade


def _cancel(rng, shape, f, name):
    x = _spread(rng, shape, f, name)
    if name == "C":
        return x * (rng.random(shape) < 0.3)
    along_k = 2 if name == "A" else 1
    first, second = np.split(x, 2, along_k)  # products in pairs: A repeats, B changes its sign
    pair = first if name == "A" else -first
    some_do_not = rng.random(second.shape) < 0.1
    return np.concatenate([first, np.where(some_do_not, second, pair)], along_k)


def _residue(rng, shape, f, name):
    top = min(8, np.log2(f.max) // 1 - 1)
    if name == "C":
        below = 2.0 ** (2 * top - rng.integers(8, 41, shape))
        return _signed(rng, shape) * below * (rng.random(shape) < 0.5)
    along_k = 2 if name == "A" else 1
    below = 2.0 ** (top - rng.integers(4, 21, shape))
    x = np.moveaxis(_signed(rng, shape) * rng.uniform(1, 2, shape) * below, along_k, 1)
    case, k = np.arange(len(x)), x.shape[1]
    first = case % k  # neighbours, or half of k apart: within one chunk of a unit, and across
    second = first ^ np.where(case // k % 2, k // 2, 1)
    x[case, first] = rng.uniform(1, 2, x[:, 0].shape) * 2.0**top
    x[case, second] = x[case, first] * (1 if name == "A" else -1)
    return np.moveaxis(x, 1, along_k)


def _subnormal(rng, shape, f, name):
    return _signed(rng, shape) * rng.uniform(0, 4, shape) * f.smallest_normal


def _overflow(rng, shape, f, name):
    return _signed(rng, shape) * rng.uniform(0.25, 1, shape) * f.max


def _zeros(rng, shape, f, name):
    if name == "C":  # tiny: where the exponent that a unit gives to zero decides what is left
        return _signed(rng, shape) * f.smallest_normal * 2 ** rng.uniform(0, 40, shape)
    if name == "B":
        x, zero = _spread(rng, shape, f, name), rng.random(shape) < 0.3
    else:  # half of the rows have nothing else
        x = _subnormal(rng, shape, f, name)
        zero = rng.random(shape) < rng.choice([0.8, 1.0], (*shape[:2], 1))
    return np.where(zero, np.copysign(0.0, x), x)


def _specials(rng, shape, f, name):
    extremes = [np.inf, -np.inf, np.nan, 0.0, -0.0, f.smallest, -f.smallest, f.max, -f.max]
    return np.where(
        rng.random(shape) < 0.1, rng.choice(extremes, shape), rng.standard_normal(shape)
    )


def _signed(rng, shape):
    return rng.choice([-1.0, 1.0], shape)


CLASSES = {
    EXACT: _exact,
    "normal": _normal,
    "spread": _spread,
    "far": _far,
    "residue": _residue,
    "codes": None,  # every finite code alike
    "cancel": _cancel,
    "subnormal": _subnormal,
    "overflow": _overflow,
    "specials": _specials,
    "zeros": _zeros,
}


def generated(i, label, shape, seed):
    """Seeded operands of one class, as `mma` takes them.

    Args:
        i: the `Instruction`.
        label: one of CLASSES.
        shape: cases of A and B together, rows and columns.
        seed: any whole number; the instruction and the class are mixed into it.

    Returns:
        A, B and C (and SA and SB) by name: codes, those of e2m1 one to a byte (see `packed`).
    """
    cases, m, n = shape
    name = [*str(i).encode(), *label.encode()]
    rng = np.random.default_rng([seed, *name])
    shapes = {"A": (cases, m, i.k), "B": (cases, i.k, n), "C": (cases, m, n)}
    formats = {"A": i.a, "B": i.b, "C": i.c}
    found = {}
    for operand, shape in shapes.items():
        beyond_the_model = operand == "C" and i.a.bits == 4  # it has no infinite C there
        found[operand] = _codes(rng, label, formats[operand], shape, operand, beyond_the_model)
    if i.scale is not None:
        for operand, shape in (
            ("SA", (cases, m, i.k // i.block)),
            ("SB", (cases, i.k // i.block, n)),
        ):
            found[operand] = _scales(rng, label, i.scale, shape)
    return found


def _codes(rng, label, f, shape, name, only_finite):
    stored = _FP32 if f.name == "tf32" else f
    if CLASSES[label] is None:
        codes = rng.integers(0, 2**stored.bits, shape, dtype=stored.code_dtype)
        return np.where(np.isfinite(decode(codes, stored)), codes, stored.code_dtype.type(0))
    values = CLASSES[label](rng, shape, f, name)
    if only_finite:
        values = np.where(np.isfinite(values), values, 0.0)
    return encode(values, stored, overflow="infinity" if label == "specials" else "saturate")


def _scales(rng, label, f, shape):
    one = f.bias << f.mantissa_bits
    if label == EXACT:
        return np.full(shape, one, np.uint8)
    if label in ("codes", "specials"):
        return rng.integers(0, 256, shape, dtype=np.uint8)
    binades = min(f.bias, 20) if label in ("far", "residue") else 4
    spread = binades << f.mantissa_bits
    return rng.integers(one - spread, one + spread, shape).astype(np.uint8)


def packed(codes, axis):
    """Codes of 4 bits, two a byte along an axis, the low four bits first: as `mma` takes them."""
    low, high = (np.take(codes, range(half, codes.shape[axis], 2), axis) for half in (0, 1))
    return low | high << 4


def unpacked(codes, axis):
    """The reverse of `packed`."""
    axis %= codes.ndim
    pairs = np.stack([codes & 15, codes >> 4], axis=axis + 1)
    return pairs.reshape([size * (1 + (a == axis)) for a, size in enumerate(codes.shape)])


def vectors_of(i, arrays):
    """The reference model's operands and D of an instruction; None where there are none.

    Args:
        arrays: an opened tests/data/matrix_units.npz, or a dict of such arrays.
    """
    start = f"{i.arch}|{i.kind}|{i.qualifier}|"
    names = ("A", "B", "C", "D", "SA", "SB")
    found = {name: arrays[start + name] for name in names if start + name in arrays}
    if not found:
        return None
    if i.a.bits == 4:
        found |= {"A": unpacked(found["A"], 2), "B": unpacked(found["B"], 1)}
    return found
