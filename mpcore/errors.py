"""What all errors about a person's input share."""

MOST = 60  # characters of a value that a message quotes


class InputError(ValueError):
    """Something given is not usable. The message is one line: what, where, what would be valid."""


def quoted(value: object) -> str:
    """A value that was given, as a message quotes it: in one line, cut where it is long."""
    try:
        return cut(repr(value))
    except Exception:  # an object's own __repr__ may raise, and an int may have too many digits
        return f"a value of type {type(value).__name__}"


def cut(text: str) -> str:
    """A text in one line, or the beginning of that where it is long."""
    text = " ".join(text.split())
    return text if len(text) <= MOST else text[: MOST - 1] + "…"
