"""The case int8_outliers, produced by its notebook, from end to end: small, and at full size."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import independent_model
import nbformat
import numpy as np
import pytest
import report_page

from mpcore.flow import open_session
from mpcore.flow.release import fires
from mpcore.flow.run import qualities_of
from mpcore.paths import ROOT, models_folder
from mpcore.records import Packet, digest_of
from mpcore.report.produce import produce

FILES = {"report.html", "report.ipynb", "packet.json", "policy.csv", "summary.md"}


@pytest.fixture(scope="module", params=["test", pytest.param("full", marks=pytest.mark.full)])
def profile(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def report(profile, tmp_path_factory) -> Path:
    """The report's folder; MPLBACKEND=Agg is set, which must not cost it its pictures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPLBACKEND", "Agg")
        return produce("int8_outliers", {}, profile, tmp_path_factory.mktemp("out") / "report")


@pytest.fixture(scope="module", autouse=True)
def rerun(report, tmp_path_factory):
    """nbval on the report's notebook with one stored number changed, beside the other tests.

    It takes as long as the report did. The process, and how many cells it runs.
    """
    notebook = nbformat.read(report / "report.ipynb", 4)
    cell = next(c for c in notebook.cells if "lines.run_line(failing)" in c.source)
    text = cell.outputs[0]["text"]
    changed = re.sub(r"perplexity (\d)", lambda m: f"perplexity {9 - int(m[1])}", text)
    assert changed != text
    cell.outputs[0]["text"] = changed
    copy = tmp_path_factory.mktemp("rerun") / "changed.ipynb"
    nbformat.write(notebook, copy)
    nbval = ["--nbval", "--nbval-current-env", "--nbval-cell-timeout=1800"]
    nbval += ["-p", "mpcore.report.notebook_format"]
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *nbval, str(copy)],
        cwd=ROOT / "notebooks" / "cases",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        yield process, sum(c.cell_type == "code" for c in notebook.cells)
        process.kill()


@pytest.fixture(scope="module")
def packet(report) -> Packet:
    return Packet.read(report / "packet.json")


def test_every_file_is_there_and_nothing_else(report):
    assert {path.name for path in report.iterdir()} >= FILES
    assert [path.name for path in report.parent.iterdir()] == ["report"]


def test_the_verdict_is_one_scale_for_too_many_tokens(packet):
    found = packet.diagnosis
    assert (found.mechanism, found.bottleneck_class, found.stage) == ("S2", "scale", "execution")
    assert found.axis.startswith("token axis")
    assert found.first == (found.operators_stable or found.operators)[0]
    assert any(w.equal_bits and w.holds for w in found.what_ifs)
    assert packet.decision == "roll_back"
    assert packet.comparator["stable"]


def test_the_failing_policy_breaks_every_slice_and_the_fix_holds_on_every_slice(packet):
    states = {}
    for row in packet.metrics:
        if row.step_kind == "prefill":
            states.setdefault(row.run, set()).add(row.guardrail)
            assert (row.tokens_per_s_at_quality > 0) == (row.guardrail == "holds")
    assert states == {"comparator": {"holds"}, "failing": {"broken"}, "fix": {"holds"}}
    assert packet.fix.confirmed


def test_the_rollback_trigger_fires_on_the_failing_run_alone(packet):
    assert packet.rollback.evaluated == {"comparator": False, "failing": True, "fix": False}
    worst = max(row.delta_nll.high for row in packet.metrics if row.run == "failing")
    assert fires(packet.rollback.predicate, {"worst_upper_delta_nll": worst, "overflow_share": 0})


def test_every_claim_is_proved_by_a_part_of_the_packet_with_its_hash(report, packet):
    data = json.loads((report / "packet.json").read_text(encoding="utf-8"))
    for claim in packet.claims:
        part = claim.artifact.removeprefix("packet.json#/")
        assert digest_of(data[part]) == claim.sha256, claim.claim


def test_repairing_the_set_holds_the_guardrail_when_it_is_replayed(packet, profile):
    session = open_session("int8_outliers", profile)
    change = packet.fix.policy_after
    replayed = qualities_of(session, session.score(session.plan(change), kl=False))
    limit = packet.guardrail["threshold"]
    assert all(item.delta_nll.high <= limit for item in replayed)
    rows = {r.slice: r for r in packet.metrics if (r.run, r.step_kind) == ("fix", "prefill")}
    for item in replayed:
        assert item.delta_nll.value == pytest.approx(rows[item.slice].delta_nll.value, abs=2e-3)


def test_the_numbers_agree_with_a_computation_that_shares_no_code(packet):
    theirs = independent_model.load(models_folder() / "smollm2-135m" / "model.gguf")
    name = packet.parameters["slices"][0]
    losses, int8 = {"oracle": [], "failing": []}, independent_model.int8("per_tensor")
    for passage in sorted((ROOT / "data" / "passages" / name).glob("*.txt")):
        tokens = theirs.tokenize(passage.read_text(encoding="utf-8"))
        if share := -(-packet.parameters["tokens"] // 10):
            tokens = tokens[: share + 1]
        for start in range(0, len(tokens) - 1, 256):
            window = tokens[start : start + 256]
            losses["oracle"] += [theirs.nll(window, independent_model.fp32)]
            losses["failing"] += [theirs.nll(window, int8)]
    oracle, failing = (np.concatenate(losses[run]) for run in ("oracle", "failing"))
    row = next(r for r in packet.metrics if (r.run, r.slice) == ("failing", name))
    assert row.tokens == len(oracle)
    # The oracle agrees to the last digits; int8 codes flip on them (see test_language_model.py).
    assert row.perplexity / np.exp(row.delta_nll.value) == pytest.approx(np.exp(oracle.mean()))
    expected = (failing - oracle).mean()
    assert expected > packet.guardrail["threshold"]
    assert row.delta_nll.value == pytest.approx(expected, abs=0.15)


def test_the_report_is_one_offline_file_with_every_picture(report):
    html = (report / "report.html").read_text(encoding="utf-8")
    assert len(html.encode()) <= 400_000
    assert html.count("<svg") >= 6
    assert "default-src &#39;none&#39;" in html or "default-src 'none'" in html
    links = re.findall(r"(?:src|href)=[\"'](?!#|data:)([^\"']+)", html)
    assert links == []
    assert "tokens were scored" in html


@pytest.mark.browser
def test_the_report_fits_screens_and_paper(report, chromium, tmp_path):
    with (
        report_page.launched(chromium) as browser,
        report_page.opener(browser, report / "report.html") as opened,
    ):
        for size, font in product(report_page.SIZES, report_page.FONTS):
            report_page.check_nothing_is_clipped(opened(size, "light", font), size)
        for scheme in ("light", "dark"):
            report_page.check_contrast(opened("desktop", scheme))
        report_page.check_first_screen_fits(opened("desktop", "light", "widest"))
        report_page.check_print(opened("desktop", "dark"), tmp_path / "report.pdf")


def test_nbval_reruns_the_notebook_and_sees_the_one_number_that_was_changed(rerun):
    process, cells = rerun
    printed, _ = process.communicate()
    assert f"1 failed, {cells - 1} passed" in printed, printed[-3000:]
    assert process.returncode == 1
