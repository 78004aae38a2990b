"""Which formats there are, and the names that people call them by."""

import re
from difflib import get_close_matches
from functools import lru_cache
from numbers import Integral

import numpy as np

from mpcore.errors import cut
from mpcore.formats.format import NAN_CONVENTIONS, BlockFormat, Format, FormatError

# name, bits, exponent bits, precision, bias, infinity, NaN codes, note
_FLOATS = [
    ("fp64", 64, 11, 53, 1023, True, "ieee", "IEEE 754 binary64"),
    ("fp32", 32, 8, 24, 127, True, "ieee", "IEEE 754 binary32"),
    ("tf32", 19, 8, 11, 127, True, "ieee", "NVIDIA TensorFloat-32: 19 of the bits of fp32"),
    ("bf16", 16, 8, 8, 127, True, "ieee", "bfloat16: the upper half of fp32"),
    ("fp16", 16, 5, 11, 15, True, "ieee", "IEEE 754 binary16"),
    ("fp8_e4m3", 8, 4, 4, 7, False, "all_ones", "OCP FP8 E4M3 (e4m3fn): finite up to 448"),
    ("fp8_e5m2", 8, 5, 3, 15, True, "ieee", "OCP FP8 E5M2: fp16 with 2 significand bits"),
    ("fp8_e4m3fnuz", 8, 4, 4, 8, False, "negative_zero", "AMD CDNA3 FP8: up to 240"),
    ("fp8_e5m2fnuz", 8, 5, 3, 16, False, "negative_zero", "AMD CDNA3 BF8: up to 57344"),
    ("fp8_e4m3b11fnuz", 8, 4, 4, 11, False, "negative_zero", "bias 11: up to 30"),
    ("fp8_e4m3_ieee", 8, 4, 4, 7, True, "ieee", "E4M3 with infinities: up to 240"),
    ("fp8_e3m4_ieee", 8, 3, 5, 3, True, "ieee", "E3M4 with infinities: up to 15.5"),
    ("fp6_e3m2", 6, 3, 3, 3, False, "none", "OCP MX FP6 E3M2: up to 28"),
    ("fp6_e2m3", 6, 2, 4, 1, False, "none", "OCP MX FP6 E2M3: up to 7.5"),
    ("fp4_e2m1", 4, 2, 2, 1, False, "none", "OCP MX FP4 E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6"),
]

# name, bits, signed
_INTEGERS = [
    ("int32", 32, True),
    ("int16", 16, True),
    ("uint16", 16, False),
    ("int8", 8, True),
    ("uint8", 8, False),
    ("int4", 4, True),
    ("uint4", 4, False),
    ("int2", 2, True),
    ("uint2", 2, False),
]

FORMATS = {
    name: Format(name, bits, exponent, precision, bias, infinity, nan, note=note)
    for name, bits, exponent, precision, bias, infinity, nan, note in _FLOATS
}
FORMATS["e8m0"] = Format(
    "e8m0", 8, 8, 1, 127, False, "all_ones", has_subnormals=False, is_signed=False, has_zero=False,
    note="OCP MX scale: 2**-127 to 2**127, no zero, no sign",
)  # fmt: skip


def _integer(bits, is_signed, name=""):
    name = name or f"{'' if is_signed else 'u'}int{bits}"
    return Format(name, bits, 0, bits, 0, False, "none", is_signed=is_signed, kind="int")


FORMATS |= {name: _integer(bits, signed, name) for name, bits, signed in _INTEGERS}

# Every other name by which a format is met: NumPy, ml_dtypes, torch, PTX, exponent-mantissa names.
# A bare "e4m3" is what PTX and OCP mean by it, e4m3fn; ml_dtypes' float8_e4m3 is the IEEE one.
_ALIASES = {
    "fp64": "float64 double f64 e11m52",
    "fp32": "float32 single f32 e8m23",
    "tf32": "tensorfloat32 xf32 e8m10",
    "bf16": "bfloat16 e8m7",
    "fp16": "float16 half f16 e5m10",
    "fp8_e4m3": "fp8 e4m3 ue4m3 e4m3fn float8_e4m3fn fp8_e4m3fn",
    "fp8_e5m2": "e5m2 float8_e5m2",
    "fp8_e4m3fnuz": "e4m3fnuz float8_e4m3fnuz",
    "fp8_e5m2fnuz": "e5m2fnuz float8_e5m2fnuz",
    "fp8_e4m3b11fnuz": "e4m3b11fnuz float8_e4m3b11fnuz",
    "fp8_e4m3_ieee": "e4m3_ieee float8_e4m3",
    "fp8_e3m4_ieee": "e3m4 e3m4_ieee float8_e3m4",
    "fp6_e3m2": "e3m2 e3m2fn float6_e3m2fn",
    "fp6_e2m3": "e2m3 e2m3fn float6_e2m3fn",
    "fp4_e2m1": "fp4 e2m1 e2m1x2 e2m1fn float4_e2m1fn float4_e2m1fn_x2",
    "e8m0": "ue8m0 e8m0fnu float8_e8m0fnu",
    "int32": "i32 s32",
    "int16": "i16 s16",
    "uint16": "u16",
    "int8": "i8 s8",
    "uint8": "u8",
    "int4": "i4 s4",
    "uint4": "u4",
}
_NAMES = {name: name for name in FORMATS} | {
    alias: name for name, aliases in _ALIASES.items() for alias in aliases.split()
}


def _mx(name, element, note, step_exponent=0):
    f = FORMATS[element]
    return BlockFormat(name, f, 32, FORMATS["e8m0"], step_exponent=step_exponent, note=note)


BLOCK_FORMATS = {
    f.name: f
    for f in (
        _mx("mxfp8_e4m3", "fp8_e4m3", "OCP MXFP8, E4M3 elements"),
        _mx("mxfp8_e5m2", "fp8_e5m2", "OCP MXFP8, E5M2 elements"),
        _mx("mxfp6_e3m2", "fp6_e3m2", "OCP MXFP6, E3M2 elements"),
        _mx("mxfp6_e2m3", "fp6_e2m3", "OCP MXFP6, E2M3 elements"),
        _mx("mxfp4", "fp4_e2m1", "OCP MXFP4"),
        _mx("mxint8", "int8", "OCP MXINT8: elements are whole multiples of 1/64", -6),
        BlockFormat(
            "nvfp4",
            FORMATS["fp4_e2m1"],
            16,
            FORMATS["fp8_e4m3"],
            has_tensor_scale=True,
            note="NVIDIA NVFP4: scales of 16 values in e4m3 under one fp32 scale per tensor",
        ),
        BlockFormat(
            "fp8_e4m3_block128",
            FORMATS["fp8_e4m3"],
            128,
            FORMATS["fp32"],
            rows=128,
            note="weights of DeepSeek-V3 and DeepGEMM: 128 by 128 values under an fp32 scale",
        ),
    )
}
_BLOCK_NAMES = {name: name for name in BLOCK_FORMATS} | {
    "mxfp8": "mxfp8_e4m3",
    "mxfp6": "mxfp6_e3m2",
    "mxfp4_e2m1": "mxfp4",
}

_CUSTOM = re.compile(r"e([0-9]{1,3})m([0-9]{1,3})")
_CUSTOM_INTEGER = re.compile(r"(u?)int([0-9]{1,3})")


def list_formats():
    """Names of the formats in the registry, widest first (a custom "eXmY" is valid beside them)."""
    return list(FORMATS)


def list_block_formats():
    """Names of the block formats in the registry."""
    return list(BLOCK_FORMATS)


def get_format(x):
    """The `Format`, or `BlockFormat`, that `x` names.

    Args:
        x: a `Format` or `BlockFormat`; a name from `list_formats()` or `list_block_formats()`; an
            alias ("half", "bfloat16", "e4m3fn", "torch.float16"); a NumPy, ml_dtypes or torch
            dtype object or class; or a custom IEEE-like float "eXmY" with X in 2..11 exponent and
            Y in 1..52 stored significand bits.

    Raises:
        FormatError: nothing has that name; the line says what would be valid.
    """
    return x if isinstance(x, Format | BlockFormat) else _by_name(_name_of(x))


def get_element_format(x):
    """The `Format` that `x` names, where blocks under scales make no sense.

    Raises:
        FormatError: nothing has that name, or it is a block format.
    """
    f = get_format(x)
    if isinstance(f, BlockFormat):
        raise FormatError(
            f"{f} is a block format: its values need scales (round_to and quantize make them); "
            f"a format without scales is wanted here, as its elements' {f.element}"
        )
    return f


def _name_of(x):
    if isinstance(x, str):
        return x
    if x is not None:  # np.dtype(None) is float64, which nobody means
        try:
            return np.dtype(x).name
        except TypeError:
            pass
    return str(x)


@lru_cache(maxsize=1024)
def _by_name(name):
    key = name.strip().lower().removeprefix("torch.").replace("-", "_")
    if key in _NAMES:
        return FORMATS[_NAMES[key]]
    if key in _BLOCK_NAMES:
        return BLOCK_FORMATS[_BLOCK_NAMES[key]]
    custom = _CUSTOM.fullmatch(key)
    if custom:
        exponent_bits, mantissa_bits = map(int, custom.groups())
        return custom_format(exponent_bits, mantissa_bits)
    integer = _CUSTOM_INTEGER.fullmatch(key)
    if integer:
        unsigned, bits = integer[1], int(integer[2])
        if 2 <= bits <= 16:
            return _integer(bits, not unsigned)
        raise FormatError(f'"{cut(name)}" is out of range: "intN" and "uintN" take N in 2..16')
    close = get_close_matches(key, [*_NAMES, *_BLOCK_NAMES], n=1)
    hint = f' (did you mean "{close[0]}"?)' if close else ""
    floats = ", ".join(name for name, f in FORMATS.items() if f.kind == "float")
    raise FormatError(
        f'no format is called "{cut(name)}"{hint}; valid are {floats}, int32, '
        'int2 to int16, uint2 to uint16, mxfp8, nvfp4, a dtype, or as "e5m10"'
    )


def custom_format(
    exponent_bits, mantissa_bits, bias=None, infinity=True, nan="ieee", subnormals=True
):
    """A float format of your own, with a sign bit.

    Args:
        exponent_bits: width of the exponent field, 2 to 11.
        mantissa_bits: stored significand bits, 1 to 52.
        bias: exponent field of 1.0; None is IEEE's 2**(exponent_bits - 1) - 1.
        infinity: whether the all-ones exponent field is kept for infinity and NaN, as in IEEE 754.
        nan: a key of `NAN_CONVENTIONS`: "ieee" with infinity, one of the others without.
        subnormals: whether there are values between 0 and the smallest normal one.

    Raises:
        FormatError: a width, bias or combination that no float64 emulation can hold.
    """
    widths = exponent_bits, mantissa_bits
    whole = all(isinstance(w, Integral) and not isinstance(w, bool) for w in widths)
    if not (whole and 2 <= exponent_bits <= 11 and 1 <= mantissa_bits <= 52):
        raise FormatError(
            f'"e{exponent_bits}m{mantissa_bits}" is out of range: "eXmY" takes X in 2..11 and '
            "Y in 1..52"
        )
    if nan not in NAN_CONVENTIONS or (nan == "ieee") != bool(infinity):
        kinds = '"ieee"' if infinity else "all_ones, negative_zero, none"
        raise FormatError(f"a format with infinity={infinity} takes nan={kinds}, not {nan!r}")
    usual = 2 ** (exponent_bits - 1) - 1
    bias = usual if bias is None else bias
    name = f"e{exponent_bits}m{mantissa_bits}"
    flags = [f"b{bias}"] * (bias != usual) + [nan] * (not infinity) + ["ftz"] * (not subnormals)
    f = Format(
        "_".join([name, *flags]),
        1 + exponent_bits + mantissa_bits,
        exponent_bits,
        mantissa_bits + 1,
        bias,
        bool(infinity),
        nan,
        bool(subnormals),
        note="custom",
    )
    top = 2**exponent_bits - 1 - bool(infinity) - bias  # exponent of the largest value
    if not isinstance(bias, Integral) or top > 1023 or f.tiny_exponent < -1074:
        raise FormatError(f"bias {bias} of {name} leads beyond float64, in which values are held")
    return f
