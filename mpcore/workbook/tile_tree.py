"""How a k-tile is summed by a tree: who is added to whom, level by level."""

from __future__ import annotations

from functools import lru_cache

from mpcore.workbook.drawing import BLUE, LINE, MUTED, ORANGE, Drawing

Node = tuple[float, int]  # place along the products, level
APART = 6.0  # units between two summands: lines that start closer together are a grey smear
FEW = 8  # sums of a strided level that are drawn one by one
BAR = 3.0  # height of the two bars of a strided level


@lru_cache(maxsize=16)
def merges_of(order: str, leaves: int) -> list[tuple[Node, ...]]:
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


def tree(
    d: Drawing, box: tuple[float, float, float, float], order: str, done: int, leaves: int
) -> None:
    """The tree of a k-tile after so many of its roundings: every product's, then every sum's.

    Drawn are the levels at which lines can be told apart, the newest addition with what it came
    from and where it leads; of a strided tree also the two halves that meet at each level. `box`
    is left, top, width, height.
    """
    merges = merges_of(order, leaves)
    if not merges:
        return
    left, top, width, height = box
    cell, rise = width / leaves, height / merges[-1][-1][1]

    def at(node: Node) -> str:
        return f"{left + (node[0] + 0.5) * cell:.1f} {top + node[1] * rise:.1f}"

    def lines(chosen, stroke: str, **style: object) -> None:
        path = "".join(f"M{at(a)}L{at(one)}L{at(b)}" for a, b, one in chosen)
        if path:
            d.add("path", d=path, stroke=stroke, fill="none", stroke_width=1, **style)

    made = min(max(done - leaves, 0), len(merges))
    is_inside = leaves < done <= leaves + len(merges)  # else the newest addition is elsewhere
    if order == "strided_tree":
        now = merges[made - 1][-1][1] - 1 if is_inside else None
        for level, count in enumerate(_counts(leaves)):
            style = {"fill_opacity": 0.8 if level == now else 0.25}
            half, y = count // 2 * cell, top + level * rise - BAR / 2
            d.rect(left, y, half, BAR, fill=BLUE, **style)
            d.rect(left + count * cell - half, y, half, BAR, fill=ORANGE, **style)
    is_seen = [_is_seen(merge, order, cell) for merge in merges]
    for part, stroke in ((range(made, len(merges)), LINE), (range(made), MUTED)):
        lines([merges[i] for i in part if is_seen[i]], stroke)
    if is_inside:
        newest = merges[made - 1]
        below, above = _branch(merges, newest)
        lines(above, MUTED, stroke_dasharray="3 3")
        lines(below, MUTED)
        a, b, one = newest
        for summand, colour in ((a, BLUE), (b, ORANGE)):
            style = {"stroke": colour, "fill": "none", "stroke_width": 2.4}
            d.add("path", d=f"M{at(summand)}L{at(one)}", **style)


def _counts(leaves: int) -> list[int]:
    """How many sums there are at each level of a tree that is added to another."""
    counts = [leaves]
    while counts[-1] > 1:
        counts.append(counts[-1] - counts[-1] // 2)
    return counts[:-1]


def _is_seen(merge: tuple[Node, ...], order: str, cell: float) -> bool:
    a, b, _ = merge
    is_top = order == "pairwise" or b[0] < FEW
    return is_top and (b[0] - a[0]) * cell >= APART


def _branch(merges, newest) -> tuple[list, list]:
    """The additions that made the two summands of the newest one, and those that its sum goes
    into, up to the root."""
    below, above, upper = [merge for merge in merges if merge[-1] in newest[:2]], [], newest[-1]
    for merge in merges[merges.index(newest) + 1 :]:
        if upper in merge[:2]:
            above.append(merge)
            upper = merge[-1]
    return below, above
