"""Every display section of a report, under one name for the notebooks."""

from mpcore.report.blocks import Section
from mpcore.report.closure import (
    checklist,
    claims_table,
    contradictions,
    environment,
    evidence_matrix,
    execution_flow,
    glossary,
    owners_table,
    rollback_section,
    validation_matrix,
    volatile,
)
from mpcore.report.first_screen import first_screen, reproduce_command
from mpcore.report.tables import (
    comparator_table,
    mechanisms_table,
    metrics_table,
    operators_table,
    policy_table,
    what_if_table,
)

__all__ = [
    "Section",
    "checklist",
    "claims_table",
    "comparator_table",
    "contradictions",
    "environment",
    "evidence_matrix",
    "execution_flow",
    "first_screen",
    "glossary",
    "mechanisms_table",
    "metrics_table",
    "operators_table",
    "owners_table",
    "policy_table",
    "reproduce_command",
    "rollback_section",
    "validation_matrix",
    "volatile",
    "what_if_table",
]
