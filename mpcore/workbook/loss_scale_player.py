"""The loss scale player: a real small training run, step by step, under a loss scale."""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

import traitlets

from mpcore.errors import InputError, quoted
from mpcore.formats import get_element_format
from mpcore.report import numbers
from mpcore.scaling import LossScale
from mpcore.workbook.explorer import (
    Explorer,
    Whole,
    checkbox,
    play,
    select,
    slider,
    validate,
)
from mpcore.workbook.loss_scale_picture import (
    loss_scale_picture,
    overflow_edge,
    power_of_two,
    scale_exponents,
    scale_words,
)
from mpcore.workloads.digits_training import TrainingRun, TrainingSettings, trained


class Choice(NamedTuple):
    """A setting of a loss scale of which some values are offered."""

    label: str
    shown: str  # how a value is written
    values: tuple[float, ...]


FORMATS = ("fp16", "bf16", "fp8_e5m2", "fp8_e4m3", "fp32")
CHOICES = {
    "growth": Choice("growth", "× {:g}", (2.0, 4.0)),
    "backoff": Choice("after an overflow", "× {:g}", (0.5, 0.25)),
    "interval": Choice("grows after", "{} good steps", (5, 10, 20, 50, 2000)),
}
LAST_STEP = TrainingSettings().steps - 1

CHANGES = {2.0: "doubles", 4.0: "quadruples", 0.5: "halves", 0.25: "falls to a quarter"}
"""Factor -> what the scale does."""


class LossScalePlayer(Explorer):
    """A training run on handwritten digits whose loss scale is found by trial, step by step.

    Attributes:
        format: of weights, activations and backward signals, one of `FORMATS`.
        init_exponent: the first scale is 2**this, 0 to 30.
        growth: factor after `interval` good steps, 2 or 4.
        backoff: factor after an overflow, 0.5 or 0.25.
        interval: good steps in a row before the scale grows: 5, 10, 20, 50 or 2000.
        dynamic: whether the scale moves at all.
        step: the step that is shown, from 0 on; its run is always made to the end.
    """

    inputs = ("format", "init_exponent", "growth", "backoff", "interval", "dynamic", "step")

    format = traitlets.Unicode("fp16").tag(sync=True)
    init_exponent = Whole(16, min=0, max=30).tag(sync=True)
    # A form's choice comes as text: these turn it into a number.
    growth = traitlets.CFloat(2.0).tag(sync=True)
    backoff = traitlets.CFloat(0.5).tag(sync=True)
    interval = traitlets.CInt(20).tag(sync=True)
    dynamic = traitlets.Bool(True).tag(sync=True)
    step = Whole(0, min=0, max=LAST_STEP).tag(sync=True)

    title = traitlets.Unicode("Loss scale player: a training run step by step").tag(sync=True)

    @validate("format")
    def _one_of_the_formats(self, proposal):
        name = get_element_format(proposal["value"]).name
        if name not in FORMATS:
            raise InputError(f"format = {name!r} is not offered; valid are {', '.join(FORMATS)}")
        return name

    @validate(*CHOICES)
    def _one_of_the_choices(self, proposal):
        name, value = proposal["trait"].name, proposal["value"]
        if value not in CHOICES[name].values:
            valid = ", ".join(f"{choice:g}" for choice in CHOICES[name].values)
            raise InputError(f"{name} = {quoted(value)} is not offered; valid are {valid}")
        return value

    def controls_of(self):
        return [
            select("format", "format", list(FORMATS)),
            slider("init_exponent", "first loss scale", 0, 30),
            *(
                select(name, one.label, {f"{v:g}": one.shown.format(v) for v in one.values})
                for name, one in CHOICES.items()
            ),
            checkbox("dynamic", "dynamic (off: the scale stays)"),
            slider("step", "step", 0, LAST_STEP),
            play("step"),
        ]

    def run(self) -> TrainingRun:
        """The run that is played."""
        scale = LossScale(
            2.0**self.init_exponent, self.growth, self.backoff, self.interval, self.dynamic
        )
        return trained(self.format, scale)

    def draw(self):
        run, oracle = self.run(), trained("fp32", LossScale(1.0, dynamic=False))
        self.spoken = words_for(run, oracle, self.step)
        self.picture = loss_scale_picture(
            run, oracle, self.step, outcome_words(run, self.step), self.spoken
        )
        self.notes = {
            "init_exponent": scale_words(self.init_exponent),
            "step": f"{self.step}, the last is {LAST_STEP}",
        }
        self.limits = {"step": [0, LAST_STEP]}
        self.off = [] if self.dynamic else list(CHOICES)


def words_for(run: TrainingRun, oracle: TrainingRun, step: int) -> str:
    """What the picture says, in one sentence."""
    so_far, skipped = step + 1, int(run.overflowed[: step + 1].sum())
    share = float(run.underflow[step])
    return (
        f"step {step} of {len(run.loss)}: "
        f"scale {power_of_two(int(scale_exponents(run)[step]))}; "
        f"{_outcome(run, step)}; "
        f"{_of(skipped, so_far)} skipped so far; "
        f"{numbers.share(share) if share else 'none'} of the gradient values "
        f"{'are' if share else 'is'} flushed to zero; "
        f"loss {run.loss[step]:.2f} (fp32 {oracle.loss[step]:.2f})."
    )


def _of(some: int, steps: int) -> str:
    """no step, 1 of 1 step, 3 of 13 steps."""
    return f"{some} of {steps} {'step' if steps == 1 else 'steps'}" if some else "no step"


def _outcome(run: TrainingRun, step: int) -> str:
    """What became of a step, and what the scale does after it."""
    rule = run.settings.loss_scale
    if run.overflowed[step]:
        then = CHANGES[rule.backoff] if rule.dynamic else "stays: it is static"
        return f"this step overflowed and was skipped (the scale {then})"
    grows = step + 1 < len(run.scale) and run.scale[step + 1] > run.scale[step]
    return "this step was made" + (f" (then the scale {CHANGES[rule.growth]})" if grows else "")


def outcome_words(run: TrainingRun, step: int) -> str:
    """What became of a step's signals, in a line."""
    lost = f"{numbers.share(float(run.underflow[step]))} flushed to zero"
    then = "the step is skipped" if run.overflowed[step] else "the step is made"
    return f"{lost}, {overflow_words(run, step)} overflow: {then}"


def overflow_words(run: TrainingRun, step: int) -> str:
    """How many signals of a step are too large. The run counts binades, and an edge inside one
    (fp8 formats) leaves it open how many of its values are beyond."""
    if not run.overflowed[step]:
        return numbers.share(0)
    counts, edge = run.histogram[step], overflow_edge(get_element_format(run.settings.format))
    inside_a_binade = ceil(edge) - edge > 0.01
    beyond = counts[run.bin_exponents >= ceil(edge)].sum() / max(counts.sum(), 1)
    if beyond == 0:
        return "some"
    return ("at least " if inside_a_binade else "") + numbers.share(float(beyond))
