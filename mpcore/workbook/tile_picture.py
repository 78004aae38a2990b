"""The picture of the tile explorer: the tiles, who has been added to whom, and the error so far."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from mpcore.matmul import Tile
from mpcore.report import numbers
from mpcore.workbook.drawing import BG, BLUE, COLOUR, FG, LINE, MUTED, ORANGE, SMALL, WIDTH, Drawing
from mpcore.workbook.format_picture import shown
from mpcore.workbook.tile_trace import COLUMNS, ROWS, TENSOR, Trace

LEFT, RIGHT = 74.0, WIDTH - 12
CELL = 19.0  # a square of the result
MATMUL, ADDED, VALUES, ERRORS = 146.0, 108.0, 130.0, 150.0  # heights of the four parts
TREES, TREE = ("pairwise", "strided_tree"), 76.0  # what a tree adds to the second one
DOTS = 360  # points of a curve: more than pixels
SCARCE = 5  # per cent of the errors, the smallest ones: the axis need not reach down to them
LABEL = 15.0  # the height that a label of an axis takes


def words_for(trace: Trace, step: int) -> str:
    """What the picture says, in a few sentences."""
    now = trace.sums[step - 1]
    swamped = int(trace.swamped[:step].sum())
    exact, error = shown(trace.exact[step - 1], 6), shown(trace.error[step - 1], 2)
    nothing = f"{_counted(swamped, 'addition')} changed nothing" if swamped else "every one counted"
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
    values = MATMUL + ADDED + (TREE if order in TREES else 0)
    d = Drawing(values + VALUES + ERRORS)
    _matmul(d, trace, step, tile, element)
    _added(d, MATMUL, trace, step, tile, order)
    _values(d, values, trace, step)
    d.text(RIGHT, values + VALUES + 18, f"{arithmetic}, {order}", SMALL, MUTED, text_anchor="end")
    _errors(d, values + VALUES, trace, step)
    return d.svg(label, has_buttons=True)


# --- the matmul and its tiles -------------------------------------------------------------------


def _matmul(d: Drawing, trace, step, tile, element) -> None:
    d.text(8, 18, "The matmul, tile by tile", font_weight=600)
    d.text(RIGHT, 18, TENSOR, SMALL, MUTED, text_anchor="end")
    current = trace.sums[step - 1].right[-1] // tile.k
    top, width = 34.0, 190.0
    for left, name, chosen in ((10.0, "activations", element[0]), (226.0, "weights", element[1])):
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
    d.text(RIGHT, top + 18, _addition_words(now), SMALL, MUTED, text_anchor="end")
    start = _whole(d, top + 26, trace, now, touched, tile)
    legend = top + 85
    if order in TREES:
        _tree(d, top + 80, order, step - 2 * start, min(tile.k, trace.length - start))
        legend += TREE
    _one_tile(d, top + 62, trace, now, touched, start, tile, legend)


def _addition_words(now) -> str:
    if not now.left:
        what = f"product {now.right[0]}" if len(now.right) == 1 else f"{len(now.right)} products"
        return f"{what}, rounded"
    ending = ", and nothing changes: swamped" if now.swamped else ""
    return f"{_sum_words(now.left)} + {_sum_words(now.right)}{ending}"


def _sum_words(products: Sequence[int]) -> str:
    return f"product {products[0]}" if len(products) == 1 else f"a sum of {len(products)}"


def _spans(products: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of neighbouring indices, as (first, one past the last)."""
    if isinstance(products, range):
        return [(products.start, products.stop)] if len(products) else []
    ordered = np.sort(np.asarray(products, dtype=np.int64))
    if not ordered.size:
        return []
    cuts = np.flatnonzero(np.diff(ordered) != 1) + 1
    return [(int(run[0]), int(run[-1]) + 1) for run in np.split(ordered, cuts)]


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
        for first, last in _spans(products):
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
        for first, last in _spans(products):
            inside = range(max(first, start), min(last, stop))
            pieces = [(k, 1) for k in inside] if gap else [(inside.start, len(inside))]
            for k, many in pieces if inside else []:
                left, width = LEFT + (k - start) * cell, many * cell - gap
                d.rect(left, top + 1, width, 13, fill=colour, fill_opacity=opacity)
        d.rect(x, legend, 10, 10, fill=colour, fill_opacity=opacity)
        d.text(x + 15, legend + 9, name, SMALL, MUTED)
        x += 160


@lru_cache(maxsize=16)
def merges_of(order: str, leaves: int) -> list[tuple[tuple[float, int], ...]]:
    """The additions of a tree in their order: (left summand, right summand, sum).

    Each is at (place along the products, level): neighbours meet half-way, and a sum of i and
    i + n/2 stays where its left summand was, as in a GPU's shared memory.
    """
    nodes, found, depth = [(float(k), 0) for k in range(leaves)], [], 0
    while len(nodes) > 1:
        depth, half, odd = depth + 1, *divmod(len(nodes), 2)
        if order == "pairwise":
            pairs, rest = [(nodes[2 * i], nodes[2 * i + 1]) for i in range(half)], nodes[2 * half :]
            sums = [((a[0] + b[0]) / 2, depth) for a, b in pairs]
        else:
            pairs = [(nodes[i], nodes[i + half + odd]) for i in range(half)]
            sums, rest = [(a[0], depth) for a, _ in pairs], nodes[half : half + odd]
        found += [(*pair, one) for pair, one in zip(pairs, sums, strict=True)]
        nodes = sums + rest
    return found


def _tree(d: Drawing, top: float, order: str, done: int, leaves: int) -> None:
    """The tree of a k-tile after so many of its roundings: every product's, then every sum's."""
    merges = merges_of(order, leaves)
    if not merges:
        return
    cell, rise = (RIGHT - LEFT) / leaves, (TREE - 12) / merges[-1][-1][1]

    def at(node: tuple[float, int]) -> str:
        return f"{LEFT + (node[0] + 0.5) * cell:.1f} {top + node[1] * rise:.1f}"

    lines = [f"M{at(a)}L{at(one)}L{at(b)}" for a, b, one in merges]
    made = min(max(done - leaves, 0), len(merges))
    d.add("path", d="".join(lines[made:]), stroke=LINE, fill="none", stroke_width=1)
    d.add("path", d="".join(lines[:made]), stroke=MUTED, fill="none", stroke_width=1)
    if leaves < done <= leaves + len(merges):  # else the newest addition is not in the tree
        a, b, one = merges[made - 1]
        for summand, colour in ((a, BLUE), (b, ORANGE)):
            style = {"stroke": colour, "fill": "none", "stroke_width": 2.4}
            d.add("path", d=f"M{at(summand)}L{at(one)}", **style)


# --- curves -------------------------------------------------------------------------------------


def _thinned(count: int) -> np.ndarray:
    """Indices of at most `DOTS` additions, the last one among them."""
    return np.unique(np.linspace(0, count - 1, min(count, DOTS)).round().astype(int))


def _values(d: Drawing, top: float, trace, step) -> None:
    d.text(8, top + 18, "The newest partial sum", font_weight=600)
    at, height, base = _thinned(len(trace.values)), VALUES - 44, top + VALUES - 14
    finite = np.concatenate([trace.values, trace.exact])
    finite = finite[np.isfinite(finite)]
    low, high = float(min(0.0, finite.min())), float(max(0.0, finite.max()))
    span = (high - low) or 1.0

    def y(value: float) -> float:
        return base - (value - low) / span * height

    for value in (low, 0.0, high):
        if value == 0 or abs(y(value) - y(0.0)) > 12:
            d.line(LEFT, y(value), RIGHT, y(value), LINE)
            d.text(LEFT - 5, y(value) + 4, shown(value, 3), SMALL, MUTED, text_anchor="end")
    _curve(d, trace.exact, at, y, FG, len(trace.exact), stroke_width=1.2, stroke_dasharray="4 3")
    _curve(d, trace.values, at, y, BLUE, step, stroke_width=2)
    _legend(d, top + 18, (("emulated", BLUE, None), ("exact", FG, "4 3")))
    _cursor(d, trace, step, base - height, base)


def decades_of(error: np.ndarray) -> tuple[int, int]:
    """Powers of ten between which the errors of a whole trace lie, all but the smallest ones."""
    found = error[np.isfinite(error) & (error > 0)]
    if not found.size:
        return -2, 0
    low = int(np.floor(np.log10(np.percentile(found, SCARCE))))
    return low, max(int(np.ceil(np.log10(found.max()))), low + 1)


def _errors(d: Drawing, top: float, trace, step) -> None:
    d.text(8, top + 18, "Its error", font_weight=600)
    at, height, base = _thinned(len(trace.error)), ERRORS - 68, top + ERRORS - 37
    low, high = decades_of(trace.error)
    decade = height / (high - low)

    def y(value: float) -> float:
        exponent = np.log10(value) if value > 0 else low
        return base - (min(max(float(exponent), low), high) - low) * decade

    every = int(np.ceil(LABEL / decade))
    for exponent in range(low, high + 1):
        d.line(LEFT, y(10.0**exponent), RIGHT, y(10.0**exponent), LINE)
        if (high - exponent) % every == 0:
            text = f"10{numbers.superscript(exponent)}" if exponent else "1"
            d.text(LEFT - 5, y(10.0**exponent) + 4, text, SMALL, MUTED, text_anchor="end")
    _curve(d, trace.error, at, y, ORANGE, step, stroke_width=1.8)
    _cursor(d, trace, step, base - height, base)
    scale = (RIGHT - LEFT) / len(trace.swamped)
    d.text(LEFT - 5, base + 18, "swamped", SMALL, MUTED, text_anchor="end")
    for first, last in _spans(np.flatnonzero(trace.swamped[:step])):
        d.rect(LEFT + first * scale, base + 8, (last - first) * scale, 11, fill=COLOUR["heat6"])
    d.text(
        RIGHT,
        base + 33,
        f"steps done: {step} of {len(trace.values)}",
        SMALL,
        MUTED,
        text_anchor="end",
    )


def _curve(d: Drawing, values, at, y, colour, upto: int, **style) -> None:
    scale = (RIGHT - LEFT) / len(values)
    points = [
        (LEFT + (i + 1) * scale, y(float(values[i])))
        for i in at
        if i < upto and np.isfinite(values[i])
    ]
    if len(points) > 1:
        d.path(points, colour, **style)


def _cursor(d: Drawing, trace, step, top: float, bottom: float) -> None:
    x = LEFT + step * (RIGHT - LEFT) / len(trace.values)
    d.line(x, top, x, bottom, MUTED, stroke_width=1.2)


def _legend(d: Drawing, y: float, entries) -> None:
    x = RIGHT - 170
    for text, colour, dashes in entries:
        d.line(x, y - 4, x + 22, y - 4, colour, stroke_width=2, stroke_dasharray=dashes)
        d.text(x + 28, y, text, SMALL, MUTED)
        x += 105
