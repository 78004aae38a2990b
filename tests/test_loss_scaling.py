"""Loss scaling: the rule of the scale, and what it does to a real training run."""

from dataclasses import fields, replace

import numpy as np
import pytest

from mpcore.errors import InputError
from mpcore.formats import get_format
from mpcore.scaling import LossScale, ScaleState, ScalingError
from mpcore.workloads import digits_training
from mpcore.workloads.digits_training import (
    TRAINING_IMAGES,
    TrainingSettings,
    batches,
    captured_gradient,
    digits,
    initial_weights,
    train,
    views,
)

RECORDED = ("loss", "scale", "overflowed", "underflow", "histogram", "accuracy", "weights")


def static(exponent):
    return LossScale(init=2.0**exponent, dynamic=False)


def same(one, other):
    return all(
        np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True)
        for name in RECORDED
    )


# ---- the rule


# Worked out by hand from the text of torch.amp.GradScaler: "." is a good step, "x" an overflow.
BY_HAND = [
    (LossScale(init=8.0, interval=3), "...x..x...", [8, 8, 16, 8, 8, 8, 4, 4, 4, 8]),
    (LossScale(init=8.0, interval=1), ".x.", [16, 8, 16]),
    (LossScale(init=8.0, interval=2, growth=3.0, backoff=0.25), "..x..", [8, 24, 6, 6, 18]),
    (LossScale(init=8.0, interval=1, dynamic=False), ".xx.", [8, 8, 8, 8]),
    (LossScale(init=2.0**127, interval=2), "...x", [2.0**127, 2.0**127, 2.0**127, 2.0**126]),
    (LossScale(init=2.0**-149), "x", [0]),
]


@pytest.mark.parametrize(("setting", "steps", "scales"), BY_HAND)
def test_the_scale_moves_as_worked_out_by_hand(setting, steps, scales):
    state, found = setting.start(), []
    for step in steps:
        state = setting.update(state, step == "x")
        found.append(state.scale)
    assert found == scales


def test_a_growth_that_fp32_cannot_hold_starts_the_count_again():
    setting = LossScale(init=2.0**127, interval=2)
    assert setting.update(ScaleState(2.0**127, 1), False) == (2.0**127, 0)


@pytest.mark.parametrize("setting", [LossScale(interval=3, growth=1.7, backoff=0.3)])
def test_the_scale_moves_as_in_torch(setting):
    torch = pytest.importorskip("torch", reason="torch is not installed: compared by hand only")
    state = setting.start()
    scale = torch.full((), setting.init)
    tracker = torch.zeros((), dtype=torch.int32)
    for overflowed in np.random.default_rng(0).random(500) < 0.1:
        state = setting.update(state, bool(overflowed))
        found_inf = torch.full((), float(overflowed))
        factors = setting.growth, setting.backoff, setting.interval
        torch._amp_update_scale_(scale, tracker, found_inf, *factors)
        assert state == (float(scale), int(tracker))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("init", 0.0),
        ("init", float("nan")),
        ("init", 1e-46),
        ("init", 3.4028236e38),
        ("init", 10**400),
        ("init", "65536"),
        ("growth", 1.0),
        ("growth", float("inf")),
        ("backoff", 1.0),
        ("backoff", 0),
        ("interval", 0),
        ("interval", 2.0),
        ("interval", True),
        ("dynamic", 1),
    ],
)
def test_a_loss_scale_out_of_range_is_one_line(name, value):
    with pytest.raises(ScalingError, match=f"loss scale: {name} = .*") as error:
        LossScale(**{name: value})
    assert "\n" not in str(error.value)


# ---- the training run


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("format", "fp17"),
        ("format", "int8"),
        ("format", "fp64"),
        ("format", "fp4_e2m1"),
        ("steps", 0),
        ("seed", -1),
        ("batch", 1438),
        ("hidden", [24]),
        ("hidden", (0,)),
        ("learning_rate", float("nan")),
        ("momentum", 1),
        ("loss_scale", 65536.0),
    ],
)
def test_a_training_setting_out_of_range_is_one_line(name, value):
    with pytest.raises(InputError, match=str(value).strip("([,])")) as error:
        TrainingSettings(**{name: value})
    assert "\n" not in str(error.value)


def test_a_step_before_the_first_is_one_line():
    with pytest.raises(InputError, match="step = -1 must be a whole number from 0"):
        captured_gradient(-1)


def test_the_images_are_the_uci_test_set():
    """Counts from UCI's optdigits.names; the first line of pixels as scikit-learn prints it."""
    images, labels = digits()
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert (images[0, :8] * 16).tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    assert images.shape == (1797, 64) and images.min() == 0 and images.max() == 1


def test_no_step_sees_a_held_out_image():
    order = batches(TrainingSettings())
    assert order.max() == TRAINING_IMAGES - 1
    assert len(set(order.reshape(-1)[:TRAINING_IMAGES])) == TRAINING_IMAGES  # a whole epoch


def loss_in_float64(layers, images, labels):
    """Mean cross-entropy, written once more, without any of the code under test."""
    values = images.astype(np.float64)
    for layer in layers[:-1]:
        values = np.maximum(values @ layer.T, 0)
    logits = values @ layers[-1].T
    return np.mean(np.logaddexp.reduce(logits, 1) - logits[np.arange(len(labels)), labels])


def test_the_gradient_of_the_oracle_is_that_of_finite_differences():
    settings = TrainingSettings(seed=3)
    weights = initial_weights(settings).astype(np.float64)
    chosen = batches(settings)[0]
    images, labels = digits()[0][chosen], digits()[1][chosen]
    found = captured_gradient(0, settings)[-weights.size :]

    def loss(index, by):
        moved = weights.copy()
        moved[index] += by
        return loss_in_float64(views(moved, settings.shapes), images, labels)

    rng = np.random.default_rng(0)
    for index in rng.choice(np.flatnonzero(found), 60, replace=False):
        slope = (loss(index, 1e-6) - loss(index, -1e-6)) / 2e-6
        assert found[index] == pytest.approx(slope, rel=1e-4, abs=1e-7)


def test_the_loss_is_that_of_the_weights_before_the_step():
    run = train(TrainingSettings(format="fp32", steps=1))
    chosen = batches(run.settings)[0]
    layers = views(initial_weights(run.settings).astype(np.float64), run.settings.shapes)
    exact = loss_in_float64(layers, digits()[0][chosen], digits()[1][chosen])
    assert run.loss[0] == pytest.approx(exact, rel=1e-6)


def test_a_captured_gradient_is_the_one_that_the_oracle_descends():
    before, after = (
        train(TrainingSettings(format="fp32", loss_scale=static(0), momentum=0.0, steps=n))
        for n in (5, 6)
    )
    gradient = captured_gradient(5, before.settings)
    assert gradient.dtype == np.float32
    assert gradient.size == 128 * (24 + 16 + 10) + before.weights.size
    descent = np.float32(before.settings.learning_rate) * gradient[-before.weights.size :]
    assert np.array_equal(after.weights, before.weights - descent)


def test_one_step_in_fp16_is_that_of_numpys_float16():
    """A network without hidden layers, so that the oracle is four lines."""
    settings = TrainingSettings(hidden=(), steps=1, loss_scale=static(-14))
    run, scale = train(settings), np.float32(2.0**-14)
    weights = initial_weights(settings).reshape(10, 64)
    chosen = batches(settings)[0]
    images, labels = digits()[0][chosen], digits()[1][chosen]

    logits = images @ weights.astype(np.float16).astype(np.float32).T
    powers = np.exp(logits - logits.max(1, keepdims=True))
    delta = (powers / powers.sum(1, keepdims=True) - np.eye(10, dtype=np.float32)[labels]) / 128
    true = np.concatenate([delta.reshape(-1), (delta.T @ images).reshape(-1)])
    delta16 = (delta * scale).astype(np.float16)
    gradient16 = (delta16.astype(np.float32).T @ images).astype(np.float16)
    rounded = np.concatenate([delta16.reshape(-1), gradient16.reshape(-1)])

    lost = np.mean(rounded[true != 0] == 0)
    assert 0.01 < lost == pytest.approx(run.underflow[0], abs=1e-3)
    moved = weights - np.float32(0.05) * (gradient16.astype(np.float32) / scale)
    np.testing.assert_allclose(run.weights, moved.reshape(-1), atol=1e-6)


def test_the_histogram_counts_binades():
    run = train(TrainingSettings(format="fp32", loss_scale=static(3), steps=2))
    values = np.abs(captured_gradient(1, run.settings).astype(np.float64)) * 8
    exponents = np.floor(np.log2(values[values > 0]))
    expected = [np.count_nonzero(exponents == e) for e in run.bin_exponents]
    assert run.histogram[1].tolist() == expected
    assert sum(expected) == exponents.size


def test_a_signal_that_vanishes_when_scaled_is_in_the_lowest_bin():
    true, rounded = np.full(3, 1e-20, np.float32), np.zeros(3, np.float32)
    for operations in (digits_training.REFERENCE, digits_training.compiled_operations()):
        counts = np.zeros(8, np.int32)
        assert operations.tally(true, rounded, np.float32(1e-45), -4, counts) == (3, 3)
        assert counts.tolist() == [3, 0, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(("exponent", "end"), [(-120, 0), (100, -1)])
def test_what_lies_beyond_the_bins_is_in_the_outermost(exponent, end):
    run = train(TrainingSettings(format="fp32", loss_scale=static(exponent), steps=1))
    assert run.histogram[0, end] == run.histogram.sum() > 0


# ---- exactness


def test_a_run_is_the_same_bit_by_bit_when_run_again():
    settings = TrainingSettings(format="fp32", steps=40)
    assert same(train(settings), train(settings))


@pytest.mark.parametrize("exponent", [0.0, 11.55, 20.0])  # 11.55: not a power of two
@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16", "fp8_e5m2", "fp8_e4m3", "fp8_e4m3fnuz"])
def test_the_compiled_run_equals_the_reference(name, exponent):
    scale = LossScale(init=2.0**exponent, interval=2)
    settings = TrainingSettings(format=name, loss_scale=scale, steps=5, batch=30, hidden=(9, 7))
    assert digits_training.compiled_operations() is not None
    assert same(train(settings), train(settings, reference=True))


def test_everything_works_without_numba(monkeypatch):
    settings = TrainingSettings(steps=3)
    compiled = train(settings)
    monkeypatch.setattr("mpcore.compiled.kernels", lambda module: None)
    digits_training.compiled_operations.cache_clear()
    try:
        assert digits_training.compiled_operations() is None
        assert same(train(settings), compiled)
    finally:
        digits_training.compiled_operations.cache_clear()


def test_a_power_of_two_changes_nothing_while_all_signals_are_normal_in_fp16():
    low, high = (train(TrainingSettings(steps=6, loss_scale=static(k))) for k in (14, 16))
    f = get_format("fp16")
    for run in (low, high):
        used = run.bin_exponents[run.histogram.any(0)]
        assert 2.0 ** used.min() >= f.smallest_normal  # what the claim presupposes
        assert not run.overflowed.any()
    assert np.array_equal(low.loss, high.loss)
    assert np.array_equal(low.weights, high.weights)


def test_bf16_needs_no_loss_scale():
    one, large = (train(TrainingSettings(format="bf16", loss_scale=static(k))) for k in (0, 20))
    assert np.array_equal(one.weights, large.weights)
    # Not underflow: rounded terms that cancel where the true ones do so only nearly.
    assert np.array_equal(one.underflow, large.underflow)
    assert one.underflow.max() < 1e-3


# ---- what loss scaling is for


@pytest.mark.parametrize(
    ("name", "exponents"),
    [("fp16", (0, 3, 6, 9, 12, 15)), ("fp8_e5m2", (0, 3, 6, 9, 12)), ("fp8_e4m3", (0, 3, 6))],
)
def test_underflow_falls_as_the_scale_rises_until_it_overflows(name, exponents):
    runs = [train(TrainingSettings(format=name, loss_scale=static(k))) for k in exponents]
    shares = [run.underflow.mean() for run in runs]
    assert not any(run.overflowed.any() for run in runs)
    assert all(np.diff(shares) < 0)
    beyond = train(TrainingSettings(format=name, loss_scale=static(40), steps=4))
    assert beyond.overflowed.all()


def test_unscaled_fp16_loses_gradients_that_a_scale_keeps():
    unscaled, scaled = (train(TrainingSettings(loss_scale=static(k))) for k in (0, 16))
    assert unscaled.underflow[-20:].mean() > 0.05
    assert scaled.underflow[-20:].mean() < unscaled.underflow[-20:].mean() / 5


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_unscaled_e4m3_fails_to_learn_what_scaled_e4m3_learns(seed):
    oracle = train(TrainingSettings(format="fp32", seed=seed)).loss[-20:].mean()
    runs = [
        train(TrainingSettings(format="fp8_e4m3", loss_scale=static(k), seed=seed)) for k in (0, 7)
    ]
    unscaled, scaled = (run.loss[-20:].mean() for run in runs)
    assert unscaled > 5 * oracle
    assert scaled < 1.3 * oracle


def test_a_scale_that_is_too_high_is_found_out_step_by_step():
    run = train(TrainingSettings(loss_scale=LossScale(init=2.0**24, interval=20)))
    first = int(np.argmin(run.overflowed))  # the first step that was made
    assert first > 3
    assert run.scale[: first + 1].tolist() == [2.0 ** (24 - k) for k in range(first + 1)]
    assert run.accuracy > 0.85


def test_a_skipped_step_leaves_the_weights_alone():
    settings = TrainingSettings(loss_scale=static(40), steps=3)
    run = train(settings)
    assert run.overflowed.all()
    assert np.array_equal(run.weights, initial_weights(settings))


def test_a_run_holds_what_its_description_says():
    run = train(replace(TrainingSettings(), steps=2))
    assert {field.name for field in fields(run)} >= {*RECORDED, "settings", "bin_exponents"}
    for name in ("loss", "scale", "underflow"):
        assert getattr(run, name).shape == (2,) and getattr(run, name).dtype == np.float32
    assert run.overflowed.dtype == bool
    assert run.histogram.shape == (2, run.bin_exponents.size)
    assert (run.bin_exponents[0], run.bin_exponents[-1]) == (-61, 40)
    assert isinstance(run.accuracy, float)
