"""A notebook with outputs, as a kernel would leave it, for tests of the export."""

from __future__ import annotations

import nbformat
from nbformat import NotebookNode
from nbformat import v4 as nb
from packets import stages

from mpcore.records import Packet
from mpcore.report import figures, sections


def code_cell(source: str, shown: object, tags: tuple[str, ...] = ()) -> NotebookNode:
    """A code cell with the output that IPython makes of `shown`."""
    if hasattr(shown, "_repr_mimebundle_"):
        data, metadata = shown._repr_mimebundle_()
    else:
        data, metadata = {"text/html": shown._repr_html_(), "text/plain": repr(shown)}, {}
    output = nb.new_output("execute_result", data, execution_count=1, metadata=metadata)
    return nb.new_code_cell(source, outputs=[output], metadata={"tags": list(tags)})


def make_notebook(packet: Packet) -> NotebookNode:
    """A report notebook with every section and picture."""
    text = nb.new_markdown_cell
    cells = [
        text("# Int8 outliers\n\nA real model, and a policy that breaks it."),
        nb.new_code_cell("granularity = 'per_tensor'", metadata={"tags": ["parameters"]}),
        code_cell("first_screen(packet)", sections.first_screen(packet), ("first-screen",)),
        code_cell("figure_outlier(packet)", figures.figure_outlier(packet), ("first-screen",)),
        text("## Quality\n\nThe loss is $\\Delta = \\frac{1}{n}\\sum_i \\ell_i$.\n\n$$x \\le y$$"),
        code_cell("figure_quality(packet)", figures.figure_quality(packet)),
        code_cell("metrics_table(packet)", sections.metrics_table(packet)),
        code_cell("comparator_table(packet)", sections.comparator_table(packet)),
        text("## Which mechanism\n\n### What-ifs"),
        code_cell("figure_what_ifs(packet)", figures.figure_what_ifs(packet)),
        code_cell("what_if_table(packet)", sections.what_if_table(packet)),
        code_cell("mechanisms_table(packet)", sections.mechanisms_table(packet)),
        code_cell("figure_layers(packet)", figures.figure_layers(packet)),
        code_cell("operators_table(packet)", sections.operators_table(packet)),
        code_cell("figure_interaction(packet)", figures.figure_interaction(packet)),
        code_cell("figure_incidence(packet)", figures.figure_incidence(packet)),
        code_cell("execution_flow(packet)", sections.execution_flow(packet, stages())),
        text("## Policy"),
        code_cell("figure_trend(packet)", figures.figure_trend(packet)),
        code_cell("policy_table(packet)", sections.policy_table(packet)),
    ]
    for heading, name in (
        ("Evidence", "evidence_matrix"),
        ("Contradictions", "contradictions"),
        ("Claims", "claims_table"),
        ("Owners", "owners_table"),
        ("Rollback", "rollback_section"),
        ("Validation", "validation_matrix"),
        ("Checklist", "checklist"),
        ("Environment", "environment"),
        ("Glossary", "glossary"),
        ("Volatile", "volatile"),
    ):
        cells += [
            text(f"## {heading}"),
            code_cell(f"{name}(packet)", getattr(sections, name)(packet)),
        ]
    cells.append(nb.new_markdown_cell("hidden words", metadata={"tags": ["remove-cell"]}))
    return nbformat.from_dict(nb.new_notebook(cells=cells))
