"""Prints aligned tables and a progress bar with the package rich. Only the output on terminals is coloured."""
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TextIO


def is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _console(stream: TextIO, **options):
    from rich.console import Console  # rich loads slowly
    return Console(file=stream, highlight=False, soft_wrap=True, no_color="NO_COLOR" in os.environ, **options)


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], stream: TextIO | None = None,
                best: int | None = None) -> None:
    """Prints a table. Columns with names that begin with "<" are left-aligned. All other columns are right-aligned. Row
    `best` is bold on a terminal. Cells are never truncated, even on a narrow terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text
    stream = stream or sys.stdout
    style = box.SIMPLE_HEAD if is_terminal(stream) else None
    table = Table(box=style, pad_edge=False, show_edge=False, padding=(0, 1) if style else (0, 2, 0, 0))
    for column in columns:
        justify = "left" if column.startswith("<") else "right"
        table.add_column(Text(column.removeprefix("<")), justify=justify, no_wrap=True)
    for number, row in enumerate(rows):
        table.add_row(*map(Text, row), style="bold green" if number == best else None)
    console = _console(stream, width=10_000)
    with console.capture() as captured:
        console.print(table)
    print(*(line.rstrip() for line in captured.get().splitlines()), sep="\n", file=stream)


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table with the alignment of print_table()."""
    rule = ["---" if column.startswith("<") else "--:" for column in columns]
    lines = [[column.removeprefix("<") for column in columns], rule, *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


class Progress:
    """Shows the progress of a measurement, and prints lines. See progress()."""

    def __init__(self, bar, task):
        self._bar, self._task = bar, task

    def show(self, done: float, what: str) -> None:
        self._bar.update(self._task, completed=done, description=what)

    def say(self, line: str) -> None:
        """Prints a line. On a terminal, the line is above the bar."""
        from rich.text import Text
        self._bar.console.print(Text(line), soft_wrap=True)


@contextlib.contextmanager
def progress(total: float | None, stream: TextIO | None = None) -> Iterator[Progress]:
    """Shows a progress bar on stderr during the block if stderr is a terminal. Otherwise, only say() prints lines."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress as Bar, TextColumn, TimeElapsedColumn
    stream = stream or sys.stderr
    columns = [BarColumn(bar_width=30), MofNCompleteColumn(), TimeElapsedColumn(),
               TextColumn("{task.description}", markup=False)]
    with Bar(*columns, console=_console(stream), transient=True, disable=not is_terminal(stream)) as bar:
        yield Progress(bar, bar.add_task("", total=total))
