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


def _figure(trial: Trial, kind: str) -> str:
    level = trial.level(kind)
    if level is None:
        return ""
    return f"{level.value:.0f}" if kind == "context" else f"{level.value:.2f} ± {level.deviation:.2f}"


def _kinds(trials: Trials) -> list[str]:
    return [kind for kind in ("prompt", "generation", "context") if any(trial.level(kind) for trial in trials)]


def _relative(trials: Trials, trial: Trial, other: Trial | None) -> float | None:
    known = other is not None and trial.scores and other.scores
    return trials.gain(trial, other) if known else None


def _percent(value: float | None) -> str:
    return "" if value is None else f"{round(100 * value, 1) or 0.0:+.1f} %"  # no -0.0


def _spare(trial: Trial) -> float | None:
    """Of the memory of the device that is fullest with the largest context; 0.1 is 10 %."""
    left = [value for run in trial.runs for value in run.get("left", [])]
    return left[-1] if left else None


def name_of_even(even: Split) -> str:
    """Units that cannot be divided evenly are called by their numbers."""
    return "even" if min(even) == max(even) else split_text(even)


def _remark(search: Search, trial: Trial) -> str:
    if trial.failure:
        return trial.failure
    if trial is not search.best():
        return ""
    return "best" if trial is search.trials.best() else "best: won in rounds"


def table(search: Search, even: Split) -> tuple[list[str], list[list[str]], int | None]:
    """Columns, rows and the number of the best row: measured ones by score, then those that failed."""
    trials, best = search.trials, search.best()
    kinds = _kinds(trials)
    reference = trials[even] if even in trials else None
    with_score = trials.objective.name == "mix"
    with_spare = trials.objective.name == "context"
    columns = ["<split", "<shares", *(UNITS[kind] for kind in kinds), *(["score"] if with_score else []),
               *(["spare memory"] if with_spare else []), f"vs {name_of_even(even)}", "runs", "<why", "<remark"]
    failed = [trial for trial in trials if not trial.scores]
    rows = []
    for trial in [*trials.measured(), *failed]:
        shares = " ".join(f"{100 * units / search.grid.units:.0f}%" for units in trial.split)
        score = [f"{math.exp(trial.score):.2f}" if trial.scores else ""] if with_score else []
        spare = [f"{100 * _spare(trial):.1f} %" if trial.scores else ""] if with_spare else []
        rows.append([split_text(trial.split), shares, *(_figure(trial, kind) for kind in kinds), *score, *spare,
                     _percent(_relative(trials, trial, reference)), str(len(trial.runs)), trial.origin,
                     _remark(search, trial)])
    number = trials.measured().index(best) if best else None
    return columns, rows, number


def _measured(trial: Trial | None, trials: Trials) -> dict | None:
    if trial is None or not trial.scores:
        return None
    found: dict = {kind: round(trial.level(kind).value, 4) for kind in _kinds(trials)}
    if _spare(trial) is not None:
        found["spare_memory"] = round(_spare(trial), 4)
    found.update(score=round(math.exp(trial.score), 4), relative_error=round(trials.error(trial), 5),
                 runs=len(trial.runs), samples=sum(map(len, trial.scores)))
    return found


def profile(search: Search, setup: Setup, even: Split, predicted: dict | None, about: dict) -> dict:
    """What `--tensor-split @FILE` reads; everything behind "split_mode" is for people. `about`: what the program
    says of model, devices and itself."""
    trials, best = search.trials, search.best()
    objective: dict = {"name": setup.objective.name}
    if setup.objective.name == "mix":
        objective["weight"] = setup.objective.weight
    workload = {name: value for name, value in setup.sizes().items() if value}
    if setup.threads is not None:
        workload["threads"] = setup.threads
    described = {"descriptions": about["descriptions"]} if about.get("descriptions") else {}
    return {
        "version": PROFILE_VERSION, "model": {"file": setup.model, "type": about.get("model_type", "")},
        "devices": setup.names(), **described, "tensor_split": list(best.split), "split_mode": setup.split_mode,
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
            found.update(_measured(trial, trials), vs_even=_relative(trials, trial, reference))
        if trial.failure:
            found["failed"] = trial.failure
        return found

    return {"units": search.grid.units, "even": list(even), "objective": trials.objective.name, "ended": ended,
            "complete": complete, "trials": search.trials_run(), "runs": trials.runs(),
            "best": row(best) if best else None,
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
    draw = _two_devices if len(setup.names()) == 2 else _many_devices
    charts.save(draw(charts, search, setup, even, predicted, simulated), path)


def _title(search: Search, setup: Setup) -> str:
    best = split_text(search.best().split)
    return f"{pathlib.Path(setup.model).name} on {setup.devices}: best {best} of {search.grid.units}"


def _two_devices(charts, search: Search, setup: Setup, even: Split, predicted: Split | None, simulated: str):
    kinds = _kinds(search.trials)
    names = setup.names()
    best = search.best()
    made, axes = charts.figure("", "", "", rows=len(kinds), size=(7.2, 1.6 + 2.5 * len(kinds)))
    for number, kind in enumerate(kinds):
        one = axes if len(kinds) == 1 else axes.flat[number]
        charts.label(one, _title(search, setup) if number == 0 else "",
                     f"share of {names[0]} (the rest: {names[1]}), %", UNITS[kind])
        done = sorted(search.trials.measured(), key=lambda trial: trial.split)
        levels = [trial.level(kind) for trial in done]
        at = 100 / search.grid.units
        charts.series(one, number, [trial.split[0] * at for trial in done], [level.value for level in levels],
                      "simulated" if simulated else "measured", error=[level.deviation for level in levels], nearest=at)
        one.plot([best.split[0] * at], [best.level(kind).value], marker="o", markersize=13, markerfacecolor="none",
                 linestyle="none", color=charts.COLOURS[1], label=f"best: {split_text(best.split)}")
        _references(charts, one, even[0] * at, predicted[0] * at if predicted else None, even)
        one.set_ylim(0, 1.06 * max(level.value + level.deviation for level in levels))
        one.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.2))
    if simulated:
        made.suptitle(simulated_title(simulated), x=0.01, ha="left", fontsize=11, color=charts.COLOURS[1])
    return made


def _references(charts, axes, even_at: float, predicted_at: float | None, even: Split) -> None:
    """Lines for the shares that others would take, in %, and the range of all shares."""
    axes.axvline(even_at, color=charts.QUIET, linestyle=":", label=name_of_even(even))
    if predicted_at is not None:
        axes.axvline(predicted_at, color=charts.COLOURS[2], linestyle="--", label="predicted")
    axes.set_xlim(-2, 102)


def _many_devices(charts, search: Search, setup: Setup, even: Split, predicted: Split | None, simulated: str):
    """A panel for each device, all with the same axes; below them what the marks mean."""
    names = setup.names()
    rows = math.ceil(len(names) / 4)
    columns = math.ceil(len(names) / rows)
    made, axes = charts.figure("", "", "", columns=columns, rows=rows, size=(1.0 + 2.4 * columns, 1.2 + 2.4 * rows))
    best = search.best()
    others = [trial for trial in search.trials.measured() if trial is not best]
    at = 100 / search.grid.units
    for number, one in enumerate(axes.flat):
        if number >= len(names):
            one.set_visible(False)
            continue
        charts.label(one, names[number], "share, %", "score, % of the best" if number % columns == 0 else "")
        one.plot([trial.split[number] * at for trial in others], [_part(trial, best) for trial in others],
                 marker="o", markersize=5, linestyle="none", color=charts.COLOURS[0],
                 label="simulated" if simulated else "measured")
        one.plot([best.split[number] * at], [100], marker="o", markersize=11, markerfacecolor="none", linestyle="none",
                 color=charts.COLOURS[1], label=f"best: {split_text(best.split)}")
        _references(charts, one, even[number] * at, predicted[number] * at if predicted else None, even)
        one.set_ylim(0, 1.06 * max([100.0, *(_part(trial, best) for trial in others)]))
    remark = f"\n{simulated_title(simulated)}" if simulated else ""
    made.suptitle(_title(search, setup) + remark, x=0.01, ha="left", fontsize=12, fontweight="bold")
    made.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return made


def _part(trial: Trial, best: Trial) -> float:
    """Its score, in % of the best one's."""
    return 100 * math.exp(trial.score - best.score)
