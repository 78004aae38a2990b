"""The picture of the tile explorer: the tiles, who has been added to whom, and the error so far."""

from __future__ import annotations

from collections.abc import Sequence

from mpcore.matmul import Tile
from mpcore.workbook.drawing import BG, BLUE, FG, LINE, MUTED, ORANGE, SMALL, Drawing
from mpcore.workbook.format_picture import shown
from mpcore.workbook.tile_curves import (
    ERRORS,
    LEFT,
    LINE_HEIGHT,
    RIGHT,
    VALUES,
    errors,
    spans,
    sums,
)
from mpcore.workbook.tile_trace import COLUMNS, ROWS, TENSOR, Trace
from mpcore.workbook.tile_tree import tree

CELL = 19.0  # a square of the result
MATMUL, ADDED = 146.0, 108.0  # heights of the first two parts
TREES, TREE = ("pairwise", "strided_tree"), 76.0  # what a tree adds to the second one
CARRYING = "kahan"  # the order in which what is swamped is not lost


def words_for(trace: Trace, step: int, order: str) -> str:
    """What the picture says, in a few sentences."""
    now = trace.sums[step - 1]
    swamped = int(trace.swamped[:step].sum())
    exact, error = shown(trace.exact[step - 1], 6), shown(trace.error[step - 1], 2)
    nothing = "every one counted"
    if swamped and order == CARRYING:
        were = "was" if swamped == 1 else "were"
        nothing = f"{_counted(swamped, 'addition')} {were} swamped, and carried"
    elif swamped:
        nothing = f"{_counted(swamped, 'addition')} changed nothing"
    return (
        f"After step {step} of {len(trace.sums)} the newest partial sum holds "
        f"{_counted(len(now.products), 'product')} and is {shown(trace.values[step - 1], 6)}; "
        f"exactly it would be {exact} (error {error}). So far {nothing}."
    )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def tile_picture(
    trace: Trace,
    step: int,
    tile: Tile,
    element: tuple[int, int],
    order: str,
    arithmetic: str,
    label: str,
) -> str:
    """The whole picture as SVG after `step` roundings.

    `arithmetic` says what is rounded to what, `label` is the text alternative.
    """
    carries = order == CARRYING
    values = MATMUL + ADDED + (TREE if order in TREES else 0)
    d = Drawing(values + VALUES + ERRORS + (LINE_HEIGHT if carries else 0))
    _matmul(d, trace, step, tile, element)
    _added(d, MATMUL, trace, step, tile, order)
    sums(d, values, trace, step)
    d.text(RIGHT, values + VALUES + 18, f"{arithmetic}, {order}", SMALL, MUTED, text_anchor="end")
    errors(d, values + VALUES, trace, step, ("swamped,", "carried") if carries else ("swamped",))
    return d.svg(label, has_buttons=True)


# --- the matmul and its tiles -------------------------------------------------------------------


def _matmul(d: Drawing, trace, step, tile, element) -> None:
    d.text(8, 18, "The matmul, tile by tile", font_weight=600)
    d.text(RIGHT, 18, TENSOR, SMALL, MUTED, text_anchor="end")
    current = trace.sums[step - 1].right[-1] // tile.k
    top, width = 34.0, 190.0
    for left, name, chosen in (
        (10.0, "activations", element[0]),
        (226.0, "weights, transposed", element[1]),
    ):
        _operand(d, left, top, width, chosen, trace.length, tile, current)
        d.text(left + width / 2, top + 4 * CELL + 12, name, SMALL, MUTED, text_anchor="middle")
    d.text(213, top + 42, "×", 18, MUTED, text_anchor="middle")
    first, last = current * tile.k, min(trace.length, (current + 1) * tile.k) - 1
    count = -(-trace.length // tile.k)
    text = f"k-tile {current + 1} of {count}: products {first} to {last}"
    d.text(213, top + 4 * CELL + 29, text, SMALL, text_anchor="middle")
    _result(d, 452, top, tile, element)


def _operand(d: Drawing, left, top, width, chosen: int, length: int, tile, current: int) -> None:
    """Four rows along K, the chosen one and the present k-tile marked."""
    for r in range(4):
        fill, opacity = (BLUE, 0.25) if r == chosen else (LINE, 0.35)
        d.rect(left, top + r * CELL, width, CELL - 3, fill=fill, fill_opacity=opacity)
    scale = width / length
    if tile.k * scale > 4:
        for start in range(tile.k, length, tile.k):
            d.line(left + start * scale, top, left + start * scale, top + 4 * CELL - 3, LINE)
    at, wide = left + current * tile.k * scale, min(tile.k, length - current * tile.k) * scale
    style = {"fill": ORANGE, "fill_opacity": 0.25, "stroke": ORANGE, "stroke_width": 1.4}
    d.rect(at, top - 3, wide, 4 * CELL + 3, **style)


def _result(d: Drawing, left: float, top: float, tile, element) -> None:
    d.text(left - 18, top + 42, "=", 18, MUTED, text_anchor="middle")
    for r in range(4):
        for c in range(4):
            chosen = (r, c) == element
            key = f"element:{r}:{c}"
            with d.button(
                key,
                f"{ROWS[r]}, {COLUMNS[c]}",
                aria_pressed="true" if chosen else "false",
            ):
                d.rect(
                    left + c * CELL,
                    top + r * CELL,
                    CELL - 3,
                    CELL - 3,
                    fill=BLUE if chosen else BG,
                    fill_opacity=0.7 if chosen else 1,
                    stroke=MUTED,
                    stroke_width=1,
                )
                if chosen:
                    d.text(
                        left + c * CELL + 8,
                        top + r * CELL + 12.5,
                        "●",
                        10,
                        FG,
                        text_anchor="middle",
                    )
    for r in range(0, 4, tile.m):  # outlines of the tiles of the result
        for c in range(0, 4, tile.n):
            d.rect(
                left + c * CELL - 2.5,
                top + r * CELL - 2.5,
                min(tile.n, 4) * CELL + 1.5,
                min(tile.m, 4) * CELL + 1.5,
                stroke=ORANGE,
                stroke_width=1.4,
                pointer_events="none",
            )
    at = left + 4 * CELL + 12
    d.text(at, top + 16, ROWS[element[0]], SMALL)
    d.text(at, top + 34, COLUMNS[element[1]], SMALL)
    d.text(at, top + 60, "press another", SMALL, MUTED)
    d.text(left - 4, top + 4 * CELL + 14, f"tiles of {tile.m} × {tile.n}", SMALL)


# --- who is added to whom -----------------------------------------------------------------------


def _added(d: Drawing, top: float, trace, step, tile, order) -> None:
    now, touched = trace.sums[step - 1], int(trace.touched[step - 1])
    d.text(8, top + 18, "The newest addition", font_weight=600)
    d.text(RIGHT, top + 18, _addition_words(now, order), SMALL, MUTED, text_anchor="end")
    start = _whole(d, top + 26, trace, now, touched, tile)
    legend = top + 85
    if order in TREES:
        leaves = min(tile.k, trace.length - start)
        tree(d, (LEFT, top + 82, RIGHT - LEFT, TREE - 14), order, step - 2 * start, leaves)
        legend += TREE
    _one_tile(d, top + 62, trace, now, touched, start, tile, legend)


def _addition_words(now, order: str) -> str:
    if not now.left:
        what = f"product {now.right[0]}" if len(now.right) == 1 else f"{len(now.right)} products"
        return f"{what}, rounded"
    ending = ", and nothing changes: swamped" if now.swamped else ""
    if now.swamped and order == CARRYING:
        ending = ": swamped, and carried"
    return f"{_sum_words(now.left)} + {_sum_words(now.right)}{ending}"


def _sum_words(products: Sequence[int]) -> str:
    return f"product {products[0]}" if len(products) == 1 else f"a sum of {len(products)}"


def _summands(now, touched: int):
    """(products, colour, opacity, name) of what to draw, from the back to the front."""
    yield range(touched), MUTED, 0.3, "in other partial sums"
    yield now.left, BLUE, 0.75, "first summand"
    yield now.right, ORANGE, 0.75, "what is added"


def _whole(d: Drawing, top: float, trace, now, touched: int, tile) -> int:
    """The whole of K: which products each summand holds. Returns where the k-tile below starts."""
    scale = (RIGHT - LEFT) / trace.length
    d.text(8, top + 12, "all of K", SMALL, MUTED)
    d.rect(LEFT, top, RIGHT - LEFT, 15, fill=BG, stroke=LINE, stroke_width=1)
    for products, colour, opacity, _ in _summands(now, touched):
        for first, last in spans(products):
            width = max((last - first) * scale, 1.5)
            d.rect(LEFT + first * scale, top, width, 15, fill=colour, fill_opacity=opacity)
    start = now.right[-1] // tile.k * tile.k
    left, right = LEFT + start * scale, LEFT + min(start + tile.k, trace.length) * scale
    d.line(left, top + 15, LEFT, top + 36, LINE)
    d.line(right, top + 15, RIGHT, top + 36, LINE)
    return start


def _one_tile(d: Drawing, top, trace, now, touched: int, start: int, tile, legend: float) -> None:
    """One k-tile, product by product; what the colours mean is written at the height `legend`."""
    stop = min(start + tile.k, trace.length)
    cell = (RIGHT - LEFT) / (stop - start)
    gap = 1 if cell > 4 else 0
    d.text(8, top + 12, "k-tile", SMALL, MUTED)
    d.rect(LEFT, top, RIGHT - LEFT, 15, fill=BG, stroke=LINE, stroke_width=1)
    x = LEFT
    for products, colour, opacity, name in _summands(now, touched):
        for first, last in spans(products):
            inside = range(max(first, start), min(last, stop))
            pieces = [(k, 1) for k in inside] if gap else [(inside.start, len(inside))]
            for k, many in pieces if inside else []:
                left, width = LEFT + (k - start) * cell, many * cell - gap
                d.rect(left, top + 1, width, 13, fill=colour, fill_opacity=opacity)
        d.rect(x, legend, 10, 10, fill=colour, fill_opacity=opacity)
        d.text(x + 15, legend + 9, name, SMALL, MUTED)
        x += 160
