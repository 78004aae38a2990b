"""What the tile explorer draws: axes with round ends, trees that can be read, words for Kahan."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from mpcore.workbook.drawing import round_marks
from mpcore.workbook.tile_explorer import ACCUMULATORS, ORDERS, TILES, TileExplorer
from mpcore.workbook.tile_tree import FEW


def drawn(**traits) -> ET.Element:
    return ET.fromstring(TileExplorer(**traits).picture)


def texts(picture: ET.Element) -> list[str]:
    return [part.text for part in picture.iter() if part.tag.endswith("text")]


@pytest.mark.parametrize(
    ("ends", "most", "marks"),
    [
        ((-72.6, 0.0), 4, [-80, -60, -40, -20, 0]),
        ((0.0, 7.62), 4, [0, 2, 4, 6, 8]),
        ((0, 1.68e7), 4, [0, 5e6, 1e7, 1.5e7, 2e7]),
        ((0, 1536), 6, [0, 500, 1000, 1500, 2000]),
        ((-0.3, 0.3), 4, [-0.4, -0.2, 0, 0.2, 0.4]),
        ((1e-9, 3e-9), 4, [1e-9, 1.5e-9, 2e-9, 2.5e-9, 3e-9]),
        ((5.0, 5.0), 4, [4.5, 5, 5.5]),
        ((-1.7e308, 1.7e308), 4, [-1.7e308, 1.7e308]),
        ((0.0, 5e-324), 4, [0.0, 5e-324]),
    ],
)
def test_an_axis_has_round_values_that_hold_what_is_drawn(ends, most, marks):
    found = round_marks(*ends, most)
    assert found == pytest.approx(marks, rel=1e-12, abs=0)
    assert found[0] <= ends[0] and ends[1] <= found[-1] * (1 + 1e-12)


@pytest.mark.parametrize("order", ["sequential", "pairwise"])
@pytest.mark.parametrize("accumulator", ACCUMULATORS)
def test_every_number_at_an_axis_is_round_and_both_axes_say_what_they_are(order, accumulator):
    found = texts(drawn(order=order, accumulator=accumulator, operands="fp8_e4m3"))
    numbers = [text for text in found if re.fullmatch(r"−?[\d.]+( × 10.*)?", text)]
    assert len(numbers) >= 6
    assert all(len(re.sub(r"\D|0", "", number.split(" ")[0])) <= 2 for number in numbers)
    for said in ("Its absolute error", "step", "weights, transposed", "activations"):
        assert said in found


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("step", [925, 994, 1020, 3071])
def test_of_a_strided_tree_few_lines_are_drawn_and_two_halves_at_each_level(tile, step):
    picture = drawn(order="strided_tree", tile=tile, step=step)
    paths = [p.get("d") for p in picture.iter() if p.tag.endswith("path")]
    lines = sum(d.count("M") for d in paths if d.count("L") == 2 * d.count("M"))
    leaves = TILES[tile].k
    levels = leaves.bit_length() - 1
    assert lines <= FEW + 2 + levels < leaves
    bars = [float(r.get("width")) for r in picture.iter() if r.get("height") == "3"]
    assert len(bars) == 2 * levels
    assert bars[0::2] == bars[1::2]  # the halves are equally long, and half as long level by level
    assert bars[0] == pytest.approx(2 * bars[2], abs=0.02)


def test_what_kahan_carries_is_not_told_as_lost():
    explorer = TileExplorer(order="kahan", step=1200)
    count = int(explorer.trace().swamped[:1200].sum())
    assert f"So far {count} additions were swamped, and carried." in explorer.spoken
    assert "changed nothing" not in explorer.spoken
    assert {"swamped,", "carried"} <= set(texts(ET.fromstring(explorer.picture)))
    explorer.step = 1 + int(explorer.trace().swamped.argmax())
    assert ": swamped, and carried" in explorer.picture


@pytest.mark.parametrize("order", ORDERS)
def test_marks_of_swamped_additions_are_named_below_the_error(order):
    found = texts(drawn(order=order))
    assert ("swamped" in found) == (order != "kahan")
