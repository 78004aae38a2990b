"""A sum traced addition by addition: against the engine, and against exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

import mpcore as mp
from mpcore.matmul.options import MatmulError
from mpcore.matmul.trace import trace_sum

ORDERS = ("sequential", "pairwise", "strided_tree", "split_k:3", "kahan")


@pytest.fixture
def operands():
    rng = np.random.default_rng(3)
    a = mp.round_to(rng.standard_normal((1, 77)) * 2.0 ** rng.integers(-6, 7, (1, 77)), "fp16")
    b = mp.round_to(rng.standard_normal((77, 1)), "fp16")
    return a, b, (a[0] * b[:, 0]).tolist()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("accumulator", ["bf16", "fp16", "fp32", "fp8_e5m2"])
def test_the_last_sum_is_what_the_engine_gives(operands, order, accumulator):
    a, b, products = operands
    traced = trace_sum(products, accumulator, order, 16)
    value = mp.matmul(a, b, accumulator=accumulator, reduction=order, tile=mp.Tile(k=16)).value
    assert traced[-1].value == value[0, 0]


@pytest.mark.parametrize("order", ORDERS)
def test_every_sum_says_what_it_holds(operands, order):
    *_, products = operands
    traced = trace_sum(products, "bf16", order, 16)
    assert sorted(traced[-1].products) == list(range(77))
    for partial in traced:
        held = sum((Fraction(products[k]) for k in partial.products), Fraction(0))
        assert partial.exact == float(held)
        assert sorted([*partial.left, *partial.right]) == sorted(partial.products)
        assert partial.value == mp.round_to(partial.value, "bf16")


def test_swamped_means_that_adding_changed_nothing():
    traced = trace_sum([256.0, 1.0, 0.0, 2.0], "bf16")
    assert [partial.value for partial in traced] == [256, 256, 256, 258]
    assert [partial.swamped for partial in traced] == [False, True, False, False]


def test_several_products_between_two_roundings_are_summed_exactly():
    traced = trace_sum([256.0, 1.0, 1.0, 1.0], mp.Accumulator("bf16", every=2))
    assert [partial.value for partial in traced] == [256, 258]  # 257 ties to even, 258 is a value


def test_beyond_the_range_a_sum_stays_there():
    traced = trace_sum([40000.0, 40000.0, -80000.0], "fp16")
    assert [partial.value for partial in traced] == [40000, math.inf, math.inf]


def test_no_products_make_no_sums():
    assert trace_sum([], "fp32") == []


@pytest.mark.parametrize("products", [[math.inf], [math.nan], [Fraction(1, 3)], ["x"]])
def test_what_cannot_be_traced_is_refused_in_one_line(products):
    with pytest.raises(MatmulError, match="a trace needs"):
        trace_sum(products)


def test_an_accumulator_that_the_order_cannot_use_is_refused():
    with pytest.raises(MatmulError, match="every=8"):
        trace_sum([1.0], mp.Accumulator("bf16", every=8), "pairwise")
