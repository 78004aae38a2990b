"""The report is one offline file that says what its packet says, for every reader, or nothing."""

from __future__ import annotations

import csv
import errno
import hashlib
import html.parser
import io
import itertools
import os
import re
import socket
import zipfile
from pathlib import Path

import nbformat
import pytest
from packets import MEMBERS, OPERATORS, diagnosis, make_packet, stages
from report_notebook import code_cell, make_notebook

from mpcore.records import Estimate
from mpcore.report import bundle, figures, numbers, sections
from mpcore.report.bundle import write_bundle
from mpcore.report.errors import ReportError
from mpcore.report.export import LIMIT, notebook_to_html
from mpcore.report.redact import redact, redact_html
from mpcore.report.summary import policy_csv, summary_markdown

HOSTILE = '<script>alert("x")</script> $a^2$ | `b`'
FIGURES = [name for name in figures.__all__ if name.startswith("figure_")]
SECTIONS = [n for n in sections.__all__ if n not in ("Section", "reproduce_command")]


def shown(name, packet):
    extra = (stages(),) if name == "execution_flow" else ()
    return getattr(sections, name)(packet, *extra)


class Page(html.parser.HTMLParser):
    """Every start tag, with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == name]


@pytest.fixture(scope="module")
def packet():
    return make_packet()


@pytest.fixture(scope="module")
def page(packet):
    return notebook_to_html(make_notebook(packet), packet.title, "mpcore report int8_outliers")


# One file, nothing loaded


def test_nothing_is_requested_from_elsewhere(page):
    addresses = set(re.findall(r"(?:https?:)?//[a-z][^\s\"'<>]*", page))
    assert addresses == {"http://www.w3.org/2000/svg", "http://www.w3.org/1998/Math/MathML"}
    parsed = Page(page)
    assert not parsed.all("script") + parsed.all("link") + parsed.all("iframe")
    sources = [tag.get("src") or tag.get("href") or "#" for _, tag in parsed.tags]
    assert all(source.startswith(("#", "data:")) for source in sources)
    assert not any(key.startswith("on") for _, tag in parsed.tags for key in tag)


def test_the_policy_forbids_scripts_and_requests(page):
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    metas = [meta for meta in Page(page).all("meta") if "http-equiv" in meta]
    assert [(m["http-equiv"], m["content"]) for m in metas] == [("Content-Security-Policy", policy)]


def test_size_is_bounded(page):
    assert len(page.encode()) <= LIMIT
    too_much = code_cell("big", sections.glossary(make_packet()))
    too_much.outputs[0].data["text/html"] = "x" * LIMIT
    with pytest.raises(ReportError, match="kB"):
        notebook_to_html(nbformat.v4.new_notebook(cells=[too_much]), "Big")


def test_same_packet_same_bytes(packet, page):
    again = notebook_to_html(
        make_notebook(make_packet()), packet.title, "mpcore report int8_outliers"
    )
    assert again == page


# Every reader


def test_pictures_have_text_alternatives(page):
    parsed = Page(page)
    assert len(parsed.all("svg")) == len(FIGURES)
    assert all(svg["role"] == "img" and len(svg["aria-label"]) > 40 for svg in parsed.all("svg"))
    assert all(image.get("alt") for image in parsed.all("img"))


def test_a_picture_without_alt_text_is_refused(packet):
    cell = code_cell("figure", figures.figure_quality(packet))
    cell.outputs[0].metadata = {}
    with pytest.raises(ReportError, match="alt text"):
        notebook_to_html(nbformat.v4.new_notebook(cells=[cell]), "Title")


def test_headings_descend_one_level_at_a_time(page):
    levels = [int(tag[1]) for tag, _ in Page(page).tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_tables_are_captioned_and_their_headers_scoped(page):
    parsed = Page(page)
    assert len(parsed.all("table")) == len(parsed.all("caption")) > 10
    assert {th.get("scope") for th in parsed.all("th")} == {"col", "row"}


def test_landmarks_language_and_skip_link(page):
    parsed = Page(page)
    assert parsed.all("html")[0]["lang"] == "en"
    for landmark in ("header", "main", "nav", "footer"):
        assert len(parsed.all(landmark)) == 1
    ids = [tag["id"] for _, tag in parsed.tags if "id" in tag]
    assert len(ids) == len(set(ids))
    targets = {a["href"][1:] for a in parsed.all("a")}
    assert "report" in targets and targets <= set(ids)


def test_maths_becomes_mathml_without_macros_left(page):
    formulas = re.findall(r"<math.*?</math>", page, re.DOTALL)
    assert len(formulas) == 2 and not any("\\" in formula for formula in formulas)


@pytest.mark.parametrize("formula", [r"$\nosuchmacro x$", r"$$a^b^c$$"])
def test_maths_that_cannot_be_shown_is_an_error(formula):
    cells = [nbformat.v4.new_markdown_cell(formula)]
    with pytest.raises(ReportError, match="maths"):
        notebook_to_html(nbformat.v4.new_notebook(cells=cells), "Title")


def test_first_screen_stands_first_and_removed_cells_are_gone(page):
    assert page.index("What failed") < page.index('<nav aria-labelledby="contents">')
    assert page.count("What failed</h2>") == 1
    assert "hidden words" not in page
    assert "granularity = " not in page


def test_code_is_collapsed(page):
    assert page.count('<details class="code">') == page.count('<div class="highlight">')


# What it says


def test_first_screen_says_what_why_what_to_do_and_how_sure(packet):
    text = repr(sections.first_screen(packet))
    for said in (
        "0.702",  # what failed, how far
        "[S2]",  # why, with its id
        "token axis",
        "Give every token its own activation scale",
        "compiler quantization engineer",
        "not signed",
        "Only 1\u202f544 tokens were scored",
        "±0.044",
        "4 of the 6 operators are named",
        "on the 6\u202f440 that did not choose it 0.033, bound 0.045",
        "modelled",
        "dequantised Q4_1 checkpoint",
        "nothing is claimed about 4-bit weights",
        "Decision: hold",
    ):
        assert said in text, said


@pytest.mark.parametrize("name", SECTIONS)
def test_text_form_carries_the_numbers_of_the_html_form(packet, name):
    section = shown(name, packet)
    visible = section._repr_html_().replace("<wbr>", "")
    visible = html.unescape(re.sub(r"<[^>]+>", " ", visible))
    spoken = repr(section)
    figures_in = re.compile(r"\d[\d.\u202f]*")
    assert set(figures_in.findall(visible)) <= set(figures_in.findall(spoken))


@pytest.mark.parametrize("name", FIGURES)
def test_pictures_are_the_same_every_time_and_prefix_their_ids(packet, name):
    picture = getattr(figures, name)(packet)
    assert picture == getattr(figures, name)(packet)
    assert repr(picture) == picture.alt
    data, metadata = picture._repr_mimebundle_()
    assert metadata["image/svg+xml"]["alt"] == data["text/plain"] == picture.alt
    ids = re.findall(r'\sid="([^"]+)"', picture.svg)
    assert all(one.startswith(f"mp-{picture.name}") for one in ids)
    assert not re.search(r"#0101[01][0-9]", picture.svg), "a sentinel colour is left"


def test_layers_outside_the_screening_are_hatched_and_members_marked(packet):
    svg = figures.figure_layers(packet).svg
    assert len(re.findall(r">S</text>", svg)) == len(MEMBERS) + 1  # and one in the key
    assert svg.count("url(#mp-layers-h") >= 30


def test_policy_table_collapses_operators_and_marks_changes(packet):
    text = repr(sections.policy_table(packet))
    assert "→ down (down_proj), layers 0–29 | 30" in text
    assert text.count("→ changed") == 1


def test_glossary_explains_the_terms_on_the_page(packet, page):
    terms = re.findall(r"<dt>([^<]+)</dt>", sections.glossary(packet)._repr_html_())
    for term in ("guardrail", "KL divergence", "underflow", "nats", "set S", "prefill"):
        assert term in terms
    assert all(re.search(re.escape(term), page, re.IGNORECASE) for term in terms)


def test_first_failing_stage_is_marked(packet):
    text = repr(sections.execution_flow(packet, stages(), stages()))
    assert "→ 4. Tensor execution" in text and "first failing stage [S2]" in text


def test_an_inconclusive_packet_is_reported_as_such():
    open_ended = diagnosis().model_copy(
        update={
            "mechanism": "cannot_conclude",
            "operators": [],
            "operators_stable": [],
            "first": None,
            "stage": None,
            "axis": None,
            "effects": [],
            "what_ifs": [],
            "interaction": {},
            "necessity": {},
            "confidence": {},
        }
    )
    packet = make_packet(
        diagnosis=open_ended, fix=None, decision="cannot_conclude", trend=[], incidence=[]
    )
    text = repr(sections.first_screen(packet))
    assert "does not single out a mechanism" in text and "a run of a serving stack" in text
    assert len(notebook_to_html(make_notebook(packet), "Open").encode()) < LIMIT
    assert len(summary_markdown(packet).splitlines()) <= 30


# Hostile strings


def test_markup_in_a_packet_is_shown_not_obeyed():
    packet = make_packet(
        title=HOSTILE,
        decision_reason=HOSTILE,
        limits=[HOSTILE],
        comparator={HOSTILE: [{HOSTILE: HOSTILE}], "note": HOSTILE},
        volatile={"host": HOSTILE},
    )
    names = {
        name: sheet.model_copy(update={"name": HOSTILE}) for name, sheet in packet.policy.items()
    }
    trend = [point.model_copy(update={"policy": HOSTILE}) for point in packet.trend]
    packet = packet.model_copy(update={"policy": names, "trend": trend})
    page = notebook_to_html(make_notebook(packet), packet.title, HOSTILE)
    assert not Page(page).all("script")
    assert "&lt;script&gt;" in page
    assert "<script" not in summary_markdown(packet).replace(r"\<script", "")


def test_markup_in_a_notebook_is_shown_not_obeyed():
    cell = nbformat.v4.new_code_cell(
        "print()", outputs=[nbformat.v4.new_output("stream", text=HOSTILE)]
    )
    cells = [nbformat.v4.new_markdown_cell("<script>alert(1)</script>"), cell]
    page = notebook_to_html(nbformat.v4.new_notebook(cells=cells), "Title")
    assert not Page(page).all("script") and page.count("&lt;script&gt;") == 2


@pytest.mark.parametrize("text", ['=HYPERLINK("http://x")', "+1+1", "@SUM(A1)", "-2+3", "\t=1"])
def test_policy_csv_holds_no_formulas(packet, text):
    rows = [{**packet.policy_table[0], "operator": text}]
    table = list(
        csv.reader(io.StringIO(policy_csv(packet.model_copy(update={"policy_table": rows}))))
    )
    assert table[1][0] == "'" + text


def test_policy_csv_has_a_row_an_operator(packet):
    table = list(csv.DictReader(io.StringIO(policy_csv(packet))))
    assert [row["operator"] for row in table] == OPERATORS
    assert table[6]["before_activation_granularity"] == "per_tensor"
    assert table[6]["after_activation_granularity"] == "per_token"
    assert {row["guardrail_threshold"] for row in table} == {"0.05"}


def test_summary_fits_a_pull_request(packet):
    lines = summary_markdown(packet).splitlines()
    assert len(lines) <= 30
    assert "mpcore report int8_outliers -p granularity=per_tensor" in lines[-1]


# Numbers


def test_numbers_read_well():
    assert numbers.count(1234567) == "1\u202f234\u202f567"
    assert numbers.loss(-0.0401) == "−0.040" and numbers.loss(-0.0001) == "0.000"
    assert numbers.share(0.997) == "99.70\u202f%" and numbers.share(1.0) == "100\u202f%"
    assert numbers.number(0.000012) == "1.2\u202f×\u202f10⁻⁵"
    assert numbers.number(19_437.0) == "19\u202f400" and numbers.number(-2.5) == "−2.50"
    assert numbers.ranges([0, 1, 2, 5, 7, 8]) == "0–2, 5, 7–8"
    assert numbers.plain({"a_b": Estimate(value=1, low=0, high=2)}) == "a b: 1.00 (0 to 2.00)"


# The folder


FILES = {"report.html": b"<p>", "packet.json": b"{}", "figures/a.svg": b"<svg/>"}


def names_in(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def test_bundle_has_sums_and_a_deterministic_archive(tmp_path):
    first = write_bundle(tmp_path / "one", FILES)
    second = write_bundle(tmp_path / "two", dict(reversed(FILES.items())))
    assert (first / "packet.zip").read_bytes() == (second / "packet.zip").read_bytes()
    for line in (first / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((first / name).read_bytes()).hexdigest() == digest
    with zipfile.ZipFile(first / "packet.zip") as archive:
        assert set(archive.namelist()) == {*FILES, "SHA256SUMS"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_bundle_replaces_an_older_one_and_keeps_what_people_added(tmp_path):
    folder = write_bundle(tmp_path / "out", FILES)
    (folder / "signature.txt").write_text("signed")
    write_bundle(folder, {"report.html": b"new"})
    assert names_in(folder) == {"report.html", "SHA256SUMS", "packet.zip", "signature.txt"}
    assert (folder / "report.html").read_bytes() == b"new"


def test_a_folder_of_other_things_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ReportError, match="no report wrote"):
        write_bundle(tmp_path, FILES)
    assert names_in(tmp_path) == {"thesis.tex"}
    with pytest.raises(ReportError, match=r"thesis\.tex: is a file"):
        write_bundle(tmp_path / "thesis.tex" / "out", FILES)


def test_a_folder_that_cannot_be_swapped_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ReportError, match="is the folder that you are in"):
        write_bundle(".", FILES)
    (tmp_path / "disk").mkdir()
    monkeypatch.setattr(bundle.os.path, "ismount", lambda path: str(path).endswith("disk"))
    with pytest.raises(ReportError, match=r"disk: is a mount point .* a folder inside it"):
        write_bundle("disk", FILES)
    assert names_in(tmp_path) == set()


@pytest.mark.parametrize("name", ["../x", "/x", "a\\b", "packet.zip", "a/../../x", "./x"])
def test_names_that_leave_the_folder_are_refused(tmp_path, name):
    with pytest.raises(ReportError, match="file name"):
        write_bundle(tmp_path / "out", {name: b""})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", ["fsync", "rename"])
@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("older", [False, True])
def test_a_failure_leaves_the_old_bundle_or_nothing(
    tmp_path, monkeypatch, failure, step, nth, older
):
    folder = tmp_path / "out"
    if older:
        write_bundle(folder, {"report.html": b"old"})
    real, calls = getattr(os, step), []

    def failing(*arguments):
        calls.append(arguments)
        if len(calls) == nth:
            raise failure
        return real(*arguments)

    monkeypatch.setattr(bundle.os, step, failing)
    try:
        write_bundle(folder, FILES)
    except (OSError, KeyboardInterrupt) as error:
        assert isinstance(error, KeyboardInterrupt) or error.filename == str(folder)
        assert folder.exists() == older
        assert not older or (folder / "report.html").read_bytes() == b"old"
    else:
        assert len(calls) < nth and (folder / "report.html").read_bytes() == b"<p>"
    assert [path.name for path in tmp_path.iterdir()] == (["out"] if folder.exists() else [])


# Redaction


def test_host_user_and_paths_are_redacted(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "thunder-7")
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    text = redact(f"{Path.home()}/x by ada on thunder-7, /home/bob/y /tmp/z1/k C:\\Users\\eve\\f")
    assert text == "~/x by [user] on [host], /home/[user]/y [temporary] C:\\Users\\[user]\\f"
    assert redact("roots of canada and the Adagio") == "roots of canada and the Adagio"


def test_redaction_leaves_markup_alone(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "main")
    page = '<style>main{}</style><main class="main" title="on main">main</main>'
    expected = '<style>main{}</style><main class="main" title="on [host]">[host]</main>'
    assert redact_html(page) == expected
