"""Formats: the names that people use, what is refused, and what the registry states."""

import ml_dtypes
import numpy as np
import pytest

from mpcore.formats import (
    FormatError,
    custom_format,
    decode,
    encode,
    get_format,
    list_formats,
    round_to,
)


@pytest.mark.parametrize(
    ("given_name", "name"),
    [
        ("fp8_e4m3", "fp8_e4m3"),
        ("float8_e4m3fn", "fp8_e4m3"),
        ("E4M3", "fp8_e4m3"),
        (ml_dtypes.float8_e4m3fn, "fp8_e4m3"),
        (np.dtype(ml_dtypes.float8_e4m3), "fp8_e4m3_ieee"),
        (ml_dtypes.bfloat16, "bf16"),
        ("torch.bfloat16", "bf16"),
        ("half", "fp16"),
        (np.float16, "fp16"),
        (np.dtype("float64"), "fp64"),
        ("e5m10", "fp16"),
        (np.int8, "int8"),
        (ml_dtypes.int4, "int4"),
        ("e6m9", "e6m9"),
    ],
)
def test_formats_answer_to_the_names_people_use(given_name, name):
    assert get_format(given_name).name == name
    assert get_format(get_format(given_name)) is get_format(name)


@pytest.mark.parametrize(
    ("unknown", "said"),
    [
        ("fp17", 'did you mean "fp16"'),
        ("e9", "valid are fp64, fp32"),
        ("e12m3", "X in 2..11 and Y in 1..52"),
        ("e9m0", "X in 2..11 and Y in 1..52"),
        (None, "no format is called"),
        (np.complex64, 'no format is called "complex64"'),
    ],
)
def test_unknown_formats_are_refused_in_one_clear_line(unknown, said):
    with pytest.raises(FormatError, match=said.replace(".", r"\.")) as caught:
        get_format(unknown)
    assert "\n" not in str(caught.value)


def test_unusable_requests_are_refused():
    with pytest.raises(FormatError, match="no rounding mode is called"):
        round_to(1.5, "fp16", "nearest")
    with pytest.raises(FormatError, match="no overflow behaviour is called"):
        encode(1.5, "fp16", overflow="wrap")
    with pytest.raises(FormatError, match="needs rng="):
        round_to(1.5, "fp16", "stochastic")
    with pytest.raises(FormatError, match="int8 has no NaN"):
        round_to(1.5, "int8", overflow="nan")
    with pytest.raises(FormatError, match="real numbers"):
        round_to(1 + 2j, "fp16")
    with pytest.raises(FormatError, match=r"lie in 0\.\.15"):
        decode([16], "int4")
    with pytest.raises(FormatError, match="unsigned integers"):
        decode([1.0], "int4")


def test_registry_rows_state_the_published_ranges():
    assert list_formats()[:5] == ["fp64", "fp32", "tf32", "bf16", "fp16"]
    largest = {"fp16": 65504, "fp8_e4m3": 448, "fp8_e5m2": 57344, "fp6_e3m2": 28, "fp6_e2m3": 7.5}
    largest |= {"fp4_e2m1": 6, "fp8_e4m3fnuz": 240, "fp8_e5m2fnuz": 57344, "int4": 7, "uint8": 255}
    for name, value in largest.items():
        assert get_format(name).max == value
    for dtype in (np.float16, np.float32, np.float64):
        f, info = get_format(dtype), np.finfo(dtype)
        assert (f.max, f.smallest_normal, f.smallest, f.epsilon) == (
            info.max,
            info.smallest_normal,
            info.smallest_subnormal,
            info.eps,
        )


@pytest.mark.parametrize(
    "name",
    [
        "f16",
        "f32",
        "f64",
        "bf16",
        "e4m3",
        "e5m2",
        "e4m3fnuz",
        "e5m2fnuz",
        "e2m1x2",
        "e8m0",
        "ue8m0",
        "ue4m3",
        "tf32",
        "xf32",
        "e4m3fn",
        "e8m0fnu",
        "e3m2fn",
        "e2m3fn",
        "e2m1fn",
        "e4m3_ieee",
        "e3m4_ieee",
        "e4m3b11fnuz",
        "fp8_e4m3",
        "int2",
        "uint3",
        "int13",
        "uint16",
    ],
)
def test_names_of_vectors_tables_and_instructions_are_known(name):
    f = get_format(name)
    assert get_format(f.name) == f


@pytest.mark.parametrize(
    ("name", "values", "decades"),
    [
        ("fp8_e4m3", 253, 5.36),
        ("fp4_e2m1", 15, 1.08),
        ("fp16", 63487, 12.04),
        ("e8m0", 255, 76.46),
        ("int8", 256, 2.10),
    ],
)
def test_a_format_knows_how_many_values_it_has_and_how_far_they_reach(name, values, decades):
    f = get_format(name)
    found = decode(np.arange(2**f.bits), f)
    assert f.finite_values == np.unique(found[np.isfinite(found)]).size == values
    assert f.decades == pytest.approx(decades, abs=0.005)


def test_a_format_of_your_own_has_the_flags_that_you_give_it():
    e4m3 = custom_format(4, 3, infinity=False, nan="all_ones")
    assert (e4m3.max, e4m3.bias, e4m3.name) == (448.0, 7, "e4m3_all_ones")
    fnuz = custom_format(5, 2, bias=16, infinity=False, nan="negative_zero")
    assert (fnuz.max, fnuz.smallest) == (57344.0, get_format("e5m2fnuz").smallest)
    without = custom_format(4, 3, subnormals=False)
    assert round_to(without.smallest_normal / 4, without) == 0
    assert custom_format(5, 9) == get_format("e5m9")
    for f in (e4m3, fnuz, without):
        codes = np.arange(2**f.bits, dtype=f.code_dtype)
        finite = np.isfinite(decode(codes, f)) & (decode(codes, f) != 0)
        again = encode(decode(codes[finite], f), f)
        assert np.array_equal(decode(again, f), decode(codes[finite], f))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((1, 3), "X in 2..11"),
        ((4, 0), "Y in 1..52"),
        ((4, True), "Y in 1..52"),
        ((4.0, 3), "X in 2..11"),
        ((4, 3, 2000), "leads beyond float64"),
        ((4, 3, -2000), "leads beyond float64"),
        ((4, 3, 1.5), "leads beyond float64"),
        ((4, 3, None, True, "none"), 'takes nan="ieee"'),
        ((4, 3, None, False, "ieee"), "takes nan=all_ones, negative_zero, none"),
    ],
)
def test_impossible_formats_are_refused(arguments, said):
    with pytest.raises(FormatError, match=said):
        custom_format(*arguments)


def test_every_name_of_published_tables_is_a_format():
    names = "fp64 fp32 tf32 bf16 fp16 fp8_e4m3 fp8_e5m2 fp8 fp6 fp4 fp4_e2m1 nvfp4 mxfp8 int8 int4"
    for name in [*names.replace(" fp6 ", " ").split(), "fp8_e4m3_block128"]:
        assert get_format(name).bits > 0
    assert get_format("fp8_e4m3_block128").rows == 128
