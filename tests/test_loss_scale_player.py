"""The loss scale player: its picture follows every setting, its words are the run's numbers."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot
import numpy as np
import pytest
from traitlets import TraitError

from mpcore.errors import InputError
from mpcore.formats import get_format, round_to
from mpcore.report.palette import PALETTE
from mpcore.scaling import LossScale
from mpcore.workbook.loss_scale_picture import overflow_edge, zones
from mpcore.workbook.loss_scale_player import (
    FORMATS,
    LAST_STEP,
    LossScalePlayer,
    outcome_words,
    overflow_words,
)
from mpcore.workloads.digits_training import TrainingSettings, train

STATM = Path("/proc/self/statm")
OTHER = {
    "format": "fp8_e4m3",
    "init_exponent": 20,
    "growth": 4.0,
    "backoff": 0.25,
    "interval": 5,
    "dynamic": False,
    "step": 60,
}
"""Trait -> a value that changes the run or what is shown of it."""


@pytest.fixture
def player():
    return LossScalePlayer(step=40)


def trained(player):
    """The run of a player's settings, made without the player."""
    scale = LossScale(
        2.0**player.init_exponent, player.growth, player.backoff, player.interval, player.dynamic
    )
    return train(TrainingSettings(format=player.format, loss_scale=scale))


# The picture follows


@pytest.mark.parametrize("trait", OTHER)
def test_every_setting_changes_the_picture_and_back(player, trait):
    picture, before = player.picture, getattr(player, trait)
    setattr(player, trait, OTHER[trait])
    assert player.picture != picture and player.problem == ""
    setattr(player, trait, before)
    assert player.picture == picture
    assert set(OTHER) == set(player.inputs)


def test_same_state_same_bytes_in_another_process():
    code = (
        "import hashlib; from mpcore.workbook.loss_scale_player import LossScalePlayer as P;"
        "print(hashlib.sha256(P(format='fp8_e5m2', step=7).picture.encode()).hexdigest())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    player = LossScalePlayer(step=9)  # another way to the same state, with caches in use
    player.format, player.step = "fp8_e5m2", 7
    assert run.stdout.strip() == hashlib.sha256(player.picture.encode()).hexdigest(), run.stderr


def test_axes_do_not_move_while_a_run_is_played(player):
    """Frames come from Matplotlib, and the steps of a run share them."""

    def ticks():
        return re.findall(r'<use href="#mp-player-[^>]*>', player.picture)

    first = ticks()
    assert len(first) > 15
    for step in (0, 38, LAST_STEP):
        player.step = step
        assert ticks() == first


def test_a_form_may_send_numbers_as_text(player):
    player.growth, player.interval = "4", "50"
    assert (player.growth, player.interval) == (4.0, 50)


def test_a_static_scale_ignores_how_it_would_move(player):
    player.dynamic = False
    picture = player.picture
    player.growth, player.interval = 4.0, 5
    assert player.picture == picture


def test_play_finds_the_ends_of_the_slider(player):
    assert player.limits["step"] == [0, LAST_STEP]
    assert {"kind": "play", "of": "step"}.items() <= player.controls[-1].items()


# What it shows


@pytest.mark.parametrize("name", FORMATS)
def test_the_picture_fits_into_a_page_of_either_scheme(name):
    svg = LossScalePlayer(format=name, step=3).picture
    assert not any(sentinel in svg for sentinel, _, _ in PALETTE.values())
    # its own <style> would follow the system where JupyterLab has a theme of its own
    assert not re.search(r"<(style|script|image|foreignObject)|\son\w+=|https?://(?!www\.w3)", svg)
    assert all(link.startswith("#mp-player-") for link in re.findall(r'href="([^"]*)"', svg))
    ids = re.findall(r'\sid="([^"]+)"', svg)
    assert len(ids) == len(set(ids)) and svg.count("<svg") == svg.count("</svg>") == 1
    assert set(re.findall(r'href="#([^"]*)"', svg)) <= set(ids)


def test_the_zones_are_named_and_powers_of_two_are_written_as_such(player):
    texts = re.findall(r"<text[^>]*>([^<]+)</text>", player.picture)
    assert {"flushed to zero", "subnormal", "normal", "overflow", "2⁰", "2¹⁶", "2⁻¹⁶"} <= set(texts)
    assert "fp16: zero up to 2⁻²⁵, normal from 2⁻¹⁴, max 65\u202f504" in texts


@pytest.mark.parametrize("name", FORMATS)
def test_zones_end_where_rounding_says_so(name):
    f = get_format(name)
    flushed, *_, beyond = zones(f)
    above = 1 + 2.0**-20
    x = np.array([2.0**flushed.high, 2.0**flushed.high * above])
    assert (round_to(x, f, overflow="infinity") != 0).tolist() == [False, True]
    if f.max < 1e38:  # beyond it, 2**edge is no float32
        x = np.array([2.0**beyond.low / above, 2.0**beyond.low * above])
        assert np.isfinite(round_to(x, f, overflow="nan")).tolist() == [True, False]
    assert beyond.low == overflow_edge(f)


def test_skipped_steps_are_crossed(player):
    run = trained(player)
    skipped = int(run.overflowed.sum())
    crosses = re.findall(r'd="M[\d.]+ [\d.]+l6 6m0 -6l-6 6"[^>]*>', player.picture)
    assert skipped > 2 and len(crosses) == skipped + 1  # and one in the key
    to_come = int(run.overflowed[player.step + 1 :].sum())
    assert sum("opacity" in cross for cross in crosses) == to_come > 0


def test_a_cross_is_explained_where_there_are_crosses():
    static = LossScalePlayer(format="bf16", dynamic=False)
    assert "skipped (overflow): 0" in static.picture and "l6 6m0 -6l-6 6" not in static.picture


@pytest.mark.parametrize("name", FORMATS)
def test_a_zone_is_pointed_at_only_where_its_name_does_not_stand_above_it(name):
    svg = LossScalePlayer(format=name).picture
    named = {zone.name for zone in zones(get_format(name)) if zone.high > -40 and zone.low < 41}
    pointers = re.findall(r'<line [^>]*stroke-width="0.8"/>', svg)
    assert len(pointers) < len(named)
    if named == {"normal"}:  # bf16 and fp32: nothing else is there to tell it from
        assert pointers == []


def test_the_last_tick_of_the_steps_is_a_step(player):
    ticks = [int(t) for t in re.findall(r"<text[^>]*>(\d+)</text>", player.picture)]
    assert max(ticks) <= LAST_STEP and 125 in ticks


def test_it_is_as_wide_and_its_letters_as_large_as_those_of_the_other_explorers(player):
    from mpcore.report.picture import SMALL as OURS
    from mpcore.workbook.drawing import SMALL, WIDTH

    width = float(re.search(r'viewBox="0 0 ([\d.]+) ', player.picture)[1])
    assert OURS / width == pytest.approx(SMALL / WIDTH, rel=0.01)
    assert "max-width" not in player.picture  # the style sheet's holds


# What it says


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"init_exponent": 24, "backoff": 0.25},
        {"format": "fp8_e4m3", "interval": 5, "growth": 4.0},
        {"format": "fp8_e4m3", "init_exponent": 0, "dynamic": False},
        {"format": "fp16", "init_exponent": 30, "dynamic": False},
        {"format": "bf16", "interval": 10, "growth": 4.0},
    ],
)
def test_words_are_the_numbers_of_the_run(settings):
    player = LossScalePlayer(**settings)
    run = trained(player)
    oracle = train(TrainingSettings(format="fp32", loss_scale=LossScale(1.0, dynamic=False)))
    unsuperscript = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
    for step in (0, 1, 4, 19, 38, 90, LAST_STEP):
        player.step = step
        said = player.spoken
        exponent = re.search(r"scale 2([⁻⁰¹²³⁴-⁹]+);", said)[1]
        assert 2.0 ** int(exponent.translate(unsuperscript)) == run.scale[step]
        assert ("overflowed and was skipped" in said) == run.overflowed[step]
        skipped = re.search(r"(no|\d+) (?:of (\d+) )?steps? skipped so far", said)
        count = run.overflowed[: step + 1].sum()
        assert skipped[1] == (str(count) if count else "no")
        assert skipped[2] == (str(step + 1) if count else None)
        share = re.search(r"(none|[\d.]+)(?:\u202f%)? of the gradient values", said)[1]
        shown = 0.0 if share == "none" else float(share) / 100
        assert shown == pytest.approx(run.underflow[step], rel=0.06, abs=1e-4)
        assert outcome_words(run, step) in player.picture
        assert f"loss {run.loss[step]:.2f} (fp32 {oracle.loss[step]:.2f})." in said
        if step < LAST_STEP:
            factor = run.scale[step + 1] / run.scale[step]
            verbs = {2: "doubles", 4: "quadruples", 0.5: "halves", 0.25: "falls to a quarter"}
            assert [verb for verb in verbs.values() if verb in said] == (
                [verbs[factor]] if factor != 1 else []
            )


def test_grammar_for_none_one_and_many():
    player = LossScalePlayer(init_exponent=30)
    assert "1 of 1 step skipped" in player.spoken
    player.step = 1
    assert "2 of 2 steps skipped" in player.spoken
    assert "none of the gradient values is flushed" in player.spoken
    player.init_exponent = 0
    assert "no step skipped" in player.spoken
    player.format = "fp8_e4m3"
    assert "% of the gradient values are flushed" in player.spoken


def test_overflow_share_is_exact_only_where_the_run_counted_it():
    fp16 = trained(LossScalePlayer(init_exponent=30))
    counts = fp16.histogram[0]
    share = counts[fp16.bin_exponents >= 16].sum() / counts.sum()
    assert overflow_words(fp16, 0) == f"{100 * share:.0f}\u202f%"
    e4m3 = trained(LossScalePlayer(format="fp8_e4m3", init_exponent=20))
    assert overflow_words(e4m3, 0).startswith("at least ")
    assert overflow_words(e4m3, int(np.flatnonzero(~e4m3.overflowed)[0])) == "0\u202f%"


# Bad input


@pytest.mark.parametrize(
    "settings",
    [
        {"format": "fp17"},
        {"format": "int8"},
        {"growth": 3},
        {"backoff": 2},
        {"interval": 7},
        {"init_exponent": 31},
        {"init_exponent": -1},
        {"step": LAST_STEP + 1},
        {"step": -1},
        {"loss_scale": 2},
    ],
    ids=str,
)
def test_bad_settings_are_refused_in_one_line(player, settings):
    with pytest.raises(InputError) as error:
        LossScalePlayer(**settings)
    assert "\n" not in str(error.value) and len(str(error.value)) < 300
    [(name, value)] = settings.items()
    if name in player.inputs:
        picture = player.picture
        with pytest.raises(InputError):
            setattr(player, name, value)
        assert player.picture == picture


def test_text_that_is_no_number_is_refused_in_one_line(player):
    with pytest.raises(TraitError) as error:
        player.growth = "much"
    assert "\n" not in str(error.value)


# Long use


@pytest.mark.skipif(not STATM.exists(), reason="asks Linux how much memory is in use")
def test_memory_is_bounded_and_no_figure_stays_open(player):
    def use(moves):
        for i in range(moves):
            player.step = i % (LAST_STEP + 1)
            if i % 20 == 0:
                player.init_exponent = i // 20 % 10 + 10
        pages = int(STATM.read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    before = use(200)  # fills the caches
    assert use(200) - before < 20
    assert matplotlib.pyplot.get_fignums() == []
