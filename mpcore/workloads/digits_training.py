"""A small real training run in low precision: handwritten digits, a multilayer perceptron, SGD.

Weights, activations and every backward signal are rounded to one format, products are accumulated
in float32, and the loss is scaled. It shows what a loss scale does to gradients that a format
cannot hold, fast enough to be run again at every move of a slider.

`Trainer` is the part to read. Its arithmetic comes in two versions with the same results, bit by
bit: `REFERENCE` in NumPy, and `digits_kernel.py`, compiled.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.util import find_spec
from itertools import pairwise
from numbers import Integral, Real
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mpcore import compiled
from mpcore.errors import InputError
from mpcore.formats import FORMATS, get_element_format, round_to
from mpcore.formats.rounding import kernel_parameters
from mpcore.scaling import LossScale

PIXELS, CLASSES = 64, 10
TRAINING_IMAGES = 1437  # of 1797; the others, 20 % and the last in the file, are held out
LOWEST, HIGHEST = -61, 40  # first and last bin of the histogram


class TrainingError(InputError):
    """A setting with which no training run can be made, or the data set is missing."""


@dataclass(frozen=True)
class TrainingSettings:
    """One training run. The same settings give the same run, bit by bit.

    Raises:
        TrainingError: a setting that is not in its range.
        FormatError: no format has that name.
    """

    format: str = "fp16"  # of weights, activations and backward signals; "fp32" is the oracle
    loss_scale: LossScale = field(default_factory=LossScale)
    steps: int = 150  # optimizer steps, skipped ones included
    seed: int = 0  # of the initial weights and of the order of the images
    batch: int = 128  # images per step; the loss is their mean
    hidden: tuple = (24, 16)  # widths of the hidden layers
    learning_rate: float = 0.05
    momentum: float = 0.9

    def __post_init__(self):
        for name, low, high in (
            ("steps", 1, 100_000),
            ("seed", 0, 2**32 - 1),
            ("batch", 1, TRAINING_IMAGES),
        ):
            _check_whole(name, getattr(self, name), low, high)
        if not isinstance(self.hidden, tuple) or len(self.hidden) > 8:
            raise TrainingError(f"hidden = {self.hidden!r} must be a tuple of at most 8 widths")
        for width in self.hidden:
            _check_whole("hidden width", width, 1, 1024)
        for name, high in (("learning_rate", 100.0), ("momentum", 1.0)):
            value = getattr(self, name)
            number = isinstance(value, Real) and not isinstance(value, bool)
            if not (number and 0 <= value < high):
                raise TrainingError(f"{name} = {value!r} must be a number from 0 to below {high:g}")
        if not isinstance(self.loss_scale, LossScale):
            raise TrainingError(f"loss_scale = {self.loss_scale!r} must be a LossScale")
        f = get_element_format(self.format)
        if not trainable(f):
            names = ", ".join(name for name in FORMATS if trainable(FORMATS[name]))
            raise TrainingError(
                f"format = {f.name!r} has no infinity or NaN that would show an overflow, or is "
                f"wider than float32; valid are {names}"
            )

    @property
    def shapes(self):
        """(outputs, inputs) of every layer's weights, as in PyTorch."""
        return [(m, n) for n, m in pairwise((PIXELS, *self.hidden, CLASSES))]


def _check_whole(name, value, low, high):
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or not low <= value <= high:
        raise TrainingError(f"{name} = {value!r} must be a whole number from {low} to {high}")


def trainable(f):
    """Whether the format can carry a scaled run: a float with infinity or NaN, within float32."""
    return f.kind == "float" and f.is_signed and f.has_nan and f.fits_float32


@dataclass(frozen=True)
class TrainingRun:
    """What one training run left behind. "Backward signals" are the gradients of the loss at the
    logits and at every hidden layer [batch, width], and at every weight; inputs have none.
    """

    settings: TrainingSettings
    loss: np.ndarray  # float32 [steps]: mean cross-entropy of the batch in nats, before the step
    scale: np.ndarray  # float32 [steps]: the loss scale of the step
    overflowed: np.ndarray  # bool [steps]: a gradient was infinite or NaN, the step was skipped
    underflow: np.ndarray  # float32 [steps]: of the true backward signals other than zero, the
    # share that is zero in the format. "True" = float32 backward from the same rounded forward;
    # a value also counts as lost where an earlier signal that it depends on was, or where rounded
    # terms cancel that nearly cancel unrounded (in bf16, which never underflows here: below 0.1 %).
    # Infinite and NaN values are not lost: a skipped step says little here.
    histogram: np.ndarray  # int32 [steps, bins]: true backward signals × scale, per binade
    bin_exponents: np.ndarray  # int64 [bins]: a bin e holds 2**e <= |value| < 2**(e + 1); the
    # first one all that is smaller than that too (but not zero), the last one all that is larger
    accuracy: float  # 0..1, on the 360 held-out images, with weights and activations in the format
    weights: np.ndarray  # float32, flat: the master weights after the last step


# Overflow is what a run is about, and recorded.
quietly = np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore")


@quietly
def train(settings, reference=False):
    """Train once.

    Args:
        settings: `TrainingSettings`.
        reference: whether to use the readable NumPy arithmetic even where the compiled one works.

    Raises:
        TrainingError: scikit-learn, which brings the digits, is not installed.
    """
    trainer = Trainer(settings, REFERENCE if reference else compiled_operations() or REFERENCE)
    state = settings.loss_scale.start()
    loss, scale, underflow = np.zeros((3, settings.steps), np.float32)
    overflowed = np.zeros(settings.steps, bool)
    bins = np.arange(LOWEST, HIGHEST + 1)
    histogram = np.zeros((settings.steps, bins.size), np.int32)
    for step in range(settings.steps):
        scale[step] = state.scale
        loss[step] = trainer.backward(step, scale[step])
        underflow[step] = trainer.count(scale[step], histogram[step])
        overflowed[step] = not trainer.update(scale[step])
        state = settings.loss_scale.update(state, overflowed[step])
    accuracy = trainer.accuracy()
    return TrainingRun(
        settings, loss, scale, overflowed, underflow, histogram, bins, accuracy, trainer.weights
    )


@lru_cache(maxsize=64)  # 75 kB each
def trained(format: str, loss_scale: LossScale) -> TrainingRun:
    """`train` with everything else by default; the run is kept, for whoever asks again."""
    return train(TrainingSettings(format=format, loss_scale=loss_scale))


@quietly
def captured_gradient(step=100, settings=None):
    """The true backward signals of one step of the float32 oracle, as real data for histograms.

    Args:
        step: how many optimizer steps were made before, 0 or more.
        settings: `TrainingSettings`, of which format, loss scale and steps are replaced.

    Returns:
        float32, flat: the gradient at each hidden layer [batch, width], at the logits [batch, 10],
        then at the weights [outputs, inputs] of every layer from the first on. Exact zeros (units
        that ReLU switched off) are in it.

    Raises:
        TrainingError: as `TrainingSettings` and `train`.
    """
    _check_whole("step", step, 0, 99_999)
    oracle = LossScale(init=1.0, dynamic=False)
    settings = settings or TrainingSettings()
    settings = replace(settings, format="fp32", loss_scale=oracle, steps=step + 1)
    trainer = Trainer(settings, compiled_operations() or REFERENCE)
    for earlier in range(step):
        trainer.backward(earlier, np.float32(1))
        trainer.update(np.float32(1))
    trainer.backward(step, np.float32(1))
    return trainer.true.flat


class Signals:
    """All backward signals of one step in one flat float32 array, and views of its parts."""

    def __init__(self, settings):
        shapes = settings.shapes
        outputs = [(settings.batch, rows) for rows, _ in shapes]
        self.flat = np.zeros(sum(rows * columns for rows, columns in outputs + shapes), np.float32)
        parts = views(self.flat, outputs + shapes)
        self.deltas = parts[: len(shapes)]  # per layer: the gradient at its output
        self.gradients = parts[len(shapes) :]  # per layer: the gradient at its weights
        self.flat_gradients = self.flat[-sum(part.size for part in self.gradients) :]


class Trainer:
    """Forward, backward and update, with master weights and momentum in float32."""

    def __init__(self, settings, operations):
        self.settings, self.matmul = settings, operations.matmul
        self.tally, self.round = (
            operations.tally,
            operations.rounder(get_element_format(settings.format)),
        )
        images, self.labels = digits()
        self.images = images.copy()
        self.round(self.images.reshape(-1))
        self.order = batches(settings)
        self.weights = initial_weights(settings)
        self.velocity = np.zeros_like(self.weights)
        self.rounded_weights = np.empty_like(self.weights)
        self.layers = views(self.rounded_weights, settings.shapes)
        self.scaled, self.true = Signals(settings), Signals(settings)

    def forward(self, images):
        """The inputs of every layer, and the logits [images, 10], which stay in float32."""
        self.rounded_weights[:] = self.weights
        self.round(self.rounded_weights)
        inputs = [images]
        for layer in self.layers:
            output = np.empty((len(images), len(layer)), np.float32)
            self.matmul(inputs[-1], np.ascontiguousarray(layer.T), output)
            if layer is not self.layers[-1]:
                np.maximum(output, 0, out=output)
                self.round(output.reshape(-1))
                inputs.append(output)
        return inputs, output

    def backward(self, step, scale):
        """Fill `scaled` (in the format) and `true` (float32, scale 1); returns the loss."""
        chosen = self.order[step]
        inputs, logits = self.forward(self.images.take(chosen, axis=0))
        loss, gradient = cross_entropy(logits, self.labels[chosen])
        relu_slopes = [None, *((values > 0).astype(np.float32) for values in inputs[1:])]
        for signals, factor, rounding in (
            (self.scaled, np.float64(scale), self.round),
            (self.true, 1.0, lambda flat: None),
        ):
            signals.deltas[-1][:] = gradient * factor
            for i in reversed(range(len(self.layers))):
                delta = signals.deltas[i]
                rounding(delta.reshape(-1))
                self.matmul(delta.T, inputs[i], signals.gradients[i])
                if i > 0:
                    self.matmul(delta, self.layers[i], signals.deltas[i - 1])
                    signals.deltas[i - 1] *= relu_slopes[i]
            rounding(signals.flat_gradients)
        return loss

    def count(self, scale, counts):
        """Fill a row of the histogram; returns the underflow share."""
        lost, nonzero = self.tally(self.true.flat, self.scaled.flat, scale, LOWEST, counts)
        return lost / max(nonzero, 1)

    def update(self, scale):
        """Unscale and make the optimizer step; False where an overflow forbids it.

        As `GradScaler.step` does: one infinite or NaN gradient, and the whole step is skipped.
        """
        gradient = self.scaled.flat_gradients * np.float32(1 / np.float64(scale))
        if not np.isfinite(gradient).all():
            return False
        self.velocity *= np.float32(self.settings.momentum)
        self.velocity += gradient
        self.weights -= np.float32(self.settings.learning_rate) * self.velocity
        return True

    def accuracy(self):
        """Share of the held-out images whose largest logit is at the right digit."""
        _, logits = self.forward(self.images[TRAINING_IMAGES:])
        return float(np.mean(logits.argmax(1) == self.labels[TRAINING_IMAGES:]))


def cross_entropy(logits, labels):
    """Mean cross-entropy in nats, and its gradient [images, 10]; both float64.

    In float64, since exp and log differ in their last bit from processor to processor; rounded to
    float32 afterwards, the results all but never do.
    """
    by_class = np.ascontiguousarray(logits.T, np.float64)  # sums over the first axis are fast
    by_class -= by_class.max(0)
    images = np.arange(len(labels))
    at_label = by_class[labels, images]
    powers = np.exp(by_class)
    totals = powers.sum(0)
    gradient = powers / totals
    gradient[labels, images] -= 1
    gradient /= len(labels)
    return (np.log(totals) - at_label).sum() / len(labels), gradient.T


def initial_weights(settings):
    """Flat float32 weights of all layers: normal with variance 2 / inputs (He et al. 2015)."""
    rng = np.random.default_rng([settings.seed, 0])
    parts = [rng.standard_normal(m * n) * np.sqrt(2 / n) for m, n in settings.shapes]
    return np.concatenate(parts).astype(np.float32)


def batches(settings):
    """int64 [steps, batch]: which images each step sees, one shuffled epoch after the other."""
    rng, wanted = np.random.default_rng([settings.seed, 1]), settings.steps * settings.batch
    epochs = [rng.permutation(TRAINING_IMAGES) for _ in range(-(-wanted // TRAINING_IMAGES))]
    return np.concatenate(epochs)[:wanted].reshape(settings.steps, settings.batch)


def views(flat, shapes):
    """The parts of a flat array that have these shapes, one after the other, without a copy."""
    ends = np.cumsum([0, *(rows * columns for rows, columns in shapes)])
    return [flat[a:b].reshape(s) for (a, b), s in zip(pairwise(ends), shapes, strict=True)]


@lru_cache(maxsize=1)
def digits():
    """The 1797 images, float32 [1797, 64] from 0 to 1, and their digits, int64 [1797].

    The UCI optical recognition test set, from the file inside scikit-learn that `load_digits`
    reads. Importing scikit-learn for that would take 1.5 s, reading the file takes 0.1 s.
    """
    package = find_spec("sklearn")
    path = Path(package.origin).parent / "datasets/data/digits.csv.gz" if package else None
    if path is None or not path.is_file():
        raise TrainingError("digits: scikit-learn brings them and is missing; pip install it")
    table = np.loadtxt(path, delimiter=",")
    return (table[:, :-1] / 16).astype(np.float32), table[:, -1].astype(np.int64)


# ---- arithmetic


class Operations(NamedTuple):
    """The three things that take time."""

    matmul: Callable  # (a, b, out): out = a @ b in float32, k ascending
    rounder: Callable  # (format): a function that rounds a flat array in place
    tally: Callable  # (true, rounded, scale, lowest, counts): (lost, not zero), and counts


def overflow_behaviour(f):
    """Overflow must be seen by the check for infinity and NaN, so it never saturates."""
    return "infinity" if f.has_infinity else "nan"


def reference_matmul(a, b, out):
    """out[m, n] = a[m, k] @ b[k, n] in float32, k ascending, each product and sum rounded."""
    out[:] = 0
    for k in range(b.shape[0]):
        out += a[:, k : k + 1] * b[k]


def reference_rounder(f):
    """A function that rounds a flat float32 array to the format, in place."""
    return lambda flat: round_to(flat, f, overflow=overflow_behaviour(f), out=flat)


def reference_tally(true, rounded, scale, lowest, counts):
    """Counts |true · scale| per binade; returns (values that rounding lost, values not zero)."""
    nonzero = true != 0
    scaled = true[nonzero] * scale
    exponent = np.where(np.isfinite(scaled), np.frexp(scaled)[1] - 1, HIGHEST)
    exponent[scaled == 0] = LOWEST  # the product itself underflowed
    last = counts.size - 1
    counts += np.bincount(np.clip(exponent - lowest, 0, last), minlength=last + 1).astype(np.int32)
    return np.count_nonzero(nonzero & (rounded == 0)), np.count_nonzero(nonzero)


REFERENCE = Operations(reference_matmul, reference_rounder, reference_tally)


@lru_cache(maxsize=1)
def compiled_operations():
    """The compiled `Operations`, or None without Numba, or with no place to keep compiled code."""
    kernel = compiled.kernels("mpcore.workloads.digits_kernel")
    if kernel is None:
        return None

    def rounder(f):
        parameters = kernel_parameters(f, "nearest_even", overflow_behaviour(f))
        return lambda flat: kernel.round_in_place(flat, parameters)

    return Operations(kernel.matmul, rounder, kernel.tally)
