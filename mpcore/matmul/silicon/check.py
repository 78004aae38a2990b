"""Instruction by instruction: operands → launch → D → is it what `mma` says?"""

import time
from dataclasses import dataclass

import numpy as np

from mpcore.formats.codes import decode
from mpcore.matmul.instructions import TABLE
from mpcore.matmul.mma import mma
from mpcore.matmul.silicon.cases import CLASSES, EXACT, generated, packed, vectors_of
from mpcore.matmul.silicon.driver import DeviceFailed
from mpcore.matmul.silicon.layouts import COLUMNS
from mpcore.matmul.silicon.ptx import CAPABILITIES, kernel_of, why_not

CASES = 100_000  # of each class
EQUAL, DIFFERENT, NOT_REPLAYED, FAILED = "equal", "different", "not replayed", "failed"
OUTCOMES = {
    EQUAL: "every case came back as `mma` computes it, bit for bit",
    DIFFERENT: "some case came back otherwise; `first` is the first of them",
    NOT_REPLAYED: "this script has no kernel for it",
    FAILED: "the kernel was not compiled, did not run, or got even exact sums wrong",
}


@dataclass(frozen=True)
class Outcome:
    """What became of one instruction."""

    instruction: object
    status: str  # a key of OUTCOMES
    cases: int = 0  # elements of D that were compared
    different: int = 0  # of these
    first: str = ""  # the first case that differs, in full, or why there is no result


def instructions_of(capability):
    """The `Instruction`s of a compute capability's architecture; None where it is not known."""
    arch = CAPABILITIES.get(capability)
    return [i for i in TABLE if i.arch == arch] if arch else None


def replay(i, device, cases=CASES, seed=0, vectors=None, timeout=20.0):
    """The `Outcome` of an instruction on a device.

    Args:
        i: an `Instruction` of the device's architecture.
        device: what `driver.find_device` returns, or an object with its `capability` and `run`.
        cases: elements of D, at least, of each generated class.
        seed: of the generated cases.
        vectors: the reference model's arrays (see `vectors_of`), or None.
        timeout: seconds for a kernel, of which each class is one.
    """
    if reason := why_not(i):
        return Outcome(i, NOT_REPLAYED, first=reason)
    kernel = kernel_of(i, device.capability)
    compared, different, first = 0, 0, ""
    try:
        for label, operands in _sets(i, kernel.shape, cases, seed, vectors):
            d = launched(kernel, device, operands, timeout)
            wrong = differing(i, operands["D"], d)
            compared += d.size
            different += np.count_nonzero(wrong)
            if wrong.any() and not first:
                first = described(i, label, operands, d, np.argwhere(wrong)[0])
            if wrong.any() and label == EXACT:
                what = "sums that no arithmetic can get wrong are wrong: the replay is at fault"
                return Outcome(i, FAILED, compared, int(different), f"{what}; {first}")
    except DeviceFailed as error:
        return Outcome(i, FAILED, compared, int(different), str(error))
    return Outcome(i, DIFFERENT if different else EQUAL, compared, int(different), first)


def _sets(i, shape, cases, seed, vectors):
    """Label and operands of every class, `exact` first, then of the vectors; D is what is due."""
    copies, m, n = shape
    tiles = -(-cases // (copies * m * n))
    for label in CLASSES:
        found = generated(i, label, (tiles * copies, m, n), seed)
        yield label, {**found, "D": expected(i, found)}
    if vectors is not None and (found := vectors_of(i, vectors)):
        yield "vectors", found


def expected(i, operands):
    """D of `mma`, of operands as `generated` makes them."""
    given = dict(operands)
    if i.a.bits == 4:
        given |= {"A": packed(given["A"], 2), "B": packed(given["B"], 1)}
    return mma(**given, arch=i.arch, kind=i.kind, qualifier=i.qualifier)


def launched(kernel, device, operands, timeout=20.0):
    """D of the device, [cases, rows, columns] as the operands' D.

    Operands smaller than a tile fill it by being repeated.
    """
    copies, m, _ = kernel.shape
    cases, rows, columns = operands["D"].shape
    case = np.arange(-(-cases // copies) * copies) % cases
    row, column = np.arange(m) % rows, np.arange(COLUMNS) % columns
    words = {}
    for name, fragment in kernel.fragments.items():
        if name == "D":
            continue
        codes = operands[name][case]
        codes = codes if name in ("B", "SB") else codes[:, row]
        codes = codes if name in ("A", "SA") else codes[:, :, column]
        words[name] = fragment.pack(codes.reshape(-1, *fragment.shape))
    of_d = kernel.fragments["D"]
    d = of_d.unpack(device.run(kernel, words, timeout)).reshape(-1, m, COLUMNS)
    return d[:cases, :rows, :columns]


def differing(i, ours, silicon):
    """Where two D differ: NaN is canonical on NVIDIA, but for fp64, where any NaN equals any."""
    wrong = ours != silicon
    if i.d.name == "fp64":
        wrong &= ~(np.isnan(decode(ours, i.d)) & np.isnan(decode(silicon, i.d)))
    return wrong


def described(i, label, operands, d, where):
    """One case in full, as codes in hexadecimal: enough to compute it anew by hand."""
    case, row, column = (int(x) for x in where)
    given = {"A": operands["A"][case, row], "B": operands["B"][case, :, column]}
    if i.scale is not None:
        given |= {"SA": operands["SA"][case, row], "SB": operands["SB"][case, :, column]}
    given["C"] = operands["C"][case, row, column]
    given |= {"ours": operands["D"][case, row, column], "silicon": d[case, row, column]}
    formats = {"A": i.a, "B": i.b, "C": i.c, "ours": i.d, "silicon": i.d}
    parts = [
        f"{name} {_hexadecimal(codes, formats.get(name, i.scale))}" for name, codes in given.items()
    ]
    return f"class {label}, case {case}, row {row}, column {column}: {', '.join(parts)}"


def _hexadecimal(codes, f):
    digits = 8 if f.name == "tf32" else f.bits // 4
    return " ".join(f"{int(code):0{digits}x}" for code in np.atleast_1d(codes))


def run(device, instructions, say=print, **options):
    """The `Outcome`s of several instructions, each said in one line as it is known."""
    found = []
    for i in instructions:
        start = time.monotonic()
        outcome = replay(i, device, **options)
        found.append(outcome)
        say(line(outcome, time.monotonic() - start))
    return found


def line(outcome, seconds):
    """An outcome in one line."""
    i, status = outcome.instruction, outcome.status
    if status == EQUAL:
        return f"{i}: equal to silicon on {outcome.cases:,} cases ({seconds:.1f} s)"
    if status == DIFFERENT:
        share = f"{outcome.different:,} of {outcome.cases:,} cases"
        return f"{i}: differs from silicon in {share}; first: {outcome.first}"
    return f"{i}: {status}: {outcome.first}"
