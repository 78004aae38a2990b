"""What the isolator decides from what-ifs, locks and repeats, without running the model."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from packets import lock

from mpcore.diagnosis import comparable, diagnose
from mpcore.diagnosis.comparable import (
    DiagnosisError,
    check_pair,
    lock_differences,
    session_of,
)
from mpcore.diagnosis.diagnose import _decide, investigate
from mpcore.diagnosis.differential import ORDER, differential
from mpcore.diagnosis.isolate import in_words
from mpcore.diagnosis.outliers import Outlier, axis_in_words, main_axis, median_outlier
from mpcore.diagnosis.policy_search import with_siblings
from mpcore.diagnosis.what_ifs import what_if_table
from mpcore.paths import ROOT
from mpcore.records import (
    Environment,
    Estimate,
    Incidence,
    PassageScore,
    PolicyRule,
    PolicySheet,
    RecordError,
    RunRecord,
    SliceQuality,
    WhatIf,
    load_case,
)
from mpcore.workloads.language_model import LINEAR_KINDS


def what_if(name: str, equal_bits: bool, low: float, high: float) -> WhatIf:
    middle = (low + high) / 2
    return WhatIf(
        id=name,
        name=name,
        question="",
        changed="",
        equal_bits=equal_bits,
        repaired=["layers.*"],
        delta_nll={"english_prose": Estimate(value=middle, low=low, high=high)},
        worst_upper=high,
        holds=high <= 0.1,
        verdict="holds" if high <= 0.1 else "broken" if low > 0.1 else "cannot_conclude",
        tokens=100,
    )


BROKEN, HELD = (0.5, 0.9), (0.0, 0.05)


@pytest.mark.parametrize(
    ("equal", "more", "mechanism", "deciding"),
    [
        (HELD, HELD, "S2", "equal"),
        (HELD, BROKEN, "S2", "equal"),
        (BROKEN, HELD, "R3", "more"),
        (BROKEN, BROKEN, "X1", None),
    ],
)
def test_only_a_repair_at_equal_bits_says_granularity(equal, more, mechanism, deciding):
    found, by = _decide(
        [what_if("more", False, *more), what_if("equal", True, *equal)], threshold=0.1
    )
    assert (found, by.id if by else None) == (mechanism, deciding)


def test_a_what_if_that_straddles_the_limit_decides_nothing():
    assert _decide([what_if("equal", True, 0.05, 0.3)], threshold=0.1) == ("cannot_conclude", None)


def test_operators_are_named_in_words():
    down = [f"layers.{layer}.mlp.down_proj" for layer in range(30)]
    assert in_words(down) == "down_proj of layers 0–29"
    assert in_words([down[2], down[11], down[28]]) == "down_proj of layers 2, 11 and 28"
    assert in_words([down[2], "layers.29.mlp.up_proj"]) == (
        "down_proj of layer 2; up_proj of layer 29"
    )
    assert in_words(down[:4] + down[6:8] + down[20:]) == "down_proj of layers 0–3, 6, 7 and 20–29"
    assert in_words(
        ["layers.2.mlp.gate_proj", "layers.2.mlp.up_proj", "layers.2.mlp.down_proj"]
    ) == ("gate_proj, up_proj and down_proj of layer 2")
    assert in_words(["lm_head"]) == "lm_head"
    every_other = down[::2] + [name.replace("down", "up") for name in down[1::2]] + down[1:2]
    assert in_words(every_other) == "16 down_proj and 15 up_proj"


def spike(**changes) -> Outlier:
    figures = {
        "operator": "layers.11.mlp.down_proj",
        "largest": 2824.0,
        "token": 0,
        "channel": 7,
        "typical_token": 1.8,
        "elsewhere": 5.9,
        "same_channel": 0.1,
        "typical_in_channel": 0.01,
        "typical": 0.02,
    }
    return Outlier(**figures | changes)


def test_the_axis_is_read_from_what_the_outlier_stands_above():
    token = spike()
    channel = spike(typical_token=2000.0, typical_in_channel=1900.0)
    neither = spike(typical_token=2000.0)
    wide = spike(typical_token=2000.0, typical_in_channel=1900.0, typical=800.0)
    assert [one.axis for one in (token, channel, neither, wide)] == [
        *("token", "channel", "none", "none")
    ]
    assert token.lead == pytest.approx(2824 / 1.8)
    assert spike(largest=0.0, typical_token=0.0, typical_in_channel=0.0, typical=0.0).axis == "none"
    assert main_axis([token, token, channel]) == "token"
    assert main_axis([token, channel]) == "none"


def test_the_window_of_median_outlier_stands_for_all():
    sizes = [9.0, 2.0, 7.0, 5.0, 1.0]
    number, found = median_outlier([spike(largest=size) for size in sizes])
    assert (number, found.largest) == (3, 5.0)


def record(**changes) -> RunRecord:
    rule = PolicyRule(match="*", activation_format="bf16", weight_format="bf16")
    fields = {
        "role": "failing",
        "lock": lock(),
        "policy": PolicySheet(name="p", rules=[rule]),
        "stages": [],
        "quality": [],
        "throughput": [],
        "incidence": [],
    }
    return RunRecord(**fields | changes)


def test_runs_of_different_locks_are_not_compared():
    other = lock().model_copy(update={"seeds": {"bootstrap": 8}})
    assert lock_differences(record(), record()) == []
    found = investigate(record(), record(lock=other))
    assert found.diagnosis.mechanism == "C0"
    assert "seeds" in found.diagnosis.missing[0]


def quality(**tokens: int) -> list[SliceQuality]:
    loss = Estimate(value=0.0, low=0.0, high=0.0)
    return [
        SliceQuality(
            slice=name,
            step_kind="prefill",
            tokens=count,
            perplexity=10.0,
            oracle_perplexity=10.0,
            delta_nll=loss,
            kl=None,
            passages=[PassageScore(passage="p", tokens=count, nll=1.0, oracle_nll=1.0, kl=None)],
        )
        for name, count in tokens.items()
    ]


def test_only_a_failing_run_and_its_comparator_are_diagnosed():
    whole = quality(**lock().tokens_per_slice)
    failing, clean = record(quality=whole), record(quality=whole, role="comparator")
    check_pair(failing, clean)
    for pair in ((clean, failing), (failing, failing), (clean, clean)):
        with pytest.raises(DiagnosisError, match="give the failing run first"):
            check_pair(*pair)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(
    "part", [[], quality(french=5), quality(**lock().tokens_per_slice | {"french": 5})]
)
def test_a_record_without_all_its_scores_says_nothing_about_a_regression(side, part):
    whole = quality(**lock().tokens_per_slice)
    parts = [whole, whole]
    parts[side] = part
    with pytest.raises(DiagnosisError, match=("failing run", "comparator")[side]):
        diagnose(record(quality=parts[0]), record(quality=parts[1], role="comparator"))


def test_records_of_what_has_changed_since_are_not_diagnosed(monkeypatch):
    case = load_case("int8_outliers")
    written = lock().model_copy(update={"parameters": case.values()})
    here = written.model_copy(update={"environment": Environment(cpu="another")})

    def admitted(case, values):
        return SimpleNamespace(lock=here)

    monkeypatch.setattr(comparable, "admit", admitted)
    monkeypatch.setattr(comparable, "Session", lambda request: SimpleNamespace(request=request))
    assert session_of(record(lock=written)).request.lock == here
    here = here.model_copy(update={"data": {"french": "0" * 64}})
    with pytest.raises(DiagnosisError, match=r"data: .* in the records, .* run both sides again"):
        session_of(record(lock=written))


def test_a_case_from_elsewhere_is_taken_as_given(monkeypatch):
    case = load_case("int8_outliers").model_copy(update={"name": "mine"})
    written = lock().model_copy(update={"case": "mine", "parameters": case.values()})
    monkeypatch.setattr(comparable, "admit", lambda case, values: SimpleNamespace(lock=written))
    monkeypatch.setattr(comparable, "Session", lambda request: SimpleNamespace(request=request))
    assert session_of(record(lock=written), case).request.lock == written
    with pytest.raises(RecordError, match="mine"):
        session_of(record(lock=written))


INT8 = PolicyRule(
    match="layers.*",
    activation_format="int8",
    activation_granularity="per_tensor",
    weight_format="int8",
    weight_granularity="per_channel",
)


def verdicts(mechanism, what_ifs, rule=INT8, **counts):
    total = Incidence(step_kind="prefill", steps=4, elements=1000, **counts)
    failing = record(policy=PolicySheet(name="p", rules=[rule]), incidence=[total])
    found = differential(failing, mechanism, what_ifs)
    assert [one.mechanism for one in found] == list(ORDER)
    assert all(one.evidence for one in found)
    return {one.mechanism: one.verdict for one in found}


@pytest.mark.parametrize(
    ("equal", "more", "mechanism", "expected"),
    [
        (HELD, HELD, "S2", ("confirmed", "ruled out", "not tested")),
        (BROKEN, HELD, "R3", ("ruled out", "confirmed", "not tested")),
        (BROKEN, BROKEN, "X1", ("ruled out", "ruled out", "confirmed")),
        ((0.05, 0.3), (0.05, 0.3), "cannot_conclude", ("not tested", "not tested", "not tested")),
    ],
)
def test_one_mechanism_is_confirmed_and_only_what_was_decided_is_ruled_out(
    equal, more, mechanism, expected
):
    found = verdicts(mechanism, [what_if("e", True, *equal), what_if("m", False, *more)])
    assert (found["S2"], found["R3"], found["X1"]) == expected
    assert list(found.values()).count("confirmed") == (mechanism != "cannot_conclude")
    assert found["A1"] == found["L2"] == found["P1"] == "not tested"


def test_events_and_formats_rule_out_range():
    held = [what_if("e", True, *HELD)]
    assert verdicts("S2", held)["R1"] == "ruled out"
    assert verdicts("S2", held, overflow=3)["R1"] == "not tested"
    assert verdicts("S2", held)["R2"] == "cannot occur"
    fp8 = INT8.model_copy(update={"activation_format": "fp8_e4m3"})
    assert verdicts("S2", held, fp8)["R2"] == "not tested"
    unscaled = INT8.model_copy(update={"activation_granularity": "none"})
    assert verdicts("S2", held, unscaled)["R2"] == "not tested"


def test_every_mechanism_of_the_docs_has_a_verdict():
    table = (ROOT / "docs" / "mechanisms.md").read_text(encoding="utf-8")
    ids = re.findall(r"^\| ([A-Z]\d) \|", table, re.MULTILINE)
    assert list(ORDER) == ids


def test_operators_that_read_one_input_are_repaired_together():
    operators = [f"layers.{layer}.{kind}" for layer in range(2) for kind in LINEAR_KINDS]
    found = with_siblings(["layers.1.mlp.up_proj", "layers.0.mlp.down_proj"], operators)
    assert found == ["layers.0.mlp.down_proj", "layers.1.mlp.gate_proj", "layers.1.mlp.up_proj"]
    assert with_siblings(["layers.0.self_attn.k_proj"], operators) == operators[:3]


def test_a_repair_without_the_reserve_concludes_nothing(monkeypatch):
    """The deciding what-if holds, and no set does with the reserve: more tokens are asked for."""
    module = importlib.import_module("mpcore.diagnosis.diagnose")
    case = load_case("int8_outliers")
    loss = Estimate(value=0.9, low=0.8, high=1.0)
    broken = [q.model_copy(update={"delta_nll": loss}) for q in quality(**lock().tokens_per_slice)]
    screening = SimpleNamespace(first_passages=lambda count: [])
    session = SimpleNamespace(
        request=SimpleNamespace(parameters=case.values(), case=case),
        narrowed=lambda tokens: screening,
        plan=lambda policy: {"layers.0.mlp.down_proj": INT8},
    )
    held = what_if("per_token", True, *HELD)
    monkeypatch.setattr(
        module, "Replay", lambda session, base, *a, **k: SimpleNamespace(session=session, base=base)
    )
    monkeypatch.setattr(module, "run_what_ifs", lambda session, replay: [(held, [])])
    monkeypatch.setattr(module, "rank_operators", lambda clean, fault: None)
    monkeypatch.setattr(module, "find_sufficient_set", lambda *a: None)
    found = diagnose(
        record(quality=broken), record(quality=broken, role="comparator"), session=session
    )
    assert found.mechanism == "cannot_conclude"
    assert found.operators == []
    assert found.missing == ["more tokens: “per_token” holds, but not with the reserve"]
    assert [w.id for w in found.what_ifs] == ["per_token"]
    assert "confirmed" not in {one.verdict for one in found.mechanisms}


def test_an_unstable_comparator_is_refused():
    repeats = {"stable": False, "spread": 0.2, "limit": 0.01}
    found = investigate(record(), record(), repeats=repeats)
    assert found.diagnosis.mechanism == "C0"
    assert found.diagnosis.missing == [
        "a stable comparator: its repeats spread 0.2 nats, limit 0.01"
    ]


def test_every_what_if_changes_one_field_that_a_rule_has():
    rule = PolicyRule(match="*", activation_format="int8", weight_format="int8")
    for row in what_if_table():
        assert set(row["changes"]) <= set(PolicyRule.model_fields)
        changed = PolicyRule.parse({**rule.to_dict(), **row["changes"]})
        assert changed != rule


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ((0, 0, 0), "the token at position 0, not a channel"),
        ((0, 3, 0), "the token at position 0 in 2 of 3 windows, not a channel"),
        ((3, 5, 0), "single tokens, not channels"),
    ],
)
def test_the_position_of_the_outlier_is_read_and_not_assumed(tokens, words):
    name = "layers.11.mlp.down_proj"
    found = [replace(spike(), token=token) for token in tokens]
    assert axis_in_words([name], {name: found}) == f"token axis ({words}) in down_proj of layer 11"
