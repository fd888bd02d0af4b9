"""The error that ends a comparison."""


class CompareError(Exception):
    """The comparison cannot continue. The message is one line with the reason and the remedy."""
