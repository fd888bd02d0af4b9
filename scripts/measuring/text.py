"""What people read in a terminal or a file: aligned tables and a progress bar, by rich on terminals, plain text
without colour elsewhere."""
import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TextIO


def is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def _console(stream: TextIO):
    from rich.console import Console
    return Console(file=stream, highlight=False, soft_wrap=True, no_color="NO_COLOR" in os.environ)


def _terminal_width(stream: TextIO) -> int:
    """Of the very terminal that is written to; COLUMNS overrides it."""
    given = os.environ.get("COLUMNS", "")
    if given.isdigit() and int(given) > 0:
        return int(given)
    with contextlib.suppress(OSError, ValueError):
        if (found := os.get_terminal_size(stream.fileno()).columns) > 0:
            return found
    return 80


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], stream: TextIO | None = None,
                best: int | None = None, less_important: Sequence[str] = ()) -> None:
    """Columns whose name begins with "<" are aligned to the left, the others to the right; `best` is the row that
    stands out (bold on a terminal). What a terminal is too narrow for: columns that are `less_important` are left out,
    the first of them first, and a line below names them. The others are printed in full, however wide they are."""
    stream = stream or sys.stdout
    if not is_terminal(stream):
        print(plain_table(columns, rows), file=stream)
        return
    console, width = _console(stream), _terminal_width(stream)
    places = _fitting(columns, rows, width, less_important)
    left_out = [columns[place].removeprefix("<") for place in range(len(columns)) if place not in places]
    columns, rows = [columns[place] for place in places], [[row[place] for place in places] for row in rows]
    console.width = max(width, _width(columns, rows))
    _print_rich(console, columns, rows, best)
    if left_out:
        print(f"not shown for want of width: {', '.join(left_out)}", file=stream)


def _width(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Of the table as _print_rich prints it, with three blanks between columns."""
    from rich.cells import cell_len
    names = [column.removeprefix("<") for column in columns]
    return sum(max(cell_len(line[i]) for line in [names, *rows]) for i in range(len(names))) + 3 * (len(names) - 1)


def _fitting(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int, droppable: Sequence[str]) -> list[int]:
    """Places of the columns that are shown."""
    places = list(range(len(columns)))
    for name in droppable:
        if _width([columns[i] for i in places], [[row[i] for i in places] for row in rows]) <= width:
            break
        places = [place for place in places if columns[place].removeprefix("<") != name]
    return places


def _print_rich(console, columns: Sequence[str], rows: Sequence[Sequence[str]], best: int | None) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        left = column.startswith("<")
        table.add_column(Text(column.removeprefix("<")), justify="left" if left else "right", no_wrap=True)
    for number, row in enumerate(rows):
        table.add_row(*map(Text, row), style="bold green" if number == best else None)
    console.print(table)


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    names = [column.removeprefix("<") for column in columns]
    left = [column.startswith("<") for column in columns]
    widths = [max(len(line[i]) for line in [names, *rows]) for i in range(len(names))]

    return "\n".join("  ".join(_padded(line, widths, left)).rstrip() for line in [names, *rows])


def _padded(line: Sequence[str], widths: Sequence[int], left: Sequence[bool]) -> list[str]:
    return [cell.ljust(width) if to_left else cell.rjust(width) for cell, width, to_left in zip(line, widths, left)]


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """For reports; aligned so that its source is legible, too."""
    names = [column.removeprefix("<") for column in columns]
    left = [column.startswith("<") for column in columns]
    widths = [max(3, *(len(line[i]) for line in [names, *rows])) for i in range(len(names))]

    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(_padded(cells, widths, left))} |"

    rule = ["-" * width if to_left else "-" * (width - 1) + ":" for width, to_left in zip(widths, left)]
    return "\n".join([line(names), line(rule), *(line([cell.replace("|", "\\|") for cell in row]) for row in rows)])


class Progress:
    """Shows how far a measurement is, and lines beside it. See progress()."""

    def __init__(self, stream: TextIO, bar=None, task=None):
        self._stream, self._bar, self._task = stream, bar, task

    def show(self, done: float, what: str, total: float | None = None) -> None:
        if self._bar is not None:
            options = {} if total is None else {"total": total}
            self._bar.update(self._task, completed=done, description=what, **options)

    def say(self, line: str) -> None:
        """A line of its own; above the bar on a terminal."""
        if self._bar is not None:
            from rich.text import Text
            self._bar.console.print(Text(line))
        else:
            print(line, file=self._stream, flush=True)


@contextlib.contextmanager
def progress(total: float | None, stream: TextIO | None = None) -> Iterator[Progress]:
    """A bar on stderr while in the block if that is a terminal; otherwise only the lines of say()."""
    stream = stream or sys.stderr
    if not is_terminal(stream):
        yield Progress(stream)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress as Bar, TextColumn, TimeElapsedColumn
    columns = [BarColumn(bar_width=30), MofNCompleteColumn(), TimeElapsedColumn(),
               TextColumn("{task.description}", markup=False)]
    with Bar(*columns, console=_console(stream), transient=True) as bar:
        yield Progress(stream, bar, bar.add_task("", total=total))
