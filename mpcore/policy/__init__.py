"""The precision policy sheet: filled in from a case's parameters, and compared."""

from mpcore.policy.sheet import changed_operators, fill_in, repaired

__all__ = ["changed_operators", "fill_in", "repaired"]
