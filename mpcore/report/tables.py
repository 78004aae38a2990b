"""Tables of measurements: metrics, comparator, what-ifs, operators, policy."""

from __future__ import annotations

from mpcore.records import MetricRow, Packet
from mpcore.report import numbers
from mpcore.report.blocks import (
    Block,
    Cell,
    Facts,
    Paragraph,
    Section,
    Table,
    Text,
    code,
    figure,
)
from mpcore.report.policy_rows import POLICY_COLUMNS, side_label
from mpcore.report.reading import (
    KIND_LABEL,
    KINDS,
    interaction_of,
    layer_and_kind,
    plain_mechanisms,
    runs_of,
    threshold_of,
)

VERDICT = {
    "holds": Cell("holds", "good"),
    "broken": Cell("broken", "bad"),
    "cannot_conclude": Cell("cannot conclude", "open"),
}


def metrics_table(packet: Packet) -> Section:
    """Quality, modelled speed at that quality, and incidence: per run, slice and step kind."""
    rows = [row for run in runs_of(packet) for row in packet.metrics if row.run == run]
    quality = Table(
        f"Quality per slice (limit on the loss added: {threshold_of(packet):g} nats a token, "
        "judged on the upper end of the interval)",
        ["Run", "Slice", "Loss added", "Guardrail", "Perplexity", "KL", "Tokens", "Step"],
        [
            [
                row.run,
                numbers.words(row.slice),
                figure(numbers.loss_estimate(row.delta_nll)),
                VERDICT[row.guardrail],
                figure(numbers.number(row.perplexity)),
                figure(numbers.number(row.kl)),
                figure(numbers.count(row.tokens)),
                row.step_kind,
            ]
            for row in rows
        ],
    )
    speed = Table(
        "Tokens a second (modelled) and numeric events; at fixed quality, speed counts only where "
        "the guardrail holds",
        [
            "Run",
            "Slice",
            "Step",
            "Tokens/s (band)",
            "At fixed quality",
            "Overflow",
            "Underflow",
            "Clipped",
        ],
        [_speed_row(row) for row in rows],
    )
    note = Paragraph(
        "Overflow, underflow and clipping: events ÷ elements over all operators; in brackets, the "
        "share of steps with at least one event.",
        "note",
    )
    return Section("metrics", [quality, speed, note])


def _speed_row(row: MetricRow) -> list[Text]:
    def events(share: float, steps: float) -> Cell:
        return figure(f"{numbers.share(share)} ({numbers.share(steps)})")

    return [
        row.run,
        numbers.words(row.slice),
        row.step_kind,
        figure(numbers.estimate(row.tokens_per_s)),
        figure(numbers.number(row.tokens_per_s_at_quality)),
        events(row.overflow, row.steps_with_overflow),
        events(row.underflow, row.steps_with_underflow),
        events(row.saturation, row.steps_with_saturation),
    ]


def comparator_table(packet: Packet) -> Section:
    """The comparator's repeats, their spread, and whether it is stable."""
    return Section("comparator", free_form(packet.comparator, "Repeats of the comparator"))


def free_form(record: dict[str, object], caption: str) -> list[Block]:
    """A free-form record: lists of rows become tables, everything else facts."""
    tables: list[Block] = []
    pairs: list[tuple[Text, Text]] = []
    for key, value in record.items():
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            columns = list(dict.fromkeys(name for item in value for name in item))
            tables.append(
                Table(
                    caption if len(tables) == 0 else numbers.title(key),
                    [numbers.title(name) for name in columns],
                    [[_free_cell(item.get(name)) for name in columns] for item in value],
                )
            )
        else:
            pairs.append((numbers.title(key), numbers.plain(value)))
    return [*tables, *([Facts(pairs)] if pairs else [])]


def _free_cell(value: object) -> Cell:
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return Cell(numbers.plain(value), "number" if numeric else "")


def what_if_table(packet: Packet) -> Section:
    """Every what-if with what it decides, its worst slice and its outcome."""
    rows: list[list[Text]] = []
    for one in packet.diagnosis.what_ifs:
        slice_, worst = max(one.delta_nll.items(), key=lambda item: item[1].high)
        rows.append(
            [
                one.name,
                VERDICT[one.verdict],
                "equal" if one.equal_bits else "more",
                figure(numbers.loss_estimate(worst)),
                numbers.words(slice_),
                one.question,
                figure(numbers.count(one.tokens)),
            ]
        )
    table = Table(
        "One thing changed at a time in the failing run; loss added on the worst slice",
        ["Change", "Guardrail", "Bits", "Loss added", "Worst slice", "What it decides", "Tokens"],
        rows,
    )
    return Section("what-ifs", [table])


def mechanisms_table(packet: Packet) -> Section:
    """Every mechanism that could explain the regression, with what decides it."""
    kind = {"confirmed": "changed", "ruled out": "", "cannot occur": "", "not tested": "open"}
    rows: dict[bool, list[list[Text]]] = {True: [], False: []}
    for one in packet.diagnosis.mechanisms:
        sentence = plain_mechanisms().get(one.mechanism, "")
        verdict = Cell(one.verdict, kind[one.verdict])
        decided = one.verdict != "not tested"
        rows[decided].append([one.mechanism, sentence, verdict, numbers.title(one.evidence) + "."])
    if not packet.diagnosis.mechanisms:
        return Section("mechanisms", [Paragraph("No mechanism was put to the test.")])
    columns = ["Id", "What it would be", "Verdict", "Because"]
    return Section(
        "mechanisms",
        [
            Table(
                "Mechanisms: confirmed, ruled out, or impossible in this emulation",
                columns,
                rows[True],
            ),
            Table("Mechanisms: not tested, so not excluded", columns, rows[False]),
        ],
    )


def operators_table(packet: Packet) -> Section:
    """The set S with stability, the interaction, and how many operators were screened."""
    diagnosis = packet.diagnosis
    effects = {effect.operator: effect for effect in diagnosis.effects}
    stable = set(diagnosis.operators_stable)
    rows: list[list[Text]] = []
    for operator in diagnosis.operators:
        effect = effects.get(operator)
        values = (
            [effect.kl, effect.single_repair_delta_nll, effect.outlier_ratio]
            if effect
            else [None] * 3
        )
        named_in = effect.named_in if effect else None
        rows.append(
            [
                code(operator),
                *(figure("not measured" if v is None else numbers.number(v)) for v in values),
                figure("not measured" if named_in is None else numbers.share(named_in)),
                Cell("yes", "good") if operator in stable else Cell("no", "open"),
            ]
        )
    table = Table(
        "The set S: repaired together, these operators bring the guardrail back (execution order)",
        [
            "Operator",
            "KL, fault here alone",
            "Loss left, repaired alone",
            "Largest ÷ typical token",
            "Named in redraws",
            "Stable (≥ 80 %)",
        ],
        rows,
    )
    facts: list[tuple[Text, Text]] = [
        ("First that is named, in execution order", code(diagnosis.first or "none")),
        ("Ranked one by one", f"{len(diagnosis.effects)} operators, the fault in one at a time"),
        (
            "KL with the fault in all layers of a kind",
            "; ".join(f"{kind} {numbers.number(kl)}" for kind, kl in diagnosis.kinds.items()),
        ),
    ]
    interaction = interaction_of(packet)
    if interaction:
        facts.append(
            (
                "Interaction",
                f"set {numbers.loss_estimate(interaction.whole)}, sum of singles "
                f"{numbers.loss_estimate(interaction.singles)}, difference "
                f"{numbers.loss_estimate(interaction.difference)} nats a token on "
                f"{interaction.where}",
            )
        )
    for title, record in (
        ("Largest activation", diagnosis.axis_evidence),
        ("Necessity", diagnosis.necessity),
        ("Confidence", diagnosis.confidence),
    ):
        if record:
            facts.append((title, numbers.plain(record)))
    return Section("operators", [table, Facts(facts)])


def policy_table(packet: Packet) -> Section:
    """Before and after, operators with equal rows collapsed into ranges of layers."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for row in packet.policy_table:
        key = (
            layer_and_kind(row["operator"])[1],
            *(row.get(name, "") for name in POLICY_COLUMNS[1:]),
        )
        groups.setdefault(key, []).append(row["operator"])
    rows: list[list[Text]] = []
    marked = set()
    for key, operators in groups.items():
        row = dict(zip(POLICY_COLUMNS, key, strict=True))
        before, after = side_label(row, "before"), side_label(row, "after")
        changed = after not in ("no fix", before)
        if changed:
            marked.add(len(rows))
        rows.append(
            [
                _operators_label(operators),
                figure(str(len(operators))),
                before,
                (Cell("changed", "changed"), f": {after}")
                if changed
                else after
                if after == "no fix"
                else "unchanged",
            ]
        )
    table = Table(
        "Precision policy sheet, failing policy and fix: activations × weights, sums, output",
        ["Operators", "Count", "Before", "After"],
        rows,
        marked,
    )
    first = packet.policy_table[0] if packet.policy_table else {}
    facts = Facts(
        [
            (
                "Guardrail of every row",
                f"{numbers.words(first.get('guardrail_metric', 'not recorded'))} ≤ "
                f"{first.get('guardrail_threshold', 'not recorded')}; upper bound of the whole "
                f"model {first.get('whole_model_upper_bound', 'not recorded')}",
            ),
            ("All operators, one a line", code("policy.csv")),
        ]
    )
    return Section("policy", [table, facts, *_alternatives(packet)])


def _alternatives(packet: Packet) -> list[Block]:
    if packet.fix is None or not packet.fix.alternatives:
        return []
    kind = {"chosen": "good", "does not hold": "bad", "not needed": ""}
    rows: list[list[Text]] = [
        [
            one.change,
            figure(numbers.count(one.operators)),
            figure(numbers.number(one.tokens_per_s)),
            figure(numbers.loss(one.screening_upper)),
            figure("not run" if one.confirmed_upper is None else numbers.loss(one.confirmed_upper)),
            Cell(one.verdict, kind[one.verdict]),
        ]
        for one in packet.fix.alternatives
    ]
    columns = ["Change", "Operators", "Tokens/s (modelled)", "Upper end, screening"]
    columns += ["Upper end, all tokens", "Verdict"]
    caption = "Changes looked at, cheapest first: the chosen one is the smallest, not the safest"
    return [Table(caption, columns, rows)]


def _operators_label(operators: list[str]) -> Text:
    layers = [layer for name in operators if (layer := layer_and_kind(name)[0]) is not None]
    kind = layer_and_kind(operators[0])[1]
    label = f"{KIND_LABEL[kind]} ({kind})" if kind in KINDS else kind
    if not layers:
        return label
    return f"{label}, layer{'s' if len(layers) > 1 else ''} {numbers.ranges(layers)}"
