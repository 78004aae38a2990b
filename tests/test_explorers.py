"""The explorers without a browser: a changed trait is a changed picture, and nothing else is."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import numpy as np
import pytest

import mpcore as mp
from mpcore.errors import InputError, quoted
from mpcore.matmul.trace import trace_sum
from mpcore.workbook.explorer import Explorer
from mpcore.workbook.format_explorer import FormatExplorer, parse_number
from mpcore.workbook.format_picture import boundary, losses
from mpcore.workbook.loss_scale_player import LossScalePlayer
from mpcore.workbook.tile_explorer import ORDERS, TILES, TileExplorer
from mpcore.workbook.tile_picture import TREES, decades_of, merges_of
from mpcore.workloads.captured import captured

CHANGES = [
    (FormatExplorer, "value", "0.3"),
    (FormatExplorer, "left", "fp4"),
    (FormatExplorer, "right", "e5m10"),
    (FormatExplorer, "rounding", "toward_zero"),
    (FormatExplorer, "tensor", "none"),
    (FormatExplorer, "tensor", "down_proj_11_weight"),
    (TileExplorer, "row", 2),
    (TileExplorer, "column", 3),
    (TileExplorer, "operands", "fp8_e4m3"),
    (TileExplorer, "accumulator", "fp16"),
    (TileExplorer, "order", "strided_tree"),
    (TileExplorer, "tile", "2 × 2 × 64"),
    (TileExplorer, "step", 700),
]
KINDS = (FormatExplorer, TileExplorer, LossScalePlayer)


@pytest.mark.parametrize(("kind", "name", "value"), CHANGES)
def test_a_changed_trait_changes_the_picture_and_changed_back_restores_it(kind, name, value):
    explorer = kind()
    before, was, drawn = explorer.picture, getattr(explorer, name), explorer.drawn
    setattr(explorer, name, value)
    assert explorer.picture != before
    assert explorer.drawn > drawn
    assert explorer.picture == kind(**{name: value}).picture
    setattr(explorer, name, was)
    assert explorer.picture == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_is_well_formed_said_in_words_and_asks_for_nothing(kind):
    explorer = kind()
    root = ET.fromstring(explorer.picture)
    assert root.get("aria-label") == explorer.spoken != ""
    assert not re.search(r"<script|https?://(?!www\.w3\.org)|javascript:", explorer.picture)
    parts = [e for e in root.iter() if e.get("role") == "button"]
    assert all(p.get("aria-label") and p.get("tabindex") == "0" for p in parts)
    assert root.get("role") == ("group" if parts else "img")


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_kernel_the_picture_stands_for_the_explorer(kind):
    explorer = kind()
    data, _ = explorer._repr_mimebundle_()
    assert explorer.picture in data["text/html"]
    assert "<script" not in data["text/html"]
    assert repr(explorer) == repr(kind())  # nbval compares it


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_setting_is_refused_by_name(kind):
    with pytest.raises(InputError, match=r"has no colour; it has \w+"):
        kind(colour="red")


@pytest.mark.parametrize("kind", KINDS)
def test_every_control_is_labelled_and_belongs_to_a_trait(kind):
    explorer = kind()
    for control in explorer.controls:
        assert control["label"]
        if control["kind"] not in ("buttons", "play"):
            assert control["name"] in explorer.inputs
        if control["kind"] == "select":
            values = [value for value, _ in control["options"]]
            # what a form says comes as text
            assert str(getattr(explorer, control["name"])).removesuffix(".0") in values


@pytest.mark.parametrize("key", ["", "bit", "bit:left:99", "bit:up:1", "element:9:9", "<script>"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_button_that_is_not_there_is_refused_and_changes_nothing(kind, key):
    explorer = kind()
    before = explorer.picture
    with pytest.raises(InputError, match="has no button"):
        explorer.press(key)
    explorer._pressed({"press": key})  # from a front end: told, not raised
    explorer._pressed("nonsense")
    assert explorer.picture == before
    assert "has no button" in explorer.problem


def test_what_cannot_be_drawn_says_why_and_the_next_state_is_drawn_again():
    explorer = FormatExplorer()
    before = explorer.picture
    explorer.value = "abc"
    assert '"abc" is not a number' in explorer.problem and "\n" not in explorer.problem
    assert "Nothing can be drawn" in explorer.picture
    explorer.value = "0.1"
    assert (explorer.picture, explorer.problem) == (before, "")


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        (TileExplorer, {"order": "nope"}),
        (TileExplorer, {"row": 9}),
        (FormatExplorer, {"left": "fp64"}),
        (FormatExplorer, {"tensor": "nothing"}),
        (LossScalePlayer, {"step": 999}),
        (LossScalePlayer, {"growth": 3}),
        (LossScalePlayer, {"interval": 10**400}),
        (LossScalePlayer, {"growth": 10**400}),
        (LossScalePlayer, {"backoff": "y" * 999}),
        (LossScalePlayer, {"interval": "y" * 999}),
        (LossScalePlayer, {"interval": 10**5000}),
        (LossScalePlayer, {"step": 10**5000}),
        (LossScalePlayer, {"step": True}),
        (LossScalePlayer, {"init_exponent": 1.5}),
        (LossScalePlayer, {"format": "y\n" * 999}),
        (TileExplorer, {"row": True}),
        (TileExplorer, {"step": True}),
        (TileExplorer, {"step": -(10**400)}),
        (TileExplorer, {"order": ["y"] * 999}),
        (FormatExplorer, {"scale_exponent": True}),
        (FormatExplorer, {"scale_exponent": 10**400}),
        (FormatExplorer, {"left": "y" * 999}),
        (FormatExplorer, {"tensor": "y" * 999}),
        (FormatExplorer, {"value": 5}),
    ],
    ids=lambda value: quoted(value) if isinstance(value, dict) else value.__name__,
)
def test_what_a_front_end_may_not_set_is_put_back_told_and_answered(kind, state):
    explorer = kind()
    [name] = state
    before, drawn = getattr(explorer, name), explorer.drawn
    explorer.set_state(state)
    assert getattr(explorer, name) == before
    assert explorer.drawn > drawn
    assert explorer.problem and "\n" not in explorer.problem
    assert len(explorer.problem) < 400 and explorer.problem.count("y") < 70


def test_a_defect_is_told_and_never_leaves_the_front_end_waiting():
    class Broken(Explorer):
        inputs = ()

        def controls_of(self):
            return []

        def draw(self):
            raise ZeroDivisionError("oh")

    with pytest.raises(ZeroDivisionError):
        Broken()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.1", 0.1),
        (" −3e-5 ", -3e-5),
        ("1/3", 1 / 3),
        ("2**-14", 2.0**-14),
        ("-2^3", -8.0),
        ("-2**-14", -(2.0**-14)),
        ("-3**2", -9.0),
        ("1_000", 1000.0),
        ("inf", np.inf),
        ("10**2", 100.0),
        ("10**23", 1e23),
        ("-10**-23", -1e-23),
        ("3**-5", 1 / 3**5),
        ("7**300", float(7**300)),
        ("2**-1074", 5e-324),
        ("3**-99999", 0.0),
        ("2**1023", 2.0**1023),
        ("1**99999999", 1.0),
        ("0**0", 1.0),
    ],
)
def test_numbers_are_read_as_people_write_them(text, value):
    assert parse_number(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "abc",
        "1/0",
        "1..2",
        "9" * 99,
        "2**99999",
        "9**9999999",
        "0**-1",
        "2**1024",
        "1\n2",
        "0x1",
        "<b>1</b>",
        "1e",
    ],
)
def test_what_is_no_number_is_refused_in_one_line(text):
    with pytest.raises(InputError, match="is not a number") as error:
        parse_number(text)
    assert "\n" not in str(error.value) and len(str(error.value)) < 150


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "0", "-0.0", "1e300", "1e-300", "448"])
@pytest.mark.parametrize("formats", [("fp8_e4m3", "fp32"), ("int8", "fp4"), ("bf16", "uint4")])
def test_every_number_has_a_picture(value, formats):
    explorer = FormatExplorer(value=value, left=formats[0], right=formats[1])
    ET.fromstring(explorer.picture)
    assert explorer.problem == ""


def test_flipping_a_bit_twice_comes_back():
    explorer = FormatExplorer(value="0.1015625")
    explorer.press("bit:left:7")
    assert explorer.value == "-0.1015625"
    explorer.press("bit:left:7")
    assert explorer.value == "0.1015625"


def test_stepping_up_visits_every_value_of_a_format():
    explorer = FormatExplorer(value="-6", left="fp4_e2m1")
    seen = [explorer.value]
    while "above:left" not in explorer.off:
        explorer.press("above:left")
        seen.append(explorer.value)
    assert [float(value) for value in seen] == sorted(
        {*(float(mp.decode(np.uint8(code), "fp4")) for code in range(16))}
    )


@pytest.mark.parametrize(
    "mode", ["nearest_even", "toward_zero", "toward_positive", "toward_negative", "to_odd"]
)
def test_a_rounding_bin_ends_where_rounding_changes(mode):
    f = mp.get_format("fp4_e2m1")
    values = [-6.0, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6]
    for a, b in pairwise(values):
        edge = boundary(a, b, f, mode)
        for x in np.linspace(a, b, 9)[1:-1]:
            if x != edge:
                assert mp.round_to(x, f, mode) == (a if x < edge else b)


def texts(explorer) -> list:
    return [part for part in ET.fromstring(explorer.picture).iter() if part.tag.endswith("text")]


def test_a_number_beyond_one_format_is_shown_between_values_of_the_other():
    shown = [part.text for part in texts(FormatExplorer(value="2823.595", right="fp16"))]
    assert any("everything here becomes 448" in text for text in shown)
    assert {"2822", "2824", "2826"} <= set(shown)


def test_what_is_written_on_a_number_line_lies_above_the_dashed_line_and_has_a_rim():
    explorer = FormatExplorer(value="0.3", right="fp32")
    parts = list(ET.fromstring(explorer.picture).iter())
    dashed = [i for i, part in enumerate(parts) if part.get("stroke-dasharray") == "5 3"]
    rimmed = [i for i, part in enumerate(parts) if part.get("paint-order") == "stroke"]
    said = [parts[i].text for i in rimmed]
    assert any("too close" in text for text in said) and "0.3125" in said
    assert sum("flushed to zero" in text for text in said) == 2
    assert dashed[0] < rimmed[0] and dashed[1] < rimmed[-2]
    assert all("--mp-bg" in parts[i].get("stroke") for i in rimmed)  # follows the scheme


def test_the_shares_below_the_histogram_are_counted_right():
    x = captured("down_proj_11_input").values
    flushed, beyond = losses("down_proj_11_input", mp.get_format("fp8_e4m3"))
    assert flushed == np.mean((abs(x) <= 2.0**-10) & (x != 0))  # a tie goes to the even zero
    assert beyond == np.mean(abs(x) > 448)


@pytest.mark.parametrize(
    ("order", "tile"),
    [*((order, "4 × 4 × 64") for order in ORDERS), *(("pairwise", tile) for tile in TILES)],
)
def test_the_explorer_ends_where_the_matmul_does(order, tile):
    explorer = TileExplorer(order=order, tile=tile, accumulator="fp16")
    a, b = (captured(f"down_proj_11_{side}").values for side in ("input", "weight"))
    value = mp.matmul(
        a[:1], b[1:2].T, "fp16", "fp16", accumulator="fp16", reduction=order, tile=TILES[tile]
    ).value
    assert explorer.trace().values[-1] == value[0, 0]


@pytest.mark.parametrize(
    ("error", "decades"),
    [
        ([0.0, 0.002, 0.003, 0.5], (-3, 0)),
        ([1e-6] + [0.02] * 99 + [3.0], (-2, 1)),  # a few tiny errors do not stretch the axis
        ([1.0, 1.0], (0, 1)),
        ([0.0, 0.0], (-2, 0)),
        ([np.inf, np.nan, 0.2], (-1, 0)),
    ],
)
def test_the_axis_of_the_error_holds_the_decades_that_a_trace_uses(error, decades):
    assert decades_of(np.array(error)) == decades


def test_the_axis_of_the_error_stays_while_a_sum_is_played():
    labels = [
        [t.text for t in texts(TileExplorer(step=step)) if re.fullmatch("1|10[⁰¹²³⁻]+", t.text)]
        for step in (2, 1536)
    ]
    assert labels[0] == labels[1] == ["10⁻³", "10⁻²", "10⁻¹", "1", "10¹"]


def test_a_step_beyond_the_last_shows_the_last():
    explorer = TileExplorer(order="pairwise", step=3000)
    explorer.order = "sequential"
    assert explorer.notes["step"] == "1536 of 1536"
    assert explorer.limits["step"] == [1, 1536]


def test_two_hundred_updates_leave_little_memory():
    resident = pytest.importorskip("resource")  # the player's own test has its long use

    def use(moves: int) -> float:
        for i in range(moves):
            formats.value = str(0.1 + i)
            tiles.step = 1 + 7 * i
        return resident.getrusage(resident.RUSAGE_SELF).ru_maxrss / 1024

    formats, tiles = FormatExplorer(), TileExplorer()
    before = use(20)  # caches fill once
    assert use(200) - before < 20  # MB


def test_an_exported_page_shows_the_picture_where_a_kernel_would_be_needed():
    """With nbconvert as it comes; `mpcore lab` tells JupyterLab's own export to prefer pictures."""
    from nbconvert import HTMLExporter
    from nbformat.v4 import new_code_cell, new_notebook, new_output

    explorer = TileExplorer(order="pairwise", step=100)
    data, metadata = explorer._repr_mimebundle_()
    output = new_output("execute_result", data, metadata=metadata)
    page, _ = HTMLExporter().from_notebook_node(
        new_notebook(cells=[new_code_cell("TileExplorer()", outputs=[output])])
    )
    assert page.count("<rect") == explorer.picture.count("<rect")  # a parser rewrote the rest
    assert f"<figcaption>{explorer.spoken}" in page
    assert "widget-view+json" not in page


@pytest.mark.parametrize("leaves", [1, 2, 13, 16])
@pytest.mark.parametrize("order", TREES)
def test_the_tree_that_is_drawn_is_the_one_that_is_summed(order, leaves):
    held = {(float(k), 0): (k,) for k in range(leaves)}
    summed = trace_sum([1.0] * leaves, "fp32", order, leaves)[leaves:-1]
    merges = merges_of(order, leaves)
    assert len(merges) == len(summed) == leaves - 1
    for (left, right, one), partial in zip(merges, summed, strict=True):
        assert (held[left], held[right]) == (tuple(partial.left), tuple(partial.right))
        held[one] = (*held.pop(left), *held.pop(right))


def test_the_newest_addition_of_a_tree_is_marked():
    explorer = TileExplorer(order="pairwise", tile="4 × 4 × 16", step=17)
    leaves, first = explorer.picture, 'stroke-width="2.4"'
    assert leaves.count(first) == 2  # product 0 and product 1
    for step in (16, 32, 33):  # a product of its own; a tile's sum joins the others; the next tile
        explorer.step = step
        assert explorer.picture.count(first) == 0
