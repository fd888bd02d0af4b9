"""Draws small charts as SVG. The same data gives the same bytes: the files have no dates and no random ids. Text is
stored as text. The colours are from Okabe and Ito and are distinguishable with any colour vision. Series also differ
in markers and dashes.

    figure, axes = charts.figure("Generation by share", "share of CPU0", "tokens/s")
    charts.series(axes, 0, x, y, "measured", error=e)
    charts.save(figure, "chart.svg")
"""
import os
import pathlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from measuring import files

if TYPE_CHECKING:  # matplotlib loads slowly, so only the drawing functions import it
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#8C8C00", "#000000"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
DASHES = ["-", "--", "-.", ":"]
QUIET = "#6E6E6E"  # for grids, references and remarks

STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "shoal", "path.simplify": True, "path.simplify_threshold": 0.5,
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans", "Arial", "Helvetica"], "font.size": 11,
    "axes.titlesize": 12, "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.labelsize": 11,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True,
    "grid.color": "#D9D9D9", "grid.linewidth": 0.6, "lines.linewidth": 1.8, "lines.markersize": 6,
    "legend.frameon": False, "legend.fontsize": 10, "figure.facecolor": "white", "savefig.facecolor": "white",
    "figure.constrained_layout.use": True, "errorbar.capsize": 2.5,
}


KIND = files.Kind(b"<", b"stroke-linejoin: round; stroke-linecap: butt")


class ChartError(Exception):
    """A chart cannot be written. str() is one line with the remedy."""


def _pyplot():
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot
    matplotlib.pyplot.rcParams.update(STYLE)
    return matplotlib.pyplot


def figure(title: str, x: str, y: str, *, columns: int = 1, rows: int = 1,
           size: tuple[float, float] = (7.2, 4.2)) -> "tuple[Figure, Axes]":
    """Makes a figure and its axes (an array if there are several). The first axes get the title and the labels."""
    made, axes = _pyplot().subplots(rows, columns, figsize=size)
    first = axes if rows * columns == 1 else axes.flat[0]
    label(first, title, x, y)
    return made, axes


def label(axes: "Axes", title: str, x: str, y: str) -> None:
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def series(axes: "Axes", number: int, x: Sequence[float], y: Sequence[float], name: str, *,
           error: Sequence[float] | None = None, nearest: float | None = None) -> None:
    """Draws points with the colour, marker and dashes of series `number`. `nearest`: the smallest possible distance
    between two points. Between points with a larger distance, the line is thin and dashed, and the legend explains
    the dashes."""
    colour = COLOURS[number % len(COLOURS)]
    dashes = DASHES[number % len(DASHES)]
    axes.errorbar(x, y, yerr=error, label=name, color=colour, marker=MARKERS[number % len(MARKERS)],
                  linestyle=dashes if nearest is None else "none", elinewidth=1.0)
    explained = False
    for i in range(1, len(x) if nearest is not None else 0):
        guessed = x[i] - x[i - 1] > 1.5 * nearest
        axes.plot(x[i - 1 : i + 1], y[i - 1 : i + 1], color=colour, linestyle=(0, (4, 3)) if guessed else dashes,
                  linewidth=0.9 if guessed else None, label="no values between" if guessed and not explained else None)
        explained |= guessed


def save(made: "Figure", path: str | os.PathLike) -> None:
    """Writes an SVG file and closes the figure. Raises ChartError."""
    path = pathlib.Path(path)
    check(path)
    try:
        made.savefig(path, metadata={"Date": None, "Creator": None})
        text = re.sub(r"(\.\d\d)\d{3,}", r"\1", path.read_text())  # matplotlib writes positions with six decimals
        path.write_text("\n".join(one.rstrip() for one in text.splitlines()) + "\n")
    except OSError as error:
        raise ChartError(f"cannot write {path}: {error.strerror}") from None
    finally:
        _pyplot().close(made)


def check(path: str | os.PathLike) -> None:
    """Checks the name of a chart before a long measurement. Raises ChartError."""
    suffix = pathlib.Path(path).suffix
    if suffix != ".svg":
        raise ChartError(f"a chart ends in .svg, not '{suffix}': {path}")
