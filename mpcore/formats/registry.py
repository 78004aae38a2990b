"""Which formats there are, and the names that people call them by."""

import re
from difflib import get_close_matches
from functools import lru_cache

import numpy as np

from mpcore.errors import cut
from mpcore.formats.format import Format, FormatError

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
    ("int8", 8, True),
    ("uint8", 8, False),
    ("int4", 4, True),
    ("uint4", 4, False),
]

FORMATS = {
    name: Format(name, bits, exponent, precision, bias, infinity, nan, note=note)
    for name, bits, exponent, precision, bias, infinity, nan, note in _FLOATS
} | {
    name: Format(name, bits, 0, bits, 0, False, "none", is_signed=signed, kind="int")
    for name, bits, signed in _INTEGERS
}

# Every other name by which a format is met: NumPy, ml_dtypes, torch, PTX, exponent-mantissa names.
# A bare "e4m3" is what PTX and OCP mean by it, e4m3fn; ml_dtypes' float8_e4m3 is the IEEE one.
_ALIASES = {
    "fp64": "float64 double f64 e11m52",
    "fp32": "float32 single f32 e8m23",
    "tf32": "tensorfloat32 e8m10",
    "bf16": "bfloat16 e8m7",
    "fp16": "float16 half f16 e5m10",
    "fp8_e4m3": "fp8 e4m3 e4m3fn float8_e4m3fn fp8_e4m3fn",
    "fp8_e5m2": "e5m2 float8_e5m2",
    "fp8_e4m3fnuz": "e4m3fnuz float8_e4m3fnuz",
    "fp8_e5m2fnuz": "e5m2fnuz float8_e5m2fnuz",
    "fp8_e4m3b11fnuz": "e4m3b11fnuz float8_e4m3b11fnuz",
    "fp8_e4m3_ieee": "e4m3_ieee float8_e4m3",
    "fp8_e3m4_ieee": "e3m4 e3m4_ieee float8_e3m4",
    "fp6_e3m2": "e3m2 e3m2fn float6_e3m2fn",
    "fp6_e2m3": "e2m3 e2m3fn float6_e2m3fn",
    "fp4_e2m1": "fp4 e2m1 e2m1fn float4_e2m1fn",
    "int32": "i32 s32",
    "int8": "i8 s8",
    "uint8": "u8",
    "int4": "i4 s4",
    "uint4": "u4",
}
_NAMES = {name: name for name in FORMATS} | {
    alias: name for name, aliases in _ALIASES.items() for alias in aliases.split()
}

_CUSTOM = re.compile(r"e([0-9]{1,3})m([0-9]{1,3})")


def list_formats():
    """Names of the formats in the registry, widest first (a custom "eXmY" is valid beside them)."""
    return list(FORMATS)


def get_format(x):
    """The `Format` that `x` names.

    Args:
        x: a `Format`; a name from `list_formats()`; an alias ("half", "bfloat16", "e4m3fn",
            "torch.float16"); a NumPy, ml_dtypes or torch dtype object or class; or a custom
            IEEE-like float "eXmY" with X in 2..11 exponent and Y in 1..52 stored significand bits.

    Raises:
        FormatError: nothing has that name; the line says what would be valid.
    """
    return x if isinstance(x, Format) else _by_name(_name_of(x))


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
    custom = _CUSTOM.fullmatch(key)
    if custom:
        exponent_bits, mantissa_bits = map(int, custom.groups())
        if 2 <= exponent_bits <= 11 and 1 <= mantissa_bits <= 52:
            bits, bias = 1 + exponent_bits + mantissa_bits, 2 ** (exponent_bits - 1) - 1
            return Format(key, bits, exponent_bits, mantissa_bits + 1, bias, note="custom")
        raise FormatError(f'"{cut(name)}" is out of range: "eXmY" takes X in 2..11 and Y in 1..52')
    close = get_close_matches(key, _NAMES, n=1)
    hint = f' (did you mean "{close[0]}"?)' if close else ""
    raise FormatError(
        f'no format is called "{cut(name)}"{hint}; valid are {", ".join(FORMATS)}, '
        'a dtype, or a custom "eXmY" such as "e5m10"'
    )
