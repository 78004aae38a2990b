"""Records: strict, published as schemas, with digests that only content changes."""

from __future__ import annotations

import json
import math
import re

import pytest
from packets import make_packet
from pydantic import ValidationError

from mpcore.paths import DATA
from mpcore.records import (
    Case,
    Diagnosis,
    Estimate,
    Lock,
    Packet,
    Parameter,
    PassageScore,
    PolicyRule,
    PolicySheet,
    RecordError,
    RunRecord,
    Scope,
    canonical_json,
    digest_of,
    load_case,
)

PUBLISHED = {
    Case: "mpcore.case/1",
    Diagnosis: "mpcore.diagnosis/1",
    Lock: "mpcore.lock/1",
    Packet: "mpcore.packet/1",
    PolicySheet: "mpcore.policy/1",
    RunRecord: "mpcore.run/1",
}


@pytest.mark.parametrize("record", PUBLISHED, ids=lambda record: record.__name__)
def test_schemas_export_with_their_version(record):
    schema = record.model_json_schema(mode="serialization")
    assert schema["properties"]["schema"]["const"] == PUBLISHED[record]
    assert schema["additionalProperties"] is False
    json.dumps(schema, allow_nan=False)


def test_a_packet_survives_writing_and_reading(tmp_path):
    packet = make_packet()
    (tmp_path / "packet.json").write_text(packet.to_json(), encoding="utf-8")
    again = Packet.read(tmp_path / "packet.json")
    assert again.to_json() == packet.to_json()
    assert again.lock.digest == packet.lock.digest


def test_a_digest_depends_on_content_and_not_on_order():
    assert digest_of({"a": 1, "b": [1.5, "ä"]}) == digest_of({"b": [1.5, "ä"], "a": 1})
    assert digest_of({"a": 1}) != digest_of({"a": 2})
    assert canonical_json({"b": "ä", "a": None}) == '{"a":null,"b":"ä"}'
    # Pinned: a digest in an old packet has to be found again.
    assert digest_of({"a": 1}) == "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"


def test_a_locks_digest_covers_every_field_and_is_checked_when_read():
    lock = make_packet().lock
    written = lock.to_dict()
    assert Lock.parse(written).digest == lock.digest
    for field, changed in {"machine": "another", "seeds": {"other": 1}}.items():
        with pytest.raises(RecordError, match="digest"):
            Lock.parse({**written, field: changed})


def test_unknown_fields_are_refused_by_name():
    with pytest.raises(RecordError, match=r"sheet: rules\.0\.acumulator: Extra inputs"):
        PolicySheet.parse(
            {
                "name": "p",
                "rules": [
                    {
                        "match": "*",
                        "activation_format": "bf16",
                        "weight_format": "bf16",
                        "acumulator": "fp16",
                    }
                ],
            },
            "sheet",
        )


def test_nan_and_broken_files_are_refused_in_one_line(tmp_path):
    written = make_packet().to_json()
    broken = [written[: len(written) // 2], "[" * 100_000, "", "\x00"]
    for value in ("NaN", "1e999", "9" * 5000, r'"\ud800"'):  # JSON to some, nothing to write again
        broken.append(written.replace('"volatile": {', f'"volatile": {{"x": {value}, '))
    for text in broken:
        (tmp_path / "p.json").write_text(text, encoding="utf-8")
        with pytest.raises(RecordError, match="not JSON") as caught:
            Packet.read(tmp_path / "p.json")
        assert "\n" not in str(caught.value)
    with pytest.raises(RecordError, match="cannot be read"):
        Packet.read(tmp_path / "absent.json")
    with pytest.raises(ValueError):
        canonical_json({"x": math.nan})


@pytest.mark.parametrize("field", ["slices", "sla", "owners"])
def test_scope_is_never_defaulted(field):
    scope = load_case("int8_outliers").scope.to_dict()
    Scope.parse(scope)
    del scope[field]
    with pytest.raises(RecordError, match=rf"{field}: Field required"):
        Scope.parse(scope)


def test_a_byte_order_mark_does_no_harm(tmp_path):
    written = make_packet().to_json()
    (tmp_path / "p.json").write_text(written, encoding="utf-8-sig")
    assert Packet.read(tmp_path / "p.json").to_json() == written


CASE = (DATA / "cases" / "int8_outliers.toml").read_text(encoding="utf-8")
PARAMETER = '[parameters.{}]\ntype = "str"\ndefault = "x"\nhelp = ""\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = " + "[" * 100_000, "not TOML"),
        (f"x = {'9' * 5000}", "not TOML"),
        ("nonsense = 1\n" + CASE, "nonsense: Extra inputs"),
        (CASE.replace("[scope.owners]", "[scope.people]"), "scope.owners: Field required"),
        (CASE.replace("repeats = 3", 'repeats = "x"'), "comparator.repeats: Input should be"),
        (CASE.replace("order = 7", "order = -7"), "seeds.order: a whole number, at least 0"),
        (CASE.replace("order = 7", "odrer = 7"), "seeds.order: a whole number, at least 0"),
        (CASE.replace("tokens = 160", "tokns = 200"), "profile.test sets unknown parameter tokns"),
        (CASE.replace("tokens = 160", "tokens = -2"), "parameter tokens: -2 is not valid"),
        (CASE.replace('slices = ["english', 'slices = ["old", "english', 1), "scope.slices: old"),
        (CASE + PARAMETER.format("profile"), "parameters.profile: a name as Python has them"),
        (CASE + PARAMETER.format('"a b"'), "parameters.a b: a name as Python has them"),
        (CASE + PARAMETER.format("class"), "parameters.class: a name as Python has them"),
    ],
)
def test_a_broken_case_is_one_line_that_starts_with_its_file(tmp_path, text, said):
    (tmp_path / "c.toml").write_text(text, encoding="utf-8")
    with pytest.raises(RecordError, match=rf"c\.toml: {said}") as caught:
        load_case(tmp_path / "c.toml")
    assert "\n" not in str(caught.value) and "Value error" not in str(caught.value)


def test_scope_needs_every_owner():
    scope = load_case("int8_outliers").scope.to_dict()
    scope["owners"].pop("numerical methods owner")
    with pytest.raises(RecordError, match="owners lacks numerical methods owner"):
        Scope.parse(scope)


def test_the_first_matching_rule_decides():
    bf16 = PolicyRule(match="*", activation_format="bf16", weight_format="bf16")
    int8 = PolicyRule(match="layers.1.*", activation_format="int8", weight_format="int8")
    sheet = PolicySheet(name="p", rules=[bf16]).with_rules_above("q", [int8])
    assert sheet.rule_for("layers.1.mlp.up_proj") == int8
    assert sheet.rule_for("layers.11.mlp.up_proj") == bf16
    assert sheet.revision == 2
    with pytest.raises(RecordError, match=r"no rule matches operator 'lm_head'; .*layers\.1\.\*"):
        PolicySheet(name="p", rules=[int8]).rule_for("lm_head")


def test_records_do_not_change():
    with pytest.raises(ValidationError):
        make_packet().case = "other"


INT = Parameter(type="int", default=4, help="", minimum=1, maximum=9)
FLOAT = Parameter(type="float", default=0.5, help="", minimum=0)
CHOICE = Parameter(type="str", default="a", help="", choices=["a", "b"])
SOME = Parameter(type="list", default=["a"], help="", choices=["a", "b"])


@pytest.mark.parametrize(
    ("parameter", "given", "value"),
    [
        (INT, "7", 7),
        (INT, 7.0, 7),
        (FLOAT, "1e-3", 0.001),
        (FLOAT, 2, 2.0),
        (CHOICE, "b", "b"),
        (SOME, "b, a", ["b", "a"]),
        (SOME, ["b"], ["b"]),
    ],
)
def test_values_take_the_parameters_type(parameter, given, value):
    got = parameter.validate_value("p", given)
    assert got == value and type(got) is type(value)


@pytest.mark.parametrize(
    ("parameter", "given"),
    [
        *((INT, bad) for bad in ("0", "10", "7.5", 7.5, True, "nan", "", None, math.inf)),
        *((FLOAT, bad) for bad in ("nan", "inf", "-1", "x", math.nan, [1])),
        *((CHOICE, bad) for bad in ("c", 1, None, "")),
        *((SOME, bad) for bad in ("a,a", "", [], "a,c", 3)),
    ],
)
def test_other_values_are_refused_with_what_would_be_valid(parameter, given):
    with pytest.raises(RecordError, match=r"parameter p: .* is not valid; (one|a whole|a number)"):
        parameter.validate_value("p", given)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            CASE.replace("{ long_context = 1024 }", "{ long_context = 0 }"),
            "protocol.long_windows.long_context",
        ),
        (
            CASE.replace("{ long_context = 1024 }", "{ long_context = 1 }"),
            "protocol.long_windows.long_context",
        ),
        (
            CASE.replace("[parameters.machine]\n", "[parameters.machine]\nminimum = 3\n"),
            "minimum and maximum are for numbers",
        ),
    ],
)
def test_a_case_that_cannot_run_is_refused(tmp_path, text, said):
    assert text != CASE
    file = tmp_path / "mine.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(RecordError, match=re.escape(said)):
        load_case(file)


@pytest.mark.parametrize("value", ["1" + "0" * 400, "9" * 5000, "1e400", 10**16, "nan", "-inf"])
@pytest.mark.parametrize("name", ["tokens", "guardrail"])
def test_a_number_beyond_reason_is_refused_in_a_short_line(name, value):
    with pytest.raises(RecordError, match=f"parameter {name}") as caught:
        load_case("int8_outliers").values(**{name: value})
    assert len(str(caught.value)) < 250


def test_the_ends_of_an_interval_are_in_order():
    assert Estimate(value=1.0, low=1.0, high=1.0).low == 1.0
    with pytest.raises(ValueError, match="above"):
        Estimate(value=1.0, low=2.0, high=0.0)


@pytest.mark.parametrize("loss", [1e308, -1e13])
def test_a_loss_beyond_reason_is_refused(loss):
    with pytest.raises(RecordError, match="nll"):
        PassageScore.parse({"passage": "p", "tokens": 1, "nll": loss, "oracle_nll": 1, "kl": None})
