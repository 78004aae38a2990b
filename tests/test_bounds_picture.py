"""The picture of measured errors and bounds: every line has a name, and bounds lie above."""

from __future__ import annotations

import numpy as np

from mpcore.workbook.bounds_picture import BoundsPicture, Growth, error_growth


def test_measured_errors_lie_below_their_bounds_and_promotion_stops_their_growth():
    growth = error_growth()
    for name, measured in growth.measured.items():
        assert (measured <= growth.worst[name]).all()
    assert growth.measured["unit"][-1] > 100 * growth.measured["unit"][0]
    assert growth.measured["promoted"][-1] < 2 * growth.measured["promoted"][0]


def test_every_line_is_named_in_the_picture_and_its_end_in_words():
    shown = BoundsPicture()
    svg = shown.svg()
    for name in ("worst case", "√n bound", "measured", "block bound", "measured, promoted"):
        assert f">{name}<" in svg
    assert 'role="img"' in svg and shown.alt in svg and "0.084" in shown.alt
    assert svg == BoundsPicture().svg()


def test_other_numbers_give_another_picture():
    found = error_growth()
    halved = {name: values / 2 for name, values in found.measured.items()}
    other = BoundsPicture(Growth(found.depths, halved, found.worst, np.array(found.probable)))
    assert other.svg() != BoundsPicture().svg() and other.alt != BoundsPicture().alt
