"""The report's charts: speed-up, time by device, memory by device. As wide as a page of GitHub, a file for each
model."""

import math

import matplotlib
from matplotlib.figure import Figure
from matplotlib.path import Path
from matplotlib.transforms import Bbox

from measuring.charts import STYLE
from scaling.results import Row

WIDTH = 8.4  # inches; 806 pixels as SVG
COLOURS = ["#1f5fa8", "#c2410c", "#15803d", "#7e3794", "#8a6d00", "#0e7490"]
GREY = "#6b7280"
BAR = "#a9c6ea"  # on which lines and marks are to be seen
MOST_CURVES = 4  # whose values are written beside their points
PLACES = [(0, 9), (0, -10), (17, 6), (-17, 6), (17, -7), (-17, -7), (0, 19), (0, -20)]  # of values, from their points
COMPUTE, COMMUNICATION = "#1f5fa8", "#e2711d"  # in every chart
TIME_PARTS = [
    ("compute", "compute", COMPUTE),
    ("communication", "communication", COMMUNICATION),
    ("waiting", "waiting in collectives", "#f2c14e"),
    ("copies", "copies", "#7e3794"),
    ("blocked", "blocked", "#a8a29e"),
    ("idle", "between runs", "#e5e7eb"),
]
MEMORY_PARTS = [
    ("weights", "weights", "#0f766e"),
    ("mapped", "weights in the mapped file", "#8fc7c0"),
    ("kv", "KV cache", "#b08900"),
    ("compute", "compute", COMPUTE),
    ("communication", "communication", COMMUNICATION),
]


def style():
    """To be drawn and saved within."""
    return matplotlib.rc_context(STYLE | {"axes.grid": False, "font.size": 9})


def plain(axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9, length=3)
    axes.set_axisbelow(True)


def panels(count: int, height: float, most: int = 2) -> tuple[Figure, list]:
    """Axes in rows of at most two."""
    columns = min(most, count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(WIDTH, height * rows + 0.5), layout="constrained")
    found = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for axes in found[count:]:
        axes.remove()
    return figure, found[:count]


def by_test(rows: list[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.test.name, []).append(row)
    return found


def series_of(rows: list[Row]) -> dict[str, list[Row]]:
    """Curves over the number of devices; one device is the begin of each."""
    usual = [row for row in rows if not row.configuration.machine and not row.configuration.reference]
    single = [row for row in usual if row.configuration.count == 1]
    several = [row for row in usual if row.configuration.count > 1]
    names = list(dict.fromkeys(row.configuration.series for row in several)) or [""]
    return {
        name: sorted(
            single + [row for row in several if row.configuration.series == name],
            key=lambda row: row.configuration.count,
        )
        for name in names
    }


def is_curve(rows: list[Row]) -> bool:
    """Whether every number of devices is there once."""
    return all(
        len({row.configuration.count for row in curve}) == len(curve) for curve in series_of(rows).values()
    ) and any(len(curve) > 1 for curve in series_of(rows).values())


def counts_of(rows: list[Row]) -> list[int]:
    return sorted({row.configuration.count for row in rows if not row.configuration.machine})


def draw_spreads(axes, curve: list[Row], place: int, of: int, colour: str) -> None:
    """From the smallest to the largest round; those of several curves beside each other."""
    measured = [row for row in curve if row.speedup]
    last = max(row.configuration.count for row in curve)
    aside = 0.012 * (last - 1) * (place - (of - 1) / 2) if of > 1 else 0
    for row in measured:
        x = row.configuration.count + aside
        axes.vlines(x, row.speedup.least, row.speedup.most, colors=colour, linewidth=1.4, alpha=0.7)


def draw_curve(axes, curve: list[Row], place: int, of: int, series: str) -> None:
    """Curve `place` of this many."""
    colour = COLOURS[place % len(COLOURS)]
    draw_spreads(axes, curve, place, of, colour)
    measured = [row for row in curve if row.speedup]
    axes.plot(
        [row.configuration.count for row in measured],
        [row.speedup.median for row in measured],
        "o-",
        color=colour,
        linewidth=2.2,
        markersize=6,
        label=f"measured {series}".strip(),
        zorder=3,
    )
    predicted = [row for row in curve if row.predicted_speedup]
    if len(predicted) > 1:
        axes.plot(
            [row.configuration.count for row in predicted],
            [row.predicted_speedup for row in predicted],
            "s:",
            color=COLOURS[1] if of == 1 else colour,
            linewidth=1.8,
            markersize=4.5,
            markerfacecolor="white",
            label=f"predicted {series}".strip(),
            zorder=4,
        )


def box_around(x: float, y: float, width: float, height: float) -> Bbox:
    return Bbox.from_extents(x - width / 2, y - height / 2, x + width / 2, y + height / 2)


def write_values(axes, curves: list[list[Row]]) -> None:
    """The medians beside their points, where they cross the fewest lines and cover no point and no other value; where
    there is no such place, and of many curves, they are in the table alone. To be called once the axes have their
    size."""
    if len(curves) > MOST_CURVES:
        return
    pixels = axes.figure.dpi / 72
    inside = axes.get_window_extent()
    lines = lines_of(axes)
    taken = [box_around(*axes.transData.transform(point), 7 * pixels, 7 * pixels) for point in points_of(curves)]
    for place, curve in enumerate(curves):
        for row in curve:
            if not row.speedup or (place > 0 and row.configuration.count == 1):
                continue
            text = f"{row.speedup.median:.2f}"
            x, y = axes.transData.transform((row.configuration.count, row.speedup.median))
            size = (6.2 * len(text) * pixels, 10 * pixels)
            boxes = {offset: box_around(x + offset[0] * pixels, y + offset[1] * pixels, *size) for offset in PLACES}
            free = [at for at, box in boxes.items() if is_inside(box, inside) and not box.count_overlaps(taken)]
            if free:
                best = min(free, key=lambda at: sum(line.intersects_bbox(boxes[at], filled=False) for line in lines))
                taken.append(boxes[best])
                write_value(axes, row, text, best, COLOURS[place % len(COLOURS)])


def lines_of(axes) -> list[Path]:
    """Curves, and the ranges of their points, in pixels."""
    curves = [line.get_path().transformed(line.get_transform()) for line in axes.lines]
    ranges = [path.transformed(found.get_transform()) for found in axes.collections for path in found.get_paths()]
    return curves + ranges


def points_of(curves: list[list[Row]]) -> list[tuple[int, float]]:
    measured = [row for curve in curves for row in curve if row.speedup]
    values = [(row.configuration.count, row.speedup.median) for row in measured]
    return values + [(row.configuration.count, row.predicted_speedup) for row in measured if row.predicted_speedup]


def is_inside(box: Bbox, whole: Bbox) -> bool:
    return whole.contains(box.x0, box.y0) and whole.contains(box.x1, box.y1)


def write_value(axes, row: Row, text: str, offset: tuple[float, float], colour: str) -> None:
    """On white, so that it can be read where it crosses a line."""
    axes.annotate(
        text,
        (row.configuration.count, row.speedup.median),
        offset,
        textcoords="offset points",
        ha="center",
        va="center",
        fontsize=9,
        fontweight="bold",
        color=colour,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
        zorder=6,
    )


def highest(rows: list[Row]) -> float:
    """Of the speed-ups shown: the ideal may leave the panel, so that the others fill it."""
    usual = [row for row in rows if not row.configuration.machine]
    ideal = [row.gain.ideal for row in usual if row.gain and row.gain.ideal]
    values = [row.speedup.most for row in rows if row.speedup]
    values += [value for row in usual for value in (row.bound, row.predicted_speedup) if value]
    return 1.08 * max(max(values), min(max(ideal, default=1), 1.35 * max(values)))


def draw_references(axes, rows: list[Row]) -> None:
    """The ideal, what memory allows, and the whole machine as one device."""
    usual = [row for row in rows if not row.configuration.machine and not row.configuration.reference]
    usual.sort(key=lambda row: row.configuration.count)
    ideal = {row.configuration.count: row.gain.ideal for row in usual if row.gain and row.gain.ideal}
    axes.plot(list(ideal), list(ideal.values()), "--", color=GREY, linewidth=1.4, label="ideal")
    bound = {row.configuration.count: row.bound for row in usual if row.bound}
    if any(row.limited for row in usual):
        axes.plot(list(bound), list(bound.values()), "-.", color="#15803d", linewidth=1.4, label="limit of the machine")
    for row in rows:
        if row.configuration.machine and row.speedup:
            axes.axhline(
                row.speedup.median, color=GREY, linewidth=1, linestyle=(0, (1, 2)), label="all cores as one device"
            )


def draw_categories(axes, rows: list[Row]) -> None:
    """Bars, where lists of devices are no curve. Values are in a column at the right, where nothing else is."""
    shown = [row for row in rows if row.speedup]
    places = list(range(len(shown)))
    axes.barh(places, [row.speedup.median for row in shown], color=BAR, height=0.6, label="measured")
    column = axes.get_yaxis_transform()
    for place, row in zip(places, shown):
        axes.hlines(place, row.speedup.least, row.speedup.most, colors=COLOURS[0], linewidth=1.4)
        axes.text(1.09, place, f"{row.speedup.median:.2f}", transform=column, ha="right", va="center", fontsize=9)
        if row.gain.ideal:
            axes.plot([row.gain.ideal] * 2, [place - 0.42, place + 0.42], color=GREY, linewidth=2, label="ideal")
        if row.predicted_speedup:
            axes.plot(
                [row.predicted_speedup],
                [place],
                "s",
                color=COLOURS[1],
                markersize=5,
                markerfacecolor="white",
                markeredgewidth=1.6,
                linestyle="none",
                label="predicted",
                zorder=4,
            )
    axes.text(1.09, 1.0, "measured", transform=axes.transAxes, ha="right", va="bottom", fontsize=9, color=GREY)
    axes.set_yticks(places, [row.configuration.name for row in shown])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(left=0)
    axes.set_xlabel("speed-up", fontsize=9)


def legend_below(figure: Figure, all_axes: list, parts: list[tuple]) -> None:
    """parts: of stacked bars, whose order is that of the legend; else lines, what was measured first."""
    found = {}
    for axes in all_axes:
        for handle, label in zip(*axes.get_legend_handles_labels()):
            found.setdefault(label, handle)
    places = {part[1]: place for place, part in enumerate(parts)}
    order = sorted(found, key=lambda label: places.get(label, not label.startswith(("measured", "predicted"))))
    figure.legend(
        [found[label] for label in order],
        order,
        loc="outside lower center",
        ncols=len(found) if len(found) <= 5 else math.ceil(len(found) / 2),
        frameon=False,
        fontsize=9,
    )


def speedup(rows: list[Row]) -> Figure | None:
    """Of one model: a panel for each test. None where nothing can be compared."""
    tests = {name: found for name, found in by_test(rows).items() if any(row.speedup for row in found)}
    if not tests:
        return None
    curve = all(is_curve(found) for found in tests.values())
    longest = max(len(found) for found in tests.values())
    figure, all_axes = panels(len(tests), 2.9 if curve else 0.7 + 0.36 * longest, 2 if curve else 1)
    written = []
    for axes, (name, found) in zip(all_axes, tests.items()):
        plain(axes)
        axes.set_title(name, fontsize=10, fontweight="bold", loc="left")
        if not curve:
            draw_categories(axes, found)
            continue
        draw_references(axes, found)
        axes.set_ylim(0, highest(found))
        curves = series_of(found)
        for place, (series, points) in enumerate(curves.items()):
            draw_curve(axes, points, place, len(curves), series)
        counts = counts_of(found)
        axes.set_xticks(counts)
        aside = 0.08 * (counts[-1] - counts[0])
        axes.set_xlim(counts[0] - aside, counts[-1] + aside)  # no point at an edge
        axes.grid(axis="y", color="#e5e7eb", linewidth=0.8)
        axes.set_xlabel("devices", fontsize=9)
        axes.set_ylabel("speed-up over one device", fontsize=9)
        written.append((axes, list(curves.values())))
    legend_below(figure, all_axes, [])
    if written:
        figure.draw_without_rendering()  # gives the axes their size
        for axes, points in written:
            write_values(axes, points)
    return figure


def stacked(axes, labels: list[str], bars: list[dict], parts: list[tuple], ends: list[str]) -> None:
    """Horizontal bars; ends: what is written behind each."""
    places = list(range(len(bars)))
    left = [0.0] * len(bars)
    longest = max(sum(bar.values()) for bar in bars)
    for key, label, colour in parts:
        widths = [bar.get(key, 0.0) for bar in bars]
        if max(widths) > 0.002 * longest:
            axes.barh(places, widths, left=left, color=colour, height=0.72, label=label, clip_on=False)
            left = [begin + width for begin, width in zip(left, widths)]
    for place, end, text in zip(places, left, ends):
        axes.annotate(text, (end, place), (4, 0), textcoords="offset points", va="center", fontsize=8.5)
    axes.set_yticks(places, labels)
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_xlim(0, max(left + [1e-12]) * 1.16)
    plain(axes)


def separate(axes, sizes: list[int]) -> None:
    """A line between the bars of two configurations."""
    at = 0
    for size in sizes[:-1]:
        at += size
        axes.axhline(at - 0.5, color="#d1d5db", linewidth=0.8)


def device_labels(listed: list[tuple[str, list[str]]]) -> list[str]:
    """(configuration, its devices): the first device is preceded by how many there are, and how they share the work."""
    labels = []
    for name, devices in listed:
        series = name.partition(" ")[2]
        many = f"{len(devices)} device{'s' if len(devices) > 1 else ''}{', ' if series else ''}{series}:  "
        labels += [(many if index == 0 else "") + device for index, device in enumerate(devices)]
    return labels


def time_by_device(rows: list[Row]) -> Figure | None:
    """Of one model: milliseconds of a prompt, or of a token, by what each device does with them."""
    tests = by_test([row for row in rows if row.times and row.gain and not row.configuration.machine])
    if not tests:
        return None
    most = max(sum(len(row.times) for row in found) for found in tests.values())
    figure, all_axes = panels(len(tests), 0.75 + 0.24 * most)
    for axes, (name, found) in zip(all_axes, tests.items()):
        labels = device_labels([(row.configuration.name, [time.device for time in row.times]) for row in found])
        bars, ends = [], []
        for row in found:
            whole = 1e3 / row.gain.rate.median * (row.test.prompt or 1)
            for time in row.times:
                bars.append({key: getattr(time, key) * whole for key, *_ in TIME_PARTS})
                ends.append(f"{time.collectives:.0%}" if row.configuration.has_collectives(time.device) else "")
        stacked(axes, labels, bars, TIME_PARTS, ends)
        separate(axes, [len(row.times) for row in found])
        axes.set_title(name, fontsize=10, fontweight="bold", loc="left")
        axes.set_xlabel(f"ms per {'prompt' if found[0].test.prompt else 'token'}; % in collectives", fontsize=9)
    legend_below(figure, all_axes, TIME_PARTS)
    return figure


def memory_by_device(memory: list[tuple[str, list[dict]]]) -> Figure | None:
    """Of one model: (configuration, devices as `shoal plan` lists them)."""
    bars = [device for _, devices in memory for device in devices]
    if not bars:
        return None
    largest = max(device["total"] for device in bars)
    unit, power = ("GiB", 30) if largest >= 1 << 30 else ("MiB", 20)
    scaled = [{key: device.get(key, 0) / (1 << power) for key, *_ in MEMORY_PARTS} for device in bars]
    figure, (axes,) = panels(1, 0.6 + 0.24 * len(bars), 1)
    labels = device_labels([(name, [device["device"] for device in devices]) for name, devices in memory])
    stacked(
        axes,
        labels,
        scaled,
        MEMORY_PARTS,
        [f"{device['total'] / (1 << power):.{2 if power == 30 else 1}f} {unit}" for device in bars],
    )
    separate(axes, [len(devices) for _, devices in memory])
    axes.set_xlabel(unit, fontsize=9)
    legend_below(figure, [axes], MEMORY_PARTS)
    return figure
