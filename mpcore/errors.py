"""What all errors about a person's input share."""


class InputError(ValueError):
    """Something given is not usable. The message is one line: what, where, what would be valid."""
