"""Parses the flags of a script. A wrong flag causes one line on stderr and exit code 2, as in shoal.

    parser = arguments.Parser(description=__doc__)
    parser.add_argument("-r", type=int)          # script.py: error: argument -r: ...; see script.py --help
"""
import argparse
import contextlib
import difflib
import math
import shlex
import sys
from collections.abc import Callable
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """A parser with short errors. Errors omit the usage, which has many lines. The description is printed unchanged.
    Abbreviated flags are errors, because a new flag could change the meaning of an abbreviation."""

    def __init__(self, *arguments, **options):
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        options.setdefault("allow_abbrev", False)
        super().__init__(*arguments, **options)

    def parse_args(self, args=None, namespace=None):
        """Parses the flags. Reports an unknown flag before a missing flag."""
        with self._nothing_required():
            _, unknown = self.parse_known_args(args)
        if unknown:
            alike = difflib.get_close_matches(unknown[0].partition("=")[0], self._option_string_actions, 1)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{f'; did you mean {alike[0]}?' if alike else ''}")
        return super().parse_args(args, namespace)

    @contextlib.contextmanager
    def _nothing_required(self):
        required = [action for action in self._actions if action.required]
        for action in required:
            action.required = False
        try:
            yield
        finally:
            for action in required:
                action.required = True

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: error: {' '.join(message.split())}; see {self.prog} --help", file=sys.stderr)
        sys.exit(2)


def words(text: str) -> list[str]:
    """Parses the words of a shell command, for values that contain flags of other programs."""
    try:
        return shlex.split(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: a quotation is not closed, or the last character is a backslash") from None


def positive(kind: type) -> Callable[[str], int | float]:
    """Returns a parser of finite numbers above 0."""
    def parse(text: str) -> int | float:
        value = kind(text)
        if not 0 < value < math.inf:
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value
    parse.__name__ = kind.__name__
    return parse


def count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return value


def numbers(least: int) -> Callable[[str], list[int]]:
    """Returns a parser of integers that are separated by commas and are at least `least`."""
    def parse(text: str) -> list[int]:
        try:
            found = [int(word) for word in text.split(",")]
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r}: expected numbers separated by commas") from None
        if min(found) < least:
            raise argparse.ArgumentTypeError(f"{text}: {min(found)} is less than {least}")
        return found
    return parse
