"""What a search has found: as a table, as JSON, as a profile for `--tensor-split @FILE`, and as a chart."""
import json
import math
import os
import pathlib

from measuring import files, text
from tuning.measure import Setup
from tuning.search import Search
from tuning.splits import Split
from tuning.splits import text as split_text
from tuning.trials import Trial, Trials

PROFILE_VERSION = 1
UNITS = {"prompt": "prompt t/s", "generation": "generation t/s", "context": "context"}


def mean_and_deviation(values: list[float]) -> tuple[float, float]:
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, 0.0
    return mean, math.sqrt(math.fsum((value - mean)**2 for value in values) / (len(values) - 1))


def _figure(trial: Trial, kind: str) -> str:
    values = trial.values(kind)
    if not values:
        return ""
    mean, deviation = mean_and_deviation(values)
    return f"{mean:.0f}" if kind == "context" else f"{mean:.2f} ± {deviation:.2f}"


def _kinds(trials: Trials) -> list[str]:
    return [kind for kind in ("prompt", "generation", "context") if any(trial.values(kind) for trial in trials)]


def relative(trial: Trial, other: Trial | None) -> float | None:
    """How much better its score is: 0.1 is 10 %."""
    if other is None or not trial.scores or not other.scores:
        return None
    return math.expm1(trial.score - other.score)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:+.1f} %"


def table(search: Search, even: Split) -> tuple[list[str], list[list[str]], int | None]:
    """Columns, rows and the number of the best row: measured ones by score, then those that failed."""
    trials, best = search.trials, search.best()
    kinds = _kinds(trials)
    reference = trials[even] if even in trials else None
    with_score = trials.objective.name == "mix"
    columns = ["<split", "<shares", *(UNITS[kind] for kind in kinds), *(["score"] if with_score else []), "vs even",
               "runs", "<why", "<remark"]
    failed = [trial for trial in trials if not trial.scores]
    rows = []
    for trial in [*trials.measured(), *failed]:
        shares = " ".join(f"{100 * units / search.grid.units:.0f}%" for units in trial.split)
        score = [f"{math.exp(trial.score):.2f}" if trial.scores else ""] if with_score else []
        remark = trial.failure or ("best" if trial is best else "")
        rows.append([split_text(trial.split), shares, *(_figure(trial, kind) for kind in kinds), *score,
                     _percent(relative(trial, reference)), str(len(trial.runs)), trial.origin, remark])
    number = trials.measured().index(best) if best else None
    return columns, rows, number


def _measured(trial: Trial | None, trials: Trials) -> dict | None:
    if trial is None or not trial.scores:
        return None
    found: dict = {kind: round(mean_and_deviation(trial.values(kind))[0], 4) for kind in _kinds(trials)}
    found.update(score=round(math.exp(trial.score), 4), relative_error=round(trials.error(trial), 5),
                 runs=len(trial.runs), samples=sum(map(len, trial.scores)))
    return found


def profile(search: Search, setup: Setup, even: Split, predicted: dict | None, about: dict) -> dict:
    """What `--tensor-split @FILE` reads; everything behind "split_mode" is for people."""
    trials, best = search.trials, search.best()
    objective: dict = {"name": setup.objective.name}
    if setup.objective.name == "mix":
        objective["weight"] = setup.objective.weight
    workload = {name: value for name, value in setup.sizes().items() if value}
    return {
        "version": PROFILE_VERSION, "model": {"file": setup.model, "type": about.get("model_type", "")},
        "devices": setup.names(), "tensor_split": list(best.split), "split_mode": setup.split_mode,
        "objective": objective, "workload": workload, "measured": _measured(best, trials),
        "even": {"tensor_split": list(even), **(_measured(trials[even] if even in trials else None, trials) or {})},
        "prediction": predicted, "trials": search.trials_run(), "runs": trials.runs(),
        "shoal": {"commit": about.get("commit", "")},
    }


def write_json(path: str | os.PathLike, value: dict) -> None:
    """Throws OSError."""
    files.write_text(path, json.dumps(value, indent=2) + "\n")


def as_json(search: Search, even: Split, ended: str, complete: bool) -> dict:
    trials, best = search.trials, search.best()
    reference = trials[even] if even in trials else None

    def row(trial: Trial) -> dict:
        found = {"split": list(trial.split), "origin": trial.origin, "runs": len(trial.runs)}
        if trial.scores:
            found.update(_measured(trial, trials), vs_even=relative(trial, reference))
        if trial.failure:
            found["failed"] = trial.failure
        return found

    return {"units": search.grid.units, "objective": trials.objective.name, "ended": ended, "complete": complete,
            "trials": search.trials_run(), "runs": trials.runs(), "best": row(best) if best else None,
            "undecided": [list(trial.split) for trial in search.contenders()] if best else [],
            "all": [row(trial) for trial in trials]}


def print_table(search: Search, even: Split, stream) -> None:
    columns, rows, best = table(search, even)
    if rows:
        text.print_table(columns, rows, stream, best)


# Charts.


def simulated_title(machine: str) -> str:
    return f"simulated on {machine}, not measured"


def chart(path: str | os.PathLike, search: Search, setup: Setup, even: Split, predicted: Split | None,
          simulated: str = "") -> None:
    """Of two devices the speed by the first one's share; of more the score by the share of each. Throws ChartError."""
    from measuring import charts
    if len(setup.names()) == 2:
        made = _two_devices(charts, search, setup, even, predicted, simulated)
    else:
        made = _many_devices(charts, search, setup)
    if simulated:
        made.suptitle(simulated_title(simulated), x=0.01, ha="left", fontsize=11, color=charts.COLOURS[1])
    charts.save(made, path)


def _two_devices(charts, search: Search, setup: Setup, even: Split, predicted: Split | None, simulated: str):
    kinds = _kinds(search.trials)
    names = setup.names()
    best = search.best()
    title = f"{pathlib.Path(setup.model).name} on {setup.devices}: best {split_text(best.split)} of {search.grid.units}"
    made, axes = charts.figure("", "", "", rows=len(kinds), size=(7.2, 1.6 + 2.5 * len(kinds)))
    for number, kind in enumerate(kinds):
        one = axes if len(kinds) == 1 else axes.flat[number]
        charts.label(one, title if number == 0 else "", f"share of {names[0]} (the rest: {names[1]}), %", UNITS[kind])
        done = sorted(search.trials.measured(), key=lambda trial: trial.split)
        share = [100 * trial.split[0] / search.grid.units for trial in done]
        figures = [mean_and_deviation(trial.values(kind)) for trial in done]
        charts.series(one, number, share, [mean for mean, _ in figures], "simulated" if simulated else "measured",
                      error=[by for _, by in figures])
        at = 100 / search.grid.units
        top = mean_and_deviation(best.values(kind))[0]
        one.plot([best.split[0] * at], [top], marker="o", markersize=13, markerfacecolor="none", linestyle="none",
                 color=charts.COLOURS[1], label=f"best: {split_text(best.split)}")
        one.axvline(even[0] * at, color=charts.QUIET, linestyle=":", label="even")
        if predicted is not None:
            one.axvline(predicted[0] * at, color=charts.COLOURS[2], linestyle="--", label="predicted")
        one.set_ylim(bottom=0)
        one.set_xlim(-2, 102)
        one.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    return made


def _many_devices(charts, search: Search, setup: Setup):
    names = setup.names()
    columns = min(len(names), 4)
    rows = math.ceil(len(names) / columns)
    made, axes = charts.figure("", "", "", columns=columns, rows=rows, size=(2.0 + 2.2 * columns, 0.6 + 2.6 * rows))
    best = search.best()
    for number, one in enumerate(axes.flat):
        if number >= len(names):
            one.set_visible(False)
            continue
        charts.label(one, names[number], "share, %", "score, % of the best" if number % columns == 0 else "")
        for trial in search.trials.measured():
            leader = trial is best
            share, score = trial.split[number] / search.grid.units, math.exp(trial.score - best.score)
            one.plot([100 * share], [100 * score], marker="o", markersize=9 if leader else 5,
                     color=charts.COLOURS[1 if leader else 0], linestyle="none")
        one.set_ylim(0, 105)
    return made


