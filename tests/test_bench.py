"""The benchmarks' own helpers: fair medians, missing peers said so, wrong values noticed."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parent.parent / "bench"
sys.path.insert(0, str(BENCH))

import matmul as matmul_benchmark  # noqa: E402
import peers  # noqa: E402
import rounding as rounding_benchmark  # noqa: E402
import timing  # noqa: E402

from mpcore.formats import encode, get_format, round_to  # noqa: E402


class Clock:
    """Time that passes only when a job says so."""

    def __init__(self):
        self.now, self.calls = 0.0, []

    def __call__(self):
        return self.now

    def job(self, name, *seconds):
        """A job that takes these seconds in turn, the last one for ever."""
        left = list(seconds)

        def run():
            self.calls.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return run


def test_every_round_runs_one_of_each_job():
    clock = Clock()
    jobs = {"a": clock.job("a", 0.1), "b": clock.job("b", 0.2)}
    timing.medians(jobs, rounds=4, pause=0, clock=clock)
    assert clock.calls[4:] == ["a", "b"] * 4  # after two calls of each to get going


def test_a_median_leaves_out_the_first_calls_and_an_outlier():
    clock = Clock()
    jobs = {"a": clock.job("a", 9, 0.1, 0.1, 7, 0.1, 0.1, 0.1)}
    found = timing.medians(jobs, rounds=5, seconds=20, pause=0, clock=clock)
    assert found["a"].seconds == pytest.approx(0.1)


def test_a_slow_job_runs_less_often_and_its_runs_are_spread():
    clock = Clock()
    jobs = {"quick": clock.job("q", 0.1), "slow": clock.job("s", 0.9)}
    found = timing.medians(jobs, rounds=9, seconds=3, pause=0, clock=clock)
    assert (found["quick"].runs, found["slow"].runs) == (9, 3)
    assert "".join(clock.calls[4:]) == "qqsqqqsqqqsq"
    clock.calls.clear()
    assert timing.medians(jobs, 9, seconds=0.5, pause=0, clock=clock)["slow"].runs == 1


def test_a_very_short_job_is_called_several_times_a_run():
    clock = Clock()
    found = timing.medians({"a": clock.job("a", 1e-4)}, rounds=3, pause=0, clock=clock)
    assert len(clock.calls) == 2 + 3 * 20
    assert found["a"].seconds == pytest.approx(1e-4)


def test_values_that_differ_are_counted():
    x = np.array([1.0, 0.0, np.nan, np.inf])
    assert timing.verdict(x.copy(), x) == "equal"
    assert timing.verdict(np.array([1.0, 0.0, np.nan, 9.0]), x) == "1 of 4 differ"
    assert timing.verdict(np.array([1.0, 0.0, 0.0, np.nan]), x) == "2 of 4 differ"
    assert timing.verdict(np.array([1.0, -0.0, np.nan, np.inf]), x) == (
        "equal (zeros of another sign: 1)"
    )
    with pytest.raises(ValueError, match="shape"):
        timing.verdict(x[:3], x)


def test_numbers_have_three_digits():
    numbers = (123.4, 12.34, 1.234, 0.01234, 7)
    assert [timing.number(x) for x in numbers] == ["123", "12.3", "1.23", "0.0123", "7"]


def test_a_missing_peer_is_reported_and_left_out(monkeypatch):
    load = peers.load
    monkeypatch.setattr(peers, "load", lambda name: load(name) if name == "ml_dtypes" else None)
    assert peers.peers_line().endswith("left out: torch, gfloat, pychop, apytypes")
    assert [name for name, _ in peers.rounders("bf16")] == ["ml_dtypes"]
    assert list(peers.block_rounders("mxfp4")) == []
    assert peers.apytypes_matmul(np.eye(2), np.eye(2)) is None


def test_a_module_that_is_not_there_is_no_peer():
    assert peers.load("no_such_module_anywhere") is None


def test_a_peer_that_cannot_be_installed_is_named_and_the_others_are_tried(capsys):
    asked = []

    def run(command, **_):
        asked.append(command[-1])
        assert "--constraint" in command
        return SimpleNamespace(returncode=int("gfloat" in command[-1]))

    failed = peers.install(run)
    assert failed == ["gfloat"]
    assert asked == [requirements[-1] for requirements in peers.extra().values()]
    assert "left out" in capsys.readouterr().out


def test_every_peer_is_pinned_and_none_is_a_requirement():
    required = (BENCH.parent / "requirements.txt").read_text(encoding="utf-8")
    assert set(peers.extra()) | {"ml_dtypes"} == set(peers.PEERS)
    for name, requirements in peers.extra().items():
        assert all(re.match(r"[a-z_]+==[0-9.]+(\+cpu)?(;|$)", line) for line in requirements)
        assert f"\n{name}==" not in required


@pytest.mark.parametrize("f", rounding_benchmark.FORMATS)
def test_ml_dtypes_rounds_and_encodes_as_we_do(f):
    x = np.random.default_rng(0).standard_normal((64, 64), dtype=np.float32)
    rounder = dict(peers.rounders(f))[("ml_dtypes", "numpy")[f == "fp16"]]
    assert timing.verdict(rounder(x), round_to(x, f)) == "equal"
    _, encoder, decoder = next(peers.encoders(f))
    assert timing.verdict(encoder(x), encode(x, f)) == "equal"
    assert timing.verdict(decoder(encoder(x)), round_to(x, f)) == "equal"


def test_a_peer_with_wrong_values_shows_in_the_table(monkeypatch, capsys):
    def wrong(x):
        rounded = round_to(x, "fp16")
        rounded[0, 0] += 1
        return rounded

    monkeypatch.setattr(rounding_benchmark, "rounders", lambda f: [("wrong", wrong)])
    rounding_benchmark.rounding(np.ones((8, 8), np.float32), "fp16", 1)
    printed = capsys.readouterr().out
    assert "1 of 64 differ" in printed
    assert "fastest peer (wrong)" in printed and "equal values" not in printed


@pytest.mark.parametrize("name", matmul_benchmark.SUMS)
def test_a_matmul_is_checked_before_it_is_timed(name, monkeypatch):
    accumulator, f = matmul_benchmark.SUMS[name]
    monkeypatch.setattr(matmul_benchmark, "BLOCK", (4, 8))
    a, b = matmul_benchmark.operands(32, f)
    expected = matmul_benchmark.expected_block(a, b, accumulator, f)
    value = matmul_benchmark.multiplying(a, b, accumulator, f, False)().value[:4, :8]
    matmul_benchmark.check(value, expected, name)
    value[1, 1] = np.nextafter(value[1, 1], 99)
    with pytest.raises(SystemExit, match="1 of 32 differ; nothing is timed"):
        matmul_benchmark.check(value, expected, name)


def test_a_rank_1_sum_rounds_after_every_product():
    a, b = np.array([[1.0, 2.0**-4, 2.0**-4]]), np.ones((3, 1))
    f = get_format("fp8_e4m3")  # 3 bits: 1 + 2**-4 is a tie, and goes to 1
    assert peers.rank_1_sum(a, b, lambda c: round_to(c, f)) == 1.0
    assert peers.rank_1_sum(a, b, lambda c: c) == 1.125
    assert peers.rank_1_sum(a, b, lambda c: c, lambda p: p * 0) == 0.0
