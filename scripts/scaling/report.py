"""The report: Markdown with charts beside it, a CSV and a JSON file; and the table for a terminal."""

import json
import pathlib
import re

from matplotlib.figure import Figure

from measuring import charts as chart_files
from measuring import files
from measuring.text import markdown_table
from scaling import charts, results, svg
from scaling.results import Findings, Row

COLUMNS = [
    "<devices",
    "rounds",
    "t/s",
    "speed-up",
    "min - max",
    "ideal",
    "limit",
    "efficiency",
    "predicted t/s",
    "error",
    "collectives",
    "predicted",
]


TITLE = "# What the next device gains"
CHARTS = ("speedup", "time", "memory")


def check_replaced(folder: pathlib.Path, output: pathlib.Path, models: list[str], suffix: str, inputs: list, force: bool) -> None:
    """That write() replaces files of its own alone. Throws files.Refused."""
    names = [(folder / "README.md", "report", files.Kind(TITLE.encode()))]
    names.append((folder / "scaling.csv", "table", files.Kind(b"model,test,configuration,")))
    names.append((output / "scaling.json", "result", files.Kind(b"{", b'"samples_ts"')))
    for kind in CHARTS:
        paths = [folder / file_name(kind, model, suffix) for model in models]
        names += [(path, "chart", chart_files.kind_of(path)) for path in paths]
    for path, what, kind in names:
        files.check_replaced(path, what, kind, inputs, force)


def number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def rate_text(rate: float | None) -> str:
    return number(rate, 0 if rate and rate >= 1000 else 1)


def percent(value: float | None, signed: bool = False) -> str:
    return "" if value is None else f"{value:{'+' if signed else ''}.0%}".replace("%", " %")


def cells_of(row: Row) -> list[str]:
    gain = row.gain
    if not gain:
        return [row.configuration.name, "0", "failed" if row.failure else "not measured", *[""] * 9]
    speedup = gain.speedup
    return [
        row.configuration.name + (" (failed later)" if row.failure else ""),
        str(row.rounds),
        rate_text(gain.rate.median),
        number(speedup and speedup.median),
        f"{speedup.least:.2f} - {speedup.most:.2f}" if speedup else "",
        number(gain.ideal),
        number(row.bound if row.limited else None),
        percent(gain.efficiency and gain.efficiency.median),
        rate_text(row.predicted),
        percent(row.error, signed=True),
        percent(row.collectives),
        percent(row.predicted_collectives),
    ]


def shown_columns(rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    """Without columns that are empty throughout."""
    lines = [cells_of(row) for row in rows]
    kept = [place for place in range(len(COLUMNS)) if place < 3 or any(line[place] for line in lines)]
    return [COLUMNS[place] for place in kept], [[line[place] for place in kept] for line in lines]


LESS_IMPORTANT = [  # on terminals that are too narrow, the first one first
    "rounds",
    "limit",
    "min - max",
    "predicted",
    "ideal",
    "collectives",
    "error",
    "predicted t/s",
    "efficiency",
]


def terminal_table(rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    """All models and tests in one."""
    columns, lines = shown_columns(rows)
    return ["<model", "<test", *columns], [[row.model, row.test.name, *line] for row, line in zip(rows, lines)]


def verdict(rows: list[Row]) -> str:
    """Of a model and test, in a sentence: what the devices gain."""
    usual = [row for row in rows if row.speedup and not row.configuration.machine]
    several = [row for row in usual if row.configuration.count > 1]
    if not several:
        return "nothing to compare"
    best = max(several, key=lambda row: row.speedup.median)
    told = f"{best.speedup.text(2)} times as fast as {best.baseline}"
    others = f", the best of {len(several)}," if len(several) > 1 else ""
    if best.speedup.most < 1:
        return f"**{best.baseline} alone is fastest**; {best.configuration.name} is {told}"
    if best.speedup.least <= 1:
        return f"no difference beyond noise: {best.configuration.name}{others} is {told}"
    return f"**{best.configuration.name}** is {told}, {percent(best.gain.efficiency.median)} of the ideal"


def grouped(rows: list[Row]) -> dict[tuple[str, str], list[Row]]:
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.model, row.test.name), []).append(row)
    return found


def file_name(kind: str, model: str, suffix: str) -> str:
    return f"{kind}-{re.sub(r'[^A-Za-z0-9._-]+', '_', model).strip('_.')}{suffix}"


def save(figure: Figure, path: pathlib.Path) -> None:
    chart_files.save(figure, path)
    if path.suffix == ".svg":
        path.write_text(svg.compact(path.read_text()))


def draw(rows: list[Row], found: Findings, folder: pathlib.Path, suffix: str) -> dict[str, list[tuple[str, str]]]:
    """Writes the charts; (model, file) of each kind."""
    made: dict[str, list[tuple[str, str]]] = {kind: [] for kind in CHARTS}
    for model in dict.fromkeys(row.model for row in rows):
        own = [row for row in rows if row.model == model]
        order = list(dict.fromkeys(row.configuration.name for row in own if not row.configuration.machine))
        memory = [(name, found.memory[model, name]) for name in order if (model, name) in found.memory]
        drawings = {
            "speedup": (charts.speedup, own),
            "time": (charts.time_by_device, own),
            "memory": (charts.memory_by_device, memory),
        }
        for kind, (drawing, data) in drawings.items():
            with charts.style():
                figure = drawing(data)
                if figure is not None:
                    made[kind].append((model, file_name(kind, model, suffix)))
                    save(figure, folder / made[kind][-1][1])
    return made


def images(made: list[tuple[str, str]], what: str) -> list[str]:
    lines = []
    for model, name in made:
        lines += [f"**{model}**", "", f"![{what}, {model}]({name})", ""]
    return lines


def summary_lines(rows: list[Row]) -> list[str]:
    lines = [f"- {model}, {test}: {verdict(own)}" for (model, test), own in grouped(rows).items()]
    return [*lines, ""]


def figures_lines(rows: list[Row]) -> list[str]:
    lines = []
    for (model, test), own in grouped(rows).items():
        lines += [f"**{model}, {test}**", "", markdown_table(*shown_columns(own)), ""]
    return lines


def prediction_lines(rows: list[Row], remarks: list[str]) -> list[str]:
    errors = results.mean_errors(rows)
    if not errors:
        return [*(remarks or ["There are no predictions."]), ""]
    table = []
    for model, error in errors.items():
        known = [row.error for row in rows if row.model == model and row.error is not None]
        table.append([model, str(len(known)), percent(error), percent(min(known), True), percent(max(known), True)])
    return [
        "Error: predicted by measured tokens/s, less 1; the mean is that of the magnitudes.",
        "",
        markdown_table(["<model", "predictions", "mean error", "lowest", "highest"], table),
        "",
        *remarks,
        *([""] if remarks else []),
    ]


def failure_lines(found: Findings) -> list[str]:
    if not found.failures and not found.remarks:
        return []
    lines = [f"- {model}, {name}: {error}" for (model, name), error in found.failures.items()]
    lines += [f"- {remark}" for remark in found.remarks]
    return ["## What failed", "", *lines, ""]


def section(title: str, text: list[str], lines: list[str]) -> list[str]:
    return [f"## {title}", "", *text, "", *lines] if lines else []


# Why a row with fewer t/s may have the greater speed-up.
SPEEDUP_NOTE = "t/s: median of the rounds; speed-up: median of each round's own ratio, not the ratio of these medians"
SPEEDUP_TEXT = [
    "Medians of the rounds' own ratios to the baseline; thin lines reach from the smallest to the largest. *Ideal*:",
    "the sum of what the devices do alone. *Limit of the machine*: what its cores, and for generation the bandwidth of",
    "its memory, allow.",
]
TIME_TEXT = [
    "From a traced run. A collective ends when all devices have come: until the last one has, a device waits, the rest",
    "is communication; % is both, of all the time. *Blocked* devices wait outside collectives, for another stage or",
    "the host. *Between runs* the host works, or another device.",
]
MEMORY_TEXT = ["As `shoal plan` says for the largest context of the tests."]


def markdown(rows: list[Row], found: Findings, facts: dict, made: dict[str, list[tuple[str, str]]]) -> str:
    lines = [TITLE, "", *summary_lines(rows), *facts["baseline"], ""]
    if facts["unfinished"]:
        lines += [f"**Not finished:** {facts['unfinished']}", ""]
    lines += section("Speed-up", SPEEDUP_TEXT, images(made["speedup"], "speed-up"))
    lines += section("Where the time goes", TIME_TEXT, images(made["time"], "time by device"))
    lines += section("Memory", MEMORY_TEXT, images(made["memory"], "memory by device"))
    lines += section("Figures", [f"{SPEEDUP_NOTE}.", facts["files"]], figures_lines(rows))
    lines += ["## Predictions", "", *prediction_lines(rows, facts["remarks"]), *failure_lines(found)]
    lines += ["## Machine", "", markdown_table(["<what", "<value"], [list(pair) for pair in facts["host_lines"]]), ""]
    lines += ["## How it was made", "", *(f"    {line}" for line in facts["command"]), ""]
    lines += [f"- {line}" for line in facts["notes"]]
    return "\n".join(lines) + "\n"


def one_line_each(document: dict) -> str:
    """JSON that people can read: an item of a list on each line."""
    parts = []
    for key, value in document.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            items = ",\n  ".join(json.dumps(item) for item in value)
            parts.append(f" {json.dumps(key)}: [\n  {items}\n ]")
        else:
            parts.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def write(
    rows: list[Row], found: Findings, facts: dict, output: pathlib.Path, folder: pathlib.Path, suffix: str
) -> dict:
    """Report, charts and CSV into the folder, JSON into that of the journal; what JSON has."""
    folder.mkdir(parents=True, exist_ok=True)
    document = results.document(rows, found, facts["document"])
    facts = facts | {"files": "All of them: [scaling.csv](scaling.csv)"}
    facts["files"] += ", with the samples: [scaling.json](scaling.json)." if folder.samefile(output) else "."
    made = draw(rows, found, folder, suffix)
    (folder / "scaling.csv").write_text(results.csv_text(rows))
    (output / "scaling.json").write_text(one_line_each(document))
    (folder / "README.md").write_text(markdown(rows, found, facts, made))
    return document
