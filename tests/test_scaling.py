"""Scaling: who shares a scale, what the scale is, and what comes back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpcore.formats import FormatError, decode, get_format, round_to
from mpcore.scaling import ScalingError, partition, quantize, scale_and_round, scaled

GRANULARITIES = ["per_tensor", "per_token", "per_channel", "per_block:1x32", "per_block:64x48"]


def q8(x, axis):
    """Symmetric int8 by absmax, in one line: the outside oracle."""
    scale = np.abs(x).max(axis, keepdims=True) / 127
    return np.clip(np.rint(x / scale), -127, 127), scale


def decibel(exact, found, axis=None):
    return 10 * np.log10((exact**2).sum(axis) / ((exact - found) ** 2).sum(axis))


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(160, 200)).astype(np.float32)


# ---- quantize


@pytest.mark.parametrize(
    ("granularity", "axis", "reduced", "shape"),
    [
        ("per_tensor", 0, None, (1, 1)),
        ("per_channel", 0, 1, (160, 1)),
        ("per_channel", 1, 0, (1, 200)),
        ("per_channel", -1, 0, (1, 200)),
        ("per_token", 0, 1, (160, 1)),
    ],
)
def test_int8_equals_absmax_and_keeps_the_axis(x, granularity, axis, reduced, shape):
    q = quantize(x, "int8", granularity, axis)
    values, scale = q8(x, reduced)
    assert q.scales.shape == q.zero_points.shape == shape
    assert q.codes.dtype == np.uint8
    assert np.array_equal(q.codes.view(np.int8), values)
    assert np.allclose(q.scales, scale, rtol=1e-6)
    assert np.array_equal(q.dequantize(), (values * q.scales).astype(np.float32))
    assert not q.zero_points.any()


def test_blocks_have_their_own_scale_and_ragged_ends_count(x):
    q = quantize(x, "fp8_e4m3", "per_block:64x128")
    assert q.scales.shape == (3, 2)
    for i, rows in enumerate((slice(0, 64), slice(64, 128), slice(128, 160))):
        for j, columns in enumerate((slice(0, 128), slice(128, 200))):
            part, scale = x[rows, columns], q.scales[i, j]
            assert scale == np.abs(part).max() / np.float32(448)
            expected = round_to(part / scale, "fp8_e4m3")
            assert np.array_equal(decode(q.codes, "fp8_e4m3")[rows, columns], expected)
            assert np.array_equal(q.dequantize()[rows, columns], expected * scale)


def test_block_of_n_is_one_row_of_n(x):
    a, b = quantize(x, "int8", "per_block:32"), quantize(x, "int8", "per_block:1x32")
    assert a.scales.shape == (160, 7)
    assert np.array_equal(a.codes, b.codes)


@pytest.mark.parametrize("f", ["uint8", "int8", "int4"])
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_zero_points_cover_the_range_and_keep_zero(x, f, granularity):
    shifted = np.where(np.abs(x) < 0.1, 0, x + 3)
    q = quantize(shifted, f, granularity, symmetric=False)
    per_value = q.layout.blocks.spread(q.scales.reshape(q.layout.blocks.grid))
    per_value = q.layout.tensor(np.broadcast_to(per_value, q.layout.blocks.shape))
    error = np.abs(q.dequantize() - shifted)
    assert np.all(error <= 1.01 * per_value / 2 + 1e-6)
    assert np.all(q.dequantize()[shifted == 0] == 0)
    codes = decode(q.codes, f)
    assert codes.min() <= get_format(f).min + 1  # the rounded zero point may shift the ends
    assert codes.max() >= get_format(f).max - 1
    assert q.zero_points.any()


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_error_is_at_most_half_a_step_for_any_shape(data):
    shape = data.draw(st.lists(st.integers(0, 6), max_size=4).map(tuple))
    granularity = data.draw(st.sampled_from([*GRANULARITIES, "per_block:2x3"]))
    symmetric = data.draw(st.booleans())
    axis = data.draw(st.integers(0, max(0, len(shape) - 1)))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = rng.normal(size=shape) * 10.0 ** rng.integers(-30, 30)
    before = x.copy()
    q = quantize(x, "int8", granularity, axis, symmetric)
    back = q.dequantize()
    assert back.shape == q.codes.shape == x.shape
    assert back.dtype == q.scales.dtype == np.float64
    largest = np.abs(x).max(initial=0.0)
    assert np.all(np.abs(back - x) <= largest / 127 * 0.51 * (1 if symmetric else 2))
    assert np.array_equal(x, before)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("symmetric", [True, False])
def test_int32_codes_are_finer_than_float32_and_do_not_overflow(dtype, symmetric):
    x = np.array([[-3, -1, 0.1, 5], [0, 0.3, 1, 2], [-2, -1, -0.7, 0]], dtype)
    q = quantize(x, "int32", "per_token", symmetric=symmetric)
    codes = q.codes.astype(np.uint32).view(np.int32)
    assert np.array_equal(codes.argsort(axis=1), np.tile(np.arange(4), (3, 1)))
    step = np.abs(x).max(axis=1, keepdims=True) / 2**31 * (1 if symmetric else 2)
    last = 2 * np.finfo(dtype).eps * np.abs(x)
    assert np.all(np.abs(q.dequantize() - x) <= 0.51 * step + last)


def test_all_zero_groups_have_scale_one(x):
    x[3] = 0
    for symmetric in (True, False):
        q = quantize(x, "int8", "per_channel", symmetric=symmetric)
        assert q.scales[3] == 1
        assert not q.dequantize()[3].any()
        assert (q.scales[:3] < 1).all()
    assert quantize(np.zeros((2, 0)), "int8", "per_token").scales.tolist() == [[1], [1]]


def test_tiny_groups_do_not_divide_by_zero():
    x = np.array([[1e-44, -3e-45], [1e30, 1.0]], np.float32)
    q = quantize(x, "int8", "per_token")
    assert np.isfinite(q.dequantize()).all()
    assert np.all(q.scales >= np.finfo(np.float32).tiny)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_quantize_refuses_values_that_are_not_finite(x, bad):
    x[2, 5] = bad
    with pytest.raises(ScalingError, match=r"at index \(2, 5\): quantize needs finite values"):
        quantize(x, "int8")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"granularity": "per_row"}, "no granularity is called 'per_row'; valid are per_tensor"),
        ({"granularity": "per_block:0x8"}, "R and C at least 1"),
        ({"granularity": 3}, "no granularity is called"),
        ({"granularity": "nvfp4"}, '"nvfp4" takes fp4_e2m1, not int8'),
        ({"granularity": "mx", "symmetric": False}, '"mx" has no zero points'),
        ({"f": "nvfp4", "granularity": "mx"}, "nvfp4 has its own scales, nvfp4; granularity 'mx'"),
        ({"axis": 2}, r"axis 2 does not exist in an array of shape \(160, 200\)"),
        ({"f": "uint8"}, "uint8 has no negative values; use symmetric=False"),
        ({"f": "fp16", "symmetric": False}, "fp16 is not an integer format"),
    ],
)
def test_unusable_requests_are_refused_in_one_line(x, arguments, said):
    with pytest.raises(ScalingError, match=said) as caught:
        quantize(x, **({"f": "int8"} | arguments))
    assert "\n" not in str(caught.value)
    with pytest.raises(FormatError):
        quantize(x, "int7.5")


# ---- scale_and_round


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("f", ["int8", "fp8_e4m3", "fp4_e2m1"])
def test_compiled_and_numpy_passes_agree(x, f, granularity, monkeypatch):
    pytest.importorskip("numba")
    x[5, 7], x[50], x[100, 3] = np.nan, 0, np.inf
    segments = np.array([0, 10, 10, 90, 160])
    compiled = scale_and_round(x, f, granularity, segments, counts=True)
    monkeypatch.setattr(scaled, "compiled_kernels", lambda: None)
    plain = scale_and_round(x, f, granularity, segments, counts=True)
    assert np.array_equal(compiled.values, plain.values, equal_nan=True)
    assert np.array_equal(compiled.scales, plain.scales, equal_nan=True)
    assert compiled.counts == plain.counts
    assert compiled.counts.nan > 0 < compiled.counts.inexact


def test_each_segment_is_a_tensor_of_its_own(x):
    offsets = [0, 1, 40, 40, 160]
    together = scale_and_round(x, "int8", "per_tensor", offsets)
    assert together.scales.shape == (4, 1)
    assert together.row_scales.shape == (160, 1)
    for start, stop in ((0, 1), (1, 40), (40, 160)):
        alone = scale_and_round(x[start:stop].copy(), "int8")
        assert np.array_equal(together.values[start:stop], alone.values)
        assert np.all(together.row_scales[start:stop] == alone.scales)
    assert np.array_equal(together.dequantize(), together.values * together.row_scales)


def test_blocks_of_rows_stop_at_segments():
    blocks = partition((10, 4), "per_block:4x4", [0, 5, 10])
    assert blocks.row_starts.tolist() == [0, 4, 5, 9, 10]


def test_values_times_scales_are_what_quantize_gives(x):
    for granularity in ("per_tensor", "per_token", "per_block:64x48"):
        plain = scale_and_round(x, "fp8_e4m3", granularity)
        assert np.array_equal(plain.dequantize(), quantize(x, "fp8_e4m3", granularity).dequantize())
        assert plain.values.dtype == plain.scales.dtype == np.float32


def test_a_block_with_infinity_or_nan_is_nan_and_others_are_not(x):
    x[3, 4], x[9, 9] = np.inf, np.nan
    result = scale_and_round(x, "int8", "per_token", counts=True)
    lost = np.isnan(result.values).all(axis=1)
    assert np.flatnonzero(lost).tolist() == [3, 9]
    assert np.isnan(result.scales[[3, 9], 0]).all()
    assert not np.isnan(result.values[~lost]).any()
    assert result.counts.nan == 400


def test_given_scales_saturate_and_are_counted():
    x = np.random.default_rng(8).uniform(-1, 1, (100, 100))
    scale = np.abs(x).max() / 448
    for dtype in (np.float32, np.float64):
        fits = scale_and_round(x.astype(dtype), "fp8_e4m3", counts=True)
        assert (fits.counts.saturation, fits.counts.overflow) == (0, 0)
        shifted = scale_and_round(
            8 * x.astype(dtype), "fp8_e4m3", scales=scale, counts=True
        )  # case 8
        assert round(shifted.counts.incidence("saturation"), 3) == 0.866
        error = np.linalg.norm(shifted.dequantize() - 8 * x) / np.linalg.norm(8 * x)
        assert round(error, 3) == 0.817
        assert np.abs(shifted.values).max() == 448


@pytest.mark.parametrize("rows", [2, 5000])  # NumPy, and the compiled kernel
def test_symmetric_int8_never_uses_minus_128(rows):
    x = np.tile(np.float32([-1000, -127.9, 127.2, 1000]), (rows, 1))
    result = scale_and_round(x, "int8", scales=1.0, counts=True)
    assert np.array_equal(result.values, np.tile([-127, -127, 127, 127], (rows, 1)))
    assert result.counts.saturation == 4 * rows


def test_input_is_unchanged_whatever_its_layout_and_out_is_used(x):
    expected = scale_and_round(x, "int8", "per_token").values
    wide = np.zeros((160, 400), np.float32)
    wide[:, ::2] = x
    read_only = x.copy()
    read_only.flags.writeable = False
    for source in (wide[:, ::2], read_only, np.asfortranarray(x)):
        before = source.copy()
        assert np.array_equal(scale_and_round(source, "int8", "per_token").values, expected)
        assert np.array_equal(source, before)
    assert scale_and_round(x, "int8", "per_token", out=x).values is x
    assert np.array_equal(x, expected)


def test_unusable_matrices_scales_and_segments_are_refused(x):
    for arguments, said in (
        ({"segments": [0, 100]}, "rise from 0 to 160"),
        ({"segments": [0, 90, 80, 160]}, "rise from 0 to 160"),
        ({"scales": [[1, 2]]}, r"do not broadcast to \(1, 1\)"),
        ({"scales": 0.0}, "positive"),
        ({"rounding": "stochastic"}, "stochastic"),
        ({"f": "uint8"}, "no negative values"),
    ):
        with pytest.raises(ScalingError, match=said):
            scale_and_round(x, **({"f": "int8"} | arguments))
    with pytest.raises(ScalingError, match=r"matrix is needed, not shape \(160,\)"):
        scale_and_round(x[:, 0], "int8")


# ---- public cases


def test_case_10_activation_outliers_break_int8_per_tensor():
    rng = np.random.default_rng(10)
    x = rng.normal(size=(64, 512))
    x[:, 7] *= 100
    w = rng.normal(size=(512, 64)) * 0.05
    exact = x @ w

    def weights(w):
        return quantize(w, "int8", "per_channel", axis=1).dequantize()

    per_tensor = quantize(x, "int8", "per_tensor").dequantize()
    per_token = quantize(x, "int8", "per_token").dequantize()
    assert round(decibel(exact, per_tensor @ weights(w)), 2) == 16.95
    assert round(decibel(exact, per_token @ weights(w)), 2) == 25.45
    assert round(100 * np.mean(np.delete(per_tensor, 7, axis=1) == 0), 1) == 74.8

    smooth = np.sqrt(np.abs(x).max(0) / np.abs(w).max(1))  # SmoothQuant, alpha = 0.5
    smoothed = quantize(x / smooth, "int8", "per_tensor").dequantize()
    assert round(decibel(exact, smoothed @ weights(w * smooth[:, None])), 2) == 35.55

    others = quantize(np.delete(x, 7, axis=1), "int8", "per_tensor").dequantize()
    kept = np.outer(x[:, 7], w[7])  # column 7 exact
    assert round(decibel(exact, others @ weights(np.delete(w, 7, axis=0)) + kept), 2) == 51.60


def test_case_11_per_tensor_weights_lose_whole_channels():
    rng = np.random.default_rng(11)
    w = rng.normal(size=(16, 256)) * 2.0 ** -np.arange(16)[:, None]
    x = rng.normal(size=(256, 64))
    per_tensor = quantize(w, "int8", "per_tensor").dequantize()
    assert np.count_nonzero(~per_tensor.any(axis=1)) == 7
    per_channel = quantize(w, "int8", "per_channel", axis=0).dequantize()
    assert round(decibel(w @ x, per_channel @ x, axis=1).min(), 2) == 40.61


def test_a_format_beyond_float32_has_scales_in_float64():
    x = np.array([[1e3, 3], [2, 5]], np.float32)
    for fmt in ("fp64", "e11m4"):
        found = quantize(x, fmt, granularity="per_tensor").dequantize()
        np.testing.assert_allclose(found, x, rtol=2**-4)
        assert np.isfinite(found).all()


@pytest.mark.parametrize("axis", [None, 1.0, "0", (0,), 2])
def test_an_axis_that_is_none_is_refused(axis):
    with pytest.raises(ScalingError, match="axis"):
        quantize(np.ones((2, 2)), "int8", granularity="per_channel", axis=axis)


@pytest.mark.parametrize(
    "name", ["per_block:" + "9" * 5000, "per_block:2x3\n", "per_block:\u0663", "per_block:0x1"]
)
def test_an_odd_granularity_is_refused_in_one_line(name):
    with pytest.raises(ScalingError) as caught:
        quantize(np.ones((2, 2)), "int8", granularity=name)
    assert "\n" not in str(caught.value)
