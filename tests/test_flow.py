"""Intervals, verdicts, the rollback predicate, modelled time: the arithmetic of a decision."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpcore.flow.assembly import WindowScore, interval, without_first
from mpcore.flow.ingress import RequestError, admit
from mpcore.flow.release import PredicateError, fires, tokens_needed, verdict
from mpcore.machines import MachineError, TimingContext, gemm_time, get_machine
from mpcore.policy import changed_operators, fill_in, repaired
from mpcore.policy.sheet import PolicyError
from mpcore.records import Estimate, PolicyRule, PolicySheet, load_case
from mpcore.workloads.passages import Window


def estimate(low: float, value: float, high: float) -> Estimate:
    return Estimate(value=value, low=low, high=high)


def test_the_interval_covers_the_true_mean_about_as_often_as_it_says():
    rng = np.random.default_rng(5)
    tokens = np.full(10, 50)
    covered = 0
    for trial in range(300):
        # Tokens of a passage share a passage effect: that is what the bootstrap is over.
        totals = 50 * rng.normal(0.3, 0.1, 10) + rng.normal(0, 2, 10)
        found = interval(totals, tokens, trial, 0.95)
        covered += found.low <= 0.3 <= found.high
    assert 0.90 <= covered / 300 <= 0.98


def test_the_interval_is_the_same_each_time_and_holds_its_value():
    totals, tokens = np.array([1.0, 4.0, 2.0, 9.0]), np.array([10, 20, 10, 40])
    found = interval(totals, tokens, 3, 0.95)
    assert found == interval(totals, tokens, 3, 0.95)
    assert found.value == pytest.approx(16 / 80)
    assert found.low < found.value < found.high


def test_passages_of_one_loss_have_an_interval_of_no_width():
    found = interval(np.full(8, 5.0), np.full(8, 10), 1, 0.95)
    assert (found.low, found.value, found.high) == (0.5, 0.5, 0.5)


def test_the_first_tokens_of_each_passage_can_be_left_out():
    def score(passage: str, *losses: float) -> WindowScore:
        values = np.array(losses)
        window = Window("french", passage, np.zeros(len(losses) + 1, np.int64))
        return WindowScore(window, values, values / 2, np.full(len(losses), np.nan))

    scores = [score("a", 1, 2, 3), score("a", 4, 5), score("b", 6, 7), score("c", 8)]
    kept = without_first(scores, {("french", "a"): 4, ("french", "b"): 1, ("french", "c"): 1})
    assert [(s.window.passage, s.nll.tolist()) for s in kept] == [("a", [5.0]), ("b", [7.0])]
    assert [s.oracle_nll.tolist() for s in kept] == [[2.5], [3.5]]
    untouched = without_first(scores, {})
    assert [s.nll.tolist() for s in untouched] == [s.nll.tolist() for s in scores]


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (estimate(0.0, 0.05, 0.1), "holds"),
        (estimate(0.0, 0.05, 0.11), "cannot_conclude"),
        (estimate(0.11, 0.2, 0.3), "broken"),
        (estimate(0.1, 0.2, 0.3), "cannot_conclude"),
        (estimate(-0.9, -0.5, -0.1), "holds"),
    ],
)
def test_the_upper_end_decides_and_a_straddling_interval_does_not(loss, expected):
    assert verdict(loss, 0.1) == expected


def test_a_straddling_interval_says_how_many_tokens_would_settle_it():
    # Half width 0.08, distance 0.02: four times too wide, so sixteen times the tokens.
    assert tokens_needed(estimate(0.0, 0.08, 0.16), 0.1, 500) == 8000
    assert tokens_needed(estimate(0.0, 0.01, 0.02), 0.1, 500) is None


def test_the_rollback_predicate_is_evaluated_and_runs_no_code():
    figures = {"loss": 0.3, "overflow": 0.0}
    assert fires("loss > 0.25 or overflow > 0", figures)
    assert not fires("loss > 0.25 and overflow > 0", figures)
    for hostile in ("__import__('os')", "loss.real > 0", "loss", "1 < loss < 2", "other > 1", ")"):
        with pytest.raises(PredicateError, match="predicate"):
            fires(hostile, figures)


SHEET = PolicySheet(
    name="rollout",
    rules=[
        PolicyRule(match="lm_head", activation_format="bf16", weight_format="bf16"),
        PolicyRule(
            match="layers.*",
            activation_format="{activation_format}",
            activation_granularity="per_tensor",
            weight_format="int8",
            weight_granularity="per_channel",
        ),
    ],
)
OPERATORS = [f"layers.{i}.mlp.{kind}" for i in range(3) for kind in ("up_proj", "down_proj")]


def test_a_sheet_is_filled_in_and_checked():
    filled = fill_in(SHEET, {"activation_format": "int8"})
    assert filled.rule_for("layers.2.mlp.up_proj").activation_format == "int8"
    with pytest.raises(PolicyError, match=r"rule 2 \(layers.*no format is called"):
        fill_in(SHEET, {"activation_format": "int8x"})
    with pytest.raises(PolicyError, match="no parameter is called 'activation_format'"):
        fill_in(SHEET, {})
    for braces in ("{0}", "{activation_format.x}", "{"):
        rule = SHEET.rules[1].model_copy(update={"weight_format": braces})
        with pytest.raises(PolicyError, match="rule 1"):
            fill_in(SHEET.model_copy(update={"rules": [rule]}), {"activation_format": "int8"})


@pytest.mark.parametrize("name", ["slices", "tokens", "guardrail", "machine"])
def test_a_case_without_a_parameter_that_runs_need_is_refused(name):
    case = load_case("int8_outliers")
    rest = {key: value for key, value in case.parameters.items() if key != name}
    case = case.model_copy(update={"parameters": rest})
    with pytest.raises(RequestError, match=rf"parameters\.{name} is needed, with type"):
        admit(case, {})


def test_a_repair_stands_above_the_rule_that_it_changes():
    filled = fill_in(SHEET, {"activation_format": "int8"})
    after = repaired(
        filled, "repair", ["layers.*.mlp.down_proj"], "", activation_granularity="per_token"
    )
    assert after.revision == filled.revision + 1
    changed = changed_operators(filled, after, [*OPERATORS, "lm_head"])
    assert changed == [name for name in OPERATORS if "down" in name]


@pytest.mark.parametrize("fmt", ["bf16", "fp8_e4m3"])
def test_no_end_of_a_band_is_faster_than_the_data_sheet(fmt):
    machine = get_machine("h100_sxm")
    sizes = np.array([64, 512, 4096, 16384])
    found = gemm_time(machine, sizes, 4096, 4096, a_format=fmt)
    flops = 2 * sizes * 4096 * 4096 / machine.peak(fmt, fmt)
    assert (found.band[0] >= np.maximum(flops, found.bytes / (machine.memory_gb_per_s * 1e9))).all()


@given(m=st.integers(1, 10**5), n=st.integers(1, 10**5), k=st.integers(1, 10**5))
def test_modelled_time_has_a_band_and_grows_with_size(m, n, k):
    one, more = gemm_time("h100_sxm", m, n, k), gemm_time("h100_sxm", m, n, 2 * k)
    assert one.band[0] < one.seconds < one.band[1]
    assert more.seconds >= one.seconds
    assert 0 < one.occupancy <= 1


def test_modelled_time_by_hand():
    # 2 · 4096³ operations at 989.4 TFLOP/s, plus 5.4 µs, times the median ratio 1.16
    found = gemm_time("NVIDIA H100 80GB HBM3", 4096, 4096, 4096, "bf16")
    assert found.seconds == pytest.approx(1.16 * (2 * 4096**3 / 989.4e12 + 5.4e-6))
    assert found.bound == "compute"
    assert gemm_time("h100_sxm", 1, 4096, 4096).bound == "bandwidth"


def test_arrays_come_back_and_the_quantise_pass_costs_time():
    sizes = np.array([16, 4096])
    plain = gemm_time("h100_sxm", sizes, 4096, 4096, "int8")
    with_pass = gemm_time(
        "h100_sxm", sizes, 4096, 4096, "int8", context=TimingContext(activation_quantisation=True)
    )
    assert plain.seconds.shape == (2,)
    assert np.all(with_pass.seconds > plain.seconds)


@pytest.mark.parametrize(
    ("a", "b", "computed"),
    [
        ("bf16", "bf16", "bf16"),
        ("int4", "int8", "int8"),
        ("int8", "fp8_e4m3", "bf16"),  # neither holds the other: both fit bf16
        ("fp8_e4m3", "fp8_e5m2", "fp8_e4m3"),  # Hopper takes these two mixed
        ("fp16", "int8", "fp16"),
        ("fp32", "bf16", "fp32"),
        ("fp64", "int8", "fp64"),
    ],
)
def test_two_formats_are_multiplied_in_the_fastest_that_holds_both(a, b, computed):
    machine = get_machine("h100_sxm")
    assert machine.compute_format(a, b) == computed
    assert computed == a or machine.compute_format(b, a) == computed
    assert machine.peak(a, b) == machine.peak_tflops[computed] * 1e12


@pytest.mark.parametrize("bad", [("b100", 1, 1, 1), ("h100_sxm", 0, 1, 1), ("h100_sxm", 1, -1, 1)])
def test_impossible_gemms_are_refused(bad):
    with pytest.raises(MachineError):
        gemm_time(*bad)


@pytest.mark.parametrize(
    ("fmt", "reason"), [("bf16", "needs no scale"), ("fp64", "needs no scale"), ("uint8", "signed")]
)
@pytest.mark.parametrize("tensor", ["activation", "weight"])
def test_a_scale_on_a_format_that_cannot_be_scaled_is_refused_before_anything_runs(
    tensor, fmt, reason
):
    rule = PolicyRule(
        match="*",
        **{"activation_format": "int8", "weight_format": "int8"} | {f"{tensor}_format": fmt},
        **{f"{tensor}_granularity": "per_tensor"},
    )
    with pytest.raises(PolicyError, match=reason) as caught:
        fill_in(PolicySheet(name="mine", rules=[rule]), {})
    assert "policy 'mine', rule 1" in str(caught.value)


@pytest.mark.parametrize("m", ["a", 1j, 10**400, [[1], [2, 3]], np.inf, np.nan, 1e200, 0, -1])
def test_sizes_that_are_none_are_refused(m):
    with pytest.raises(MachineError, match="m, n and k must be"):
        gemm_time("h100_sxm", m, 4096, 4096)
    with pytest.raises(MachineError, match="m, n and k must be"):
        gemm_time("h100_sxm", np.ones(3), np.ones(2), 4096)


def test_a_timing_context_knows_two_kinds_of_operands():
    with pytest.raises(MachineError, match="'cold' or 'warm'"):
        TimingContext(operands="lukewarm")


def test_an_interval_beyond_reason_needs_no_number_of_tokens():
    assert tokens_needed(estimate(-1e300, 0.35 + 1e-13, 1e300), 0.35, 100) is None
