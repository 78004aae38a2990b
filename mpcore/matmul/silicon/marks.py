"""What was found on silicon, kept in data/silicon.toml, and the table in docs/matrix_units.md.

The table lies between two marker lines of the document; the prose around them is written by hand.
"""

import json
import tomllib
from dataclasses import asdict, dataclass, fields

from mpcore.errors import InputError
from mpcore.matmul.instructions import ARCHITECTURES, TABLE
from mpcore.matmul.silicon.cases import vectors_of
from mpcore.matmul.silicon.check import DIFFERENT, EQUAL
from mpcore.matmul.silicon.ptx import why_not
from mpcore.matmul.units import (
    AlignedSum,
    FlooredSum,
    FusedMultiplyAdd,
    InterleavedSum,
    PairwiseSum,
    ScaledGroupSum,
)
from mpcore.paths import DATA, ROOT, part_of

RESULTS = DATA / "silicon.toml"
DOCUMENT = ROOT / "docs" / "matrix_units.md"
VECTORS = ROOT / "tests" / "data" / "matrix_units.npz"
REFERENCE_ONLY = "reference only"
BEGIN, END = "<!-- table: begin (written by the script) -->", "<!-- table: end -->"
_HEAD = """\
# What real GPUs made of the instructions of mpcore/matmul/instructions.py.
# Written by `python -m mpcore.matmul.silicon --write`; docs/matrix_units.md shows it.
# A result counts only as long as `unit` is the arithmetic that the table gives the instruction.
"""
RULES = {
    AlignedSum: "aligned sum, L = {length}, F = {fraction}",
    ScaledGroupSum: "exact groups of {group}, aligned, F = {fraction}",
    FusedMultiplyAdd: "fused multiply-add, one product at a time",
    PairwiseSum: "pairwise tree of {length} in fp32",
    FlooredSum: "aligned and floored, L = {length}, F = {fraction}",
    InterleavedSum: "even and odd products apart, floored, L = {length}, F = {fraction}",
}


@dataclass(frozen=True)
class Result:
    """One instruction on one device, as data/silicon.toml has it."""

    instruction: str  # architecture, kind and qualifier
    unit: str  # the arithmetic that it was compared with
    status: str  # "equal" or "different"
    cases: int
    different: int
    device: str
    capability: str  # "9.0"
    driver: str
    date: str  # "2026-12-31"
    seed: int
    first: str  # the first case that differs

    @property
    def where(self):
        """Where and when, in words."""
        return f"{self.device}, {self.driver}, {self.date}"


def result_of(outcome, device, date, seed):
    """The `Result` of an `Outcome` that compared something, else None."""
    i = outcome.instruction
    if outcome.status not in (EQUAL, DIFFERENT):
        return None
    capability = ".".join(map(str, device.capability))
    about = device.name, capability, device.driver, date, seed, outcome.first
    return Result(str(i), repr(i.unit), outcome.status, outcome.cases, outcome.different, *about)


def read_results(path=None):
    """The results of a file, data/silicon.toml by default; raises InputError, in one line."""
    path = path or RESULTS
    try:
        rows = tomllib.loads(path.read_text(encoding="utf-8")).get("result", [])
        results = [Result(**row) for row in rows]
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: {' '.join(str(error).split())}") from None
    known = {str(i) for i in TABLE}
    for result in results:
        for field in fields(Result):
            if type(getattr(result, field.name)) is not field.type:
                what = f"{field.name} of {result.instruction} is no {field.type.__name__}"
                raise InputError(f"{path}: {what}")
        if result.instruction not in known or result.status not in (EQUAL, DIFFERENT):
            what = f"{result.instruction} ({result.status}) is no row of the table"
            raise InputError(f"{path}: {what}; status is {EQUAL} or {DIFFERENT}")
    return results


def merged(old, new):
    """Both, in the table's order; a new result takes the place of one of the same device."""
    found = {(r.instruction, r.device): r for r in [*old, *new]}
    order = {str(i): place for place, i in enumerate(TABLE)}
    return sorted(found.values(), key=lambda r: (order[r.instruction], r.device))


def results_text(results):
    """The file's text."""
    rows = [
        "\n".join(["[[result]]", *(f"{k} = {json.dumps(v)}" for k, v in asdict(r).items())])
        for r in results
    ]
    return "\n".join([_HEAD.rstrip("\n"), *("\n" + row for row in rows)]) + "\n"


def mark_of(i, results):
    """What the table says about an instruction and silicon."""
    mine = [r for r in results if (r.instruction, r.unit) == (str(i), repr(i.unit))]
    if wrong := [r for r in mine if r.status == DIFFERENT]:
        shares = [f"{r.where}, {r.different:,} of {r.cases:,} cases" for r in wrong]
        return f"**differs from silicon** ({'; '.join(shares)})"
    if mine:
        return f"equal to silicon ({'; '.join(f'{r.where}, {r.cases:,} cases' for r in mine)})"
    return REFERENCE_ONLY


def rule_of(i):
    """The arithmetic of an instruction in words, with L products at a time and F bits kept."""
    given = vars(i.unit) | {"length": min(i.unit.length, i.k)}
    rule = RULES[type(i.unit)].format(**given)
    if getattr(i.unit, "wide", "fp32") != "fp32" and i.d.name == "fp32":
        rule += ", stored with 13 fraction bits"
    return rule + (", subnormals flushed" if getattr(i.unit, "flush", False) else "")


def table(results, vectors):
    """The document's part between its markers.

    Args:
        results: `Result`s.
        vectors: the reference model's arrays.
    """
    marks = {str(i): mark_of(i, results) for i in TABLE}
    counted = {str(i): _cases_of(i, vectors) for i in TABLE}
    with_vectors = sum(bool(n) for n in counted.values())
    equal = sum(m.startswith("equal") for m in marks.values())
    differing = sum(m.startswith("**differs") for m in marks.values())
    only = len(TABLE) - equal - differing
    lines = [
        f"{len(TABLE)} instructions: {with_vectors} have public reference vectors, "
        f"{len(TABLE) - with_vectors} are unverified; {equal} are equal to silicon, "
        f"{differing} differ from it, {only} are reference only.",
        f"The script has kernels for {sum(why_not(i) is None for i in TABLE)} of them. "
        f"Not replayed: {_not_replayed()}.",
    ]
    for arch in ARCHITECTURES:
        lines += [
            f"\n### {arch}\n",
            "| instruction | A, B | C, D | unit | reference vectors | silicon |",
            "|---|---|---|---|---|---|",
        ]
        for i in (i for i in TABLE if i.arch == arch):
            vectors_here = f"{counted[str(i)]:,} cases" if counted[str(i)] else "unverified"
            scaled = f", a scale ({i.scale}) every {i.block}" if i.scale else ""
            cells = (
                f"`{i.kind} {i.qualifier}`",
                f"{i.a}, {i.b}{scaled}",
                f"{i.c}, {i.d}",
                rule_of(i),
                vectors_here,
                marks[str(i)],
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cases_of(i, vectors):
    found = vectors_of(i, vectors)
    return found["D"].size if found else 0


def _not_replayed():
    reasons = {}
    for i in TABLE:
        if reason := why_not(i):
            reasons[reason] = reasons.get(reason, 0) + 1
    return ", ".join(f"{count} ({reason})" for reason, count in reasons.items())


def with_table(document, results, vectors):
    """The document with its table as it should be; raises InputError where a marker is missing."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise InputError(f"{DOCUMENT}: the lines {BEGIN} and {END} are needed around the table")
    return f"{before}{BEGIN}\n{table(results, vectors)}{END}{after}"


def replace(path, text):
    """Write a file whole, or not at all."""
    part = part_of(path)
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
