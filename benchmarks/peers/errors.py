"""What ends a comparison."""


class CompareError(Exception):
    """The comparison cannot go on; the message is one line that says why and what to do."""
