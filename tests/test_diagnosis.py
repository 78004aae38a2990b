"""What the isolator decides from what-ifs, locks and repeats, without running the model."""

from __future__ import annotations

import pytest
from packets import lock

from mpcore.diagnosis.diagnose import _decide, investigate, lock_differences
from mpcore.diagnosis.outliers import Outlier, main_axis
from mpcore.diagnosis.what_ifs import what_if_table
from mpcore.records import Estimate, PolicyRule, PolicySheet, RunRecord, WhatIf


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


def spike(**changes) -> Outlier:
    figures = {"largest": 2824.0, "same_token": 960.0, "same_channel": 0.1, "elsewhere": 5.9}
    return Outlier(
        "layers.11.mlp.down_proj", token=0, channel=7, first_ratio=478, **figures | changes
    )


def test_the_axis_is_read_from_what_surrounds_the_outlier():
    token = spike()
    channel = spike(same_channel=2000.0, elsewhere=2000.0)
    neither = spike(elsewhere=2000.0)
    assert [one.axis for one in (token, channel, neither)] == ["token", "channel", "none"]
    assert main_axis([token, token, channel]) == "token"
    assert main_axis([token, channel]) == "none"


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
