"""`mma`: raw bit patterns through one matrix instruction, bit for bit."""

from numbers import Integral

import numpy as np

from mpcore.formats.codes import decode, encode
from mpcore.formats.format import FormatError
from mpcore.formats.registry import get_format
from mpcore.matmul.instructions import get_instruction
from mpcore.matmul.options import MatmulError
from mpcore.matmul.units import Operands, chained

_FP32 = get_format("fp32")
_CANONICAL_NAN = {"fp32": 0x7FFFFFFF, "fp16": 0x7FFF}  # of NVIDIA's units
_PACKED = "fp4_e2m1"  # two codes a byte, the low four bits first


def mma(A, B, C=None, *, arch, kind, qualifier, SA=None, SB=None, promote_every_k=0):
    """D = A @ B + C as a matrix unit computes it, on raw bit patterns.

    Equal bit for bit to the public reference model of these units (see `instructions.py`), which
    is not the same as equal to silicon.

    Args:
        A: [cases, m, K] codes: uint8 for 8-bit formats, uint16 for fp16 and bf16, uint32 for fp32
            and tf32 (whole fp32 words; tf32 drops their low 13 bits), uint64 for fp64. e2m1 is
            packed along K, the low four bits first: [cases, m, K / 2]. The cases may be left out.
        B: [cases, K, n] likewise ([cases, K / 2, n] where packed).
        C: [cases, m, n] codes of C's format; None is zeros of D's format.
        arch, kind, qualifier: as in `get_instruction`. K is a multiple of the instruction's k;
            longer sums are chained through D.
        SA, SB: uint8 codes of the block scales, [cases, m, K / block] and [cases, K / block, n],
            for instructions that have them.
        promote_every_k: 0, or a multiple of k: every so many products the unit's sum is added to
            an fp32 master (to nearest even; C is where it starts) and begins again at +0.

    Returns:
        D, [cases, m, n] codes of D's format. NaN is canonical on NVIDIA (0x7FFFFFFF, 0x7FFF).

    Raises:
        MatmulError: no such instruction; shapes, dtypes or scales that do not fit it.
    """
    instruction = get_instruction(arch, kind, qualifier)
    a, b = _operand(A, instruction.a, "A", 2), _operand(B, instruction.b, "B", 1)
    one_case = a.ndim == 2
    if b.ndim != a.ndim:
        raise MatmulError(f"A has {a.ndim} axes and B has {b.ndim}: give both [cases, ., .]")
    a, b = (x[None] if one_case else x for x in (a, b))
    (cases, m, depth), n = a.shape, b.shape[2]
    if b.shape[:2] != (cases, depth):
        raise MatmulError(f"A is {a.shape} and B is {b.shape}: cases and K must agree")
    if depth % instruction.k:
        raise MatmulError(f"K is {depth}, not a multiple of the {instruction.k} of {instruction}")
    c_format = instruction.d if C is None else instruction.c
    c = np.zeros((cases, m, n)) if C is None else _operand(C, c_format, "C", 2)
    c = c[None] if c.ndim == 2 else c
    if c.shape != (cases, m, n):
        raise MatmulError(f"C is {c.shape}; A and B make {(cases, m, n)}")
    scales = _scales(instruction, SA, SB, (cases, m, depth, n), one_case)
    # An fp16 C that starts an fp32 sum is widened first: its subnormals become normal numbers.
    operands = Operands(a, b, c, instruction.a, instruction.b, instruction.d, **scales)
    if promote_every_k:
        _check_promotion(promote_every_k, instruction)
        d = _promoted(operands, instruction, promote_every_k)
    else:
        d, _ = chained(operands, instruction.unit, instruction.k)
    codes = _codes(d, instruction, bool(promote_every_k))
    return codes[0] if one_case else codes


def _promoted(x, instruction, every):
    """Every so many products the unit's sum goes into an fp32 master and starts again at +0."""
    master, zeros = x.c, np.zeros_like(x.c)
    for start in range(0, x.depth, every):
        part, _ = chained(x.chunk(start, start + every, zeros), instruction.unit, instruction.k)
        with np.errstate(over="ignore", invalid="ignore"):
            master = (master.astype(np.float32) + part.astype(np.float32)).astype(np.float64)
    return master


def _operand(codes, f, name, packed_axis):
    codes = np.asarray(codes)
    try:
        if codes.dtype != f.code_dtype and f.name != "tf32":
            raise FormatError(f"{f} codes are {f.code_dtype}, not {codes.dtype}")
        if codes.ndim not in (2, 3):
            raise FormatError(f"[cases, rows, columns] is needed, not shape {codes.shape}")
        if f.name == _PACKED:
            axis = packed_axis - 3
            pairs = np.stack([codes & 15, codes >> 4], axis=codes.ndim + axis + 1)
            shape = list(codes.shape)
            shape[axis] *= 2
            codes = pairs.reshape(shape)
        if f.name == "tf32":
            if codes.dtype != np.uint32:
                raise FormatError(f"tf32 operands are whole fp32 words, uint32, not {codes.dtype}")
            codes, f = codes & np.uint32(0xFFFFE000), _FP32
        return decode(codes, f).astype(np.float64)
    except FormatError as error:
        raise MatmulError(f"{name}: {error}") from None


def _scales(instruction, sa, sb, sizes, one_case):
    if instruction.scale is None:
        if sa is not None or sb is not None:
            raise MatmulError(f"{instruction} takes no block scales")
        return {}
    if sa is None or sb is None:
        raise MatmulError(f"{instruction} needs SA and SB, one scale per {instruction.block}")
    cases, m, depth, n = sizes
    found = {}
    for name, codes, shape in (
        ("SA", sa, (cases, m, depth // instruction.block)),
        ("SB", sb, (cases, depth // instruction.block, n)),
    ):
        values = _operand(codes, instruction.scale, name, 2)
        values = values[None] if one_case and values.ndim == 2 else values
        if values.shape != shape:
            raise MatmulError(f"{name} is {values.shape}; {instruction} needs {shape}")
        found[name] = np.abs(values)  # the sign bit of a ue4m3 scale is ignored
    return {
        "a_scale": found["SA"],
        "b_scale": found["SB"],
        "scale_format": instruction.scale,
        "block": instruction.block,
    }


def _check_promotion(every, instruction):
    if (
        isinstance(every, bool)
        or not isinstance(every, Integral)
        or every < 0
        or every % instruction.k
    ):
        raise MatmulError(
            f"promote_every_k is {every}; {instruction} needs a multiple of {instruction.k}"
        )


def _codes(d, instruction, is_promoted):
    f = _FP32 if is_promoted else instruction.d
    codes = encode(d, f, overflow="infinity")
    if instruction.kind != "mfma" and f.name in _CANONICAL_NAN:
        codes = np.where(np.isnan(d), f.code_dtype.type(_CANONICAL_NAN[f.name]), codes)
    return codes
