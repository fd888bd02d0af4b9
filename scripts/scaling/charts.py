"""Draws charts of speed-up and memory with matplotlib, one file per model and kind."""

from matplotlib.figure import Figure

from measuring import charts
from scaling.results import Row

WIDTH = 8.4  # inches
PARTS = {"weights": "weights", "mapped": "weights in the mapped file", "kv": "KV cache", "compute": "compute",
         "communication": "communication"}  # key in the JSON of `shoal plan` -> label in the chart


def bars(titles: list[str], labels: list[str], height: float) -> tuple[Figure, list]:
    """Makes a figure with one panel per title, in one column. Each panel has a place for each bar."""
    size = (WIDTH, len(titles) * (0.6 + height * len(labels)) + 0.6)
    figure, axes = charts.figure("", "", "", rows=len(titles), size=size)
    found = [axes] if len(titles) == 1 else list(axes)
    for one, title in zip(found, titles):
        one.set_title(title)
        one.set_yticks(range(len(labels)), labels)
        one.set_ylim(len(labels) - 0.4, -0.6)
        one.grid(axis="y", visible=False)
        one.tick_params(labelsize=9)
    return figure, found


def legend_below(figure: Figure, axes: list) -> None:
    found = {label: handle for one in axes for handle, label in zip(*one.get_legend_handles_labels())}
    figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=5, fontsize=9)


def value_right(axes, place: int, text: str) -> None:
    """Writes the value of a bar in a column to the right of the panel."""
    axes.text(1.01, place, text, transform=axes.get_yaxis_transform(), va="center", fontsize=9)


def speedup(rows: list[Row]) -> Figure | None:
    """Draws the rows of one model. A bar shows a speed-up, with the range of all rounds. Marks show the ideal speed-up
    and the prediction. Returns None if no row has a speed-up."""
    rows = [row for row in rows if row.speedup]
    if not rows:
        return None
    names = list(dict.fromkeys(row.configuration for row in rows))
    tests = list(dict.fromkeys(row.test for row in rows))
    figure, all_axes = bars(tests, names, 0.36)
    for axes, test in zip(all_axes, tests):
        for row in (row for row in rows if row.test == test):
            place = names.index(row.configuration)
            axes.barh(place, row.speedup, color=charts.COLOURS[4], height=0.6, label="measured")
            axes.hlines(place, row.speedup_least, row.speedup_most, colors=charts.COLOURS[0], linewidth=1.4)
            value_right(axes, place, f"{row.speedup:.2f}")
            if row.ideal:
                axes.plot([row.ideal] * 2, [place - 0.42, place + 0.42], color=charts.QUIET, label="ideal")
            if row.predicted_speedup:
                axes.plot([row.predicted_speedup], [place], "s", color=charts.COLOURS[1], markersize=5,
                          markerfacecolor="white", linestyle="none", label="predicted")
        axes.set_xlim(left=0)
    all_axes[-1].set_xlabel("speed-up", fontsize=9)
    legend_below(figure, all_axes)
    return figure


def throughput(rows: list[Row]) -> Figure | None:
    """Draws the tokens/s of one model over the number of requests, with a line per configuration. There is a panel for
    each combination of prompt, answer and depth. Returns None if no test has several numbers of requests."""
    panels: dict[str, dict[str, list[Row]]] = {}
    for row in (row for row in rows if row.n_parallel and row.ts):
        panels.setdefault(row.test.split(" ", 1)[1], {}).setdefault(row.configuration, []).append(row)
    panels = {name: lines for name, lines in panels.items() if any(len(line) > 1 for line in lines.values())}
    if not panels:
        return None
    figure, axes = charts.figure("", "", "", rows=len(panels), size=(WIDTH, 3.6 * len(panels)))
    all_axes = [axes] if len(panels) == 1 else list(axes)
    for axes, (name, lines) in zip(all_axes, panels.items()):
        charts.label(axes, name, "requests at the same time", "tokens/s")
        for number, (configuration, line) in enumerate(lines.items()):
            charts.series(axes, number, [row.n_parallel for row in line], [row.ts for row in line], configuration)
        ticks = sorted({row.n_parallel for line in lines.values() for row in line})
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.set_ylim(bottom=0)
    legend_below(figure, all_axes)
    return figure


def memory(plans: dict[str, list[dict]]) -> Figure | None:
    """Draws the memory of one model, with a bar per device. `plans`: for each configuration, the list `memory` of
    `shoal plan`. Returns None if there are no devices."""
    devices = [(name, one) for name, listed in plans.items() for one in listed]
    if not devices:
        return None
    figure, (axes,) = bars([""], [f"{name}: {one['device']}" for name, one in devices], 0.24)
    largest = max(one["total"] for _, one in devices)
    unit, size = ("GiB", 2**30) if largest >= 2**30 else ("MiB", 2**20)
    left = [0.0] * len(devices)
    for (key, label), colour in zip(PARTS.items(), charts.COLOURS):
        widths = [one.get(key, 0) / size for _, one in devices]
        if max(widths) * size > 0.002 * largest:
            axes.barh(range(len(devices)), widths, left=left, color=colour, height=0.72, label=label)
            left = [begin + width for begin, width in zip(left, widths)]
    for place, (_, one) in enumerate(devices):
        value_right(axes, place, f"{one['total'] / size:.3g} {unit}")
    axes.set_xlabel(unit, fontsize=9)
    legend_below(figure, [axes])
    return figure
