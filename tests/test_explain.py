"""One number explained: fields, neighbours and error, against the pencil-and-paper reference."""

from __future__ import annotations

import itertools
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpcore as mp
from mpcore.formats.explain import explain_code, next_value, values_between
from mpcore.formats.reference import decode_code

SMALL = [name for name in mp.list_formats() if mp.get_format(name).bits <= 8]
FLOATS = [name for name in mp.list_formats() if mp.get_format(name).kind == "float"]


@pytest.mark.parametrize("name", mp.list_formats())
def test_one_code_alone_decodes_as_it_does_in_an_array(name):
    f = mp.get_format(name)
    for code in (0, 1, f.max_code, 2 ** (f.bits - 1)):
        alone = mp.decode(f.code_dtype.type(code), f)
        np.testing.assert_equal(float(alone), decode_code(code, f))


@pytest.mark.parametrize("name", SMALL)
def test_the_next_value_is_the_next_larger_of_all_values(name):
    f = mp.get_format(name)
    values = {decode_code(code, f) for code in range(2**f.bits)}
    ascending = sorted(value for value in values if math.isfinite(value))
    for lower, upper in itertools.pairwise(ascending):
        assert next_value(lower, f, +1) == upper
        assert next_value(upper, f, -1) == lower
    assert next_value(ascending[-1], f, +1) is None
    assert next_value(ascending[0], f, -1) is None


@pytest.mark.parametrize("name", FLOATS)
def test_fields_put_together_give_the_value(name):
    f = mp.get_format(name)
    codes = {1, 3, f.max_code, 2**f.mantissa_bits, 2 ** (f.bits - 1) + 5}
    for code in (code for code in codes if code < 2**f.bits):
        found = explain_code(code, f)
        if found.kind in ("normal", "subnormal", "zero"):
            sign = -1 if found.sign else 1
            assert sign * found.significand * 2.0**found.exponent == found.value


@given(st.floats(-500, 500, allow_subnormal=False))
def test_rounding_to_nearest_errs_by_half_a_unit_at_most(x):
    found = mp.explain(x, "fp8_e4m3")
    if abs(x) <= 464:
        assert abs(found.error_in_ulp) <= 0.5
    assert found.value == float(np.float64(x).astype(ml_dtypes.float8_e4m3fn)) or abs(x) > 448


def test_a_unit_in_the_last_place_is_known_from_the_standard_library():
    for x in (0.1, 1.0, 3e-310, 1.7e308):
        assert mp.explain(x, "fp64").ulp == math.ulp(x)


def test_values_between_are_all_of_them_or_none():
    assert values_between(0.09, 0.13, "fp8_e4m3", 10) == [
        0.09375,
        0.1015625,
        0.109375,
        0.1171875,
        0.125,
    ]
    assert values_between(-1, 1, "fp4_e2m1", 5) == [-1, -0.5, 0, 0.5, 1]
    assert values_between(-1, 1, "fp4_e2m1", 4) is None
    assert values_between(500, 600, "fp8_e4m3", 4) == []


def test_a_number_without_neighbours_says_so():
    assert mp.explain(math.nan, "fp16").above is None
    assert mp.explain(math.inf, "fp16", overflow="infinity").below == 65504
    assert math.isnan(mp.explain(math.inf, "fp16", overflow="infinity").error)
