"""Block formats: against the specification's examples, exact arithmetic, and the NumPy engine."""

import ml_dtypes
import numpy as np
import pytest

from mpcore.formats import BLOCK_FORMATS, FormatError, encode, get_format, round_to
from mpcore.formats.blocks import (
    SCALE_RULES,
    get_block_format,
    round_blocks,
    split_blocks,
)
from mpcore.scaling import quantize, scale_and_round

IN_ROWS = [name for name, f in BLOCK_FORMATS.items() if f.rows == 1]
MX = [name for name, f in BLOCK_FORMATS.items() if f.scale.name == "e8m0"]
DTYPES = {
    "mxfp8_e4m3": ml_dtypes.float8_e4m3fn,
    "mxfp8_e5m2": ml_dtypes.float8_e5m2,
    "mxfp6_e3m2": ml_dtypes.float6_e3m2fn,
    "mxfp6_e2m3": ml_dtypes.float6_e2m3fn,
    "mxfp4": ml_dtypes.float4_e2m1fn,
}


def samples(seed=0, shape=(64, 256)):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-30, 30, (shape[0], 1))
    x[rng.random(shape) < 0.05] = 0
    x[3] = 0
    return x.astype(np.float32)


@pytest.mark.parametrize("name", DTYPES)
def test_mx_elements_are_ml_dtypes_casts_under_the_scale_of_the_specification(name):
    f, x = BLOCK_FORMATS[name], samples()
    blocks = x.reshape(64, 8, 32).astype(np.float64)
    amax = np.abs(blocks).max(-1)
    emax = np.floor(np.log2(f.element.max))
    with np.errstate(divide="ignore"):
        exponent = np.where(amax > 0, np.floor(np.log2(amax)) - emax, -127)
    scale = 2.0 ** np.clip(exponent, -127, 127)
    quotients = np.clip(blocks / scale[..., None], -f.element.max, f.element.max)
    expected = quotients.astype(DTYPES[name]).astype(np.float64)
    found = split_blocks(x, f)
    assert np.array_equal(found.scales, scale)
    assert np.array_equal(found.elements, expected.reshape(64, 256))
    assert np.array_equal(round_blocks(x, f), (expected * scale[..., None]).reshape(64, 256))


def test_mxint8_elements_are_multiples_of_one_64th():
    x = samples(1)
    found = split_blocks(x, "mxint8")
    steps = found.elements * 64
    assert np.array_equal(steps, np.rint(steps)) and np.abs(steps).max() == 127
    amax = np.abs(x.reshape(64, 8, 32)).max(-1)
    some = amax > 0
    assert np.array_equal(np.log2(found.scales[some]), np.floor(np.log2(amax[some])))
    assert np.abs(found.joined() - x).max() <= (found.scales.max() / 64)


def test_nvfp4_has_two_levels_of_scales():
    x = samples(2)
    found = split_blocks(x, "nvfp4")
    tensor_scale = np.float32(np.abs(x).max() / np.float32(448 * 6))
    assert found.tensor_scale == tensor_scale
    amax = np.abs(x.reshape(64, 16, 16)).max(-1)
    wanted = (amax / np.float32(6) / tensor_scale).astype(ml_dtypes.float8_e4m3fn)
    assert np.array_equal(found.scales, wanted.astype(np.float32))
    scale = found.scales * tensor_scale
    with np.errstate(all="ignore"):
        quotients = np.where(scale[..., None] == 0, 0, x.reshape(64, 16, 16) / scale[..., None])
    expected = np.clip(quotients, -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert np.array_equal(found.elements, expected.reshape(64, 256))
    assert np.abs(found.elements).max() == 6


@pytest.mark.parametrize("name", IN_ROWS)
def test_the_kernel_equals_numpy_to_the_last_bit(name):
    for seed in range(3):
        x = samples(seed, (256, 320))
        if seed:
            x *= np.float32(2.0 ** (-110 if seed == 1 else 95))
        x[5, 7], x[6, 40], x[7, 100] = np.inf, -np.inf, np.nan
        x[9, :32], x[9, 0] = -0.0, -1e-45
        fast, slow = round_blocks(x, name), split_blocks(x, name).joined()
        assert np.array_equal(fast, slow, equal_nan=True)
        assert np.array_equal(np.signbit(fast[fast == 0]), np.signbit(slow[fast == 0]))
        assert np.isnan(fast[5, :16]).all() and not np.isnan(fast[4]).any()
        in_place = x.copy()
        assert round_blocks(in_place, name, out=in_place) is in_place
        assert np.array_equal(in_place, slow, equal_nan=True)


@pytest.mark.parametrize("rule", SCALE_RULES)
@pytest.mark.parametrize("name", IN_ROWS)
def test_no_value_moves_by_more_than_its_block_allows(name, rule):
    f, x = BLOCK_FORMATS[name], samples(4)
    if f.has_tensor_scale:  # 2**60 between the blocks is beyond its scales
        x = np.random.default_rng(4).standard_normal((64, 256)).astype(np.float32)
    once = round_blocks(x, f, rule)
    amax = np.abs(x.reshape(64, -1, f.block)).max(-1).repeat(f.block, -1).reshape(x.shape)
    assert np.all(np.abs(once - x) <= 0.26 * amax)
    if rule == "floor" and not f.has_tensor_scale:  # others may choose another scale next time
        assert np.array_equal(round_blocks(once, f, rule), once)


@pytest.mark.parametrize("name", MX)
def test_under_the_rule_ceil_nothing_saturates(name):
    f, x = BLOCK_FORMATS[name], samples(4)
    found = split_blocks(x, f, "ceil")
    steps = f.element.smallest * 2.0**f.step_exponent
    quotients = x.reshape(64, 8, 32) / found.scales[..., None]
    assert np.abs(quotients).max() <= f.max
    assert np.abs(quotients[np.abs(x.reshape(64, 8, 32)).max(-1) > 0]).max() > f.max / 2
    assert np.all(np.abs(found.elements) % steps == 0)


def test_the_last_block_may_be_shorter_and_other_axes_do_not_matter():
    x = samples(5, (6, 50))
    whole = round_blocks(x, "mxfp8")
    assert np.array_equal(whole[:, :32], round_blocks(x[:, :32], "mxfp8"))
    assert np.array_equal(whole[:, 32:], round_blocks(x[:, 32:], "mxfp8"))
    assert np.array_equal(round_blocks(x.reshape(2, 3, 50), "mxfp8").reshape(6, 50), whole)
    assert round_blocks(x[:0], "nvfp4").shape == (0, 50)
    assert round_blocks(x.astype(np.float64), "mxfp4").dtype == np.float64


def test_out_may_overlap_the_input():
    memory = samples(6, (64, 512)).reshape(-1)
    x, out = memory[: 1 << 14], memory[32 : 32 + (1 << 14)]
    expected = round_blocks(x.copy(), "mxfp8")
    assert np.array_equal(round_blocks(x, "mxfp8", out=out), expected)


def test_what_is_no_block_format_is_refused_in_one_line():
    with pytest.raises(FormatError, match='did you mean "mxfp8"'):
        get_block_format("mxfp7")
    with pytest.raises(FormatError, match='no scale rule is called "round"'):
        split_blocks(np.ones(32), "mxfp8", "round")
    with pytest.raises(FormatError, match="at least one axis"):
        split_blocks(np.float32(1), "mxfp8")
    assert get_block_format("MXFP8") is BLOCK_FORMATS["mxfp8_e4m3"]
    assert get_format("e8m0") is BLOCK_FORMATS["mxfp4"].scale
    assert BLOCK_FORMATS["nvfp4"].bits == 4.5 and round_to(0.3, "fp4") == 0.5


def test_blocks_of_rows_and_columns_share_an_fp32_scale():
    x = samples(7, (200, 300))
    found = split_blocks(x, "fp8_e4m3_block128")
    assert found.scales.shape == (2, 3) and found.tensor_scale == 1
    for row in range(2):
        for column in range(3):
            where = slice(128 * row, 128 * row + 128), slice(128 * column, 128 * column + 128)
            scale = np.abs(x[where]).max() / np.float32(448)
            assert found.scales[row, column] == scale
            assert np.array_equal(found.elements[where], round_to(x[where] / scale, "fp8_e4m3"))
            assert np.array_equal(found.joined()[where], found.elements[where] * scale)
    stack = split_blocks(np.stack([x, 2 * x]), "fp8_e4m3_block128")
    assert np.array_equal(stack.scales, np.stack([found.scales, 2 * found.scales]))
    one_row = split_blocks(x[0], "fp8_e4m3_block128")
    assert np.array_equal(one_row.joined(), split_blocks(x[:1], "fp8_e4m3_block128").joined()[0])


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_round_to_takes_block_formats(name):
    x = samples(8, (130, 160))
    assert np.array_equal(round_to(x, name), split_blocks(x, name).joined())
    out = np.empty_like(x)
    assert round_to(x, name.upper(), out=out) is out and np.array_equal(out, round_to(x, name))
    with pytest.raises(FormatError, match="=False only"):
        round_to(x, name, "toward_zero")
    with pytest.raises(FormatError, match="is a block format: its values need scales"):
        encode(x, name)


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_quantize_and_scaled_values_are_the_blocks_of_their_format(name):
    f, x = get_format(name), samples(9, (260, 160)).reshape(2, 130, 160)
    expected = round_to(x, f)
    q = quantize(x, f)
    assert np.array_equal(q.dequantize(), expected)
    assert np.array_equal(quantize(x, f.element, q.granularity).codes, q.codes)
    assert q.codes.shape == x.shape and q.format is f.element and not q.zero_points.any()
    scaled = scale_and_round(x[0], f, counts=True)
    assert np.array_equal(scaled.dequantize(), round_to(x[0], f))
    vanished = (scaled.values == 0) & (x[0] != 0)
    assert scaled.counts.underflow == vanished.sum() and scaled.counts.nan == 0
    if q.granularity == "nvfp4":  # requests side by side are tensors of their own
        apart = scale_and_round(x.reshape(260, 160), f, segments=[0, 130, 260])
        assert np.array_equal(apart.dequantize()[130:], round_to(x[1], f))
