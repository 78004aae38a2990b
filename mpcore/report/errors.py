"""The one error of this room."""

from mpcore.errors import InputError


class ReportError(InputError):
    """A report that cannot be made: one line that says what, where and what would be valid."""
