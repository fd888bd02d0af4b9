"""Writes the results of a search: a table, JSON, a profile for `--tensor-split @FILE`, and a chart."""
import json
import math
import os
import pathlib
from dataclasses import dataclass, field

from measuring import charts, files, text
from measuring.program import ratio_text as split_text
from tuning.measure import Setup
from tuning.splits import Grid, Split
from tuning.trials import Trial, Trials

PROFILE_VERSION = 1


@dataclass
class Report:
    setup: Setup
    grid: Grid
    trials: Trials
    predicted: dict | None = None  # shares and rates of `--tensor-split auto`
    about: dict = field(default_factory=dict)  # a plan, with model type, commit and device descriptions

    def _kinds(self) -> tuple[str, ...]:
        return self.setup.objective.kinds()

    def _even(self) -> Trial | None:
        even = self.grid.even()
        return self.trials[even] if even in self.trials and self.trials[even].scores else None

    def _versus_even(self, trial: Trial) -> float | None:
        """Gain over even shares. A gain of 0.1 means 10 % faster."""
        return math.expm1(trial.score - self._even().score) if trial.scores and self._even() else None

    def print_table(self, stream) -> None:
        """Prints the measured splits in order of their scores, then the failed splits."""
        trials, best = self.trials, self.trials.best()
        columns = ["<split", "<shares", *(f"{kind} t/s" for kind in self._kinds()), f"vs {self.grid.name_of_even()}",
                   "runs", "<why", "<remark"]
        rows = []
        for trial in [*trials.measured(), *(trial for trial in trials if not trial.scores)]:
            levels = [trial.level(kind) for kind in self._kinds()]
            versus = self._versus_even(trial)
            won = "best" if trial is trials.measured()[0] else "best: won in rounds"
            shares = " ".join(f"{100 * share:.0f}%" for share in self.grid.shares(trial.split))
            rows.append([split_text(trial.split), shares,
                         *(f"{one.value:.2f} ± {one.deviation:.2f}" if one else "" for one in levels),
                         "" if versus is None else f"{round(100 * versus, 1) or 0.0:+.1f} %", str(len(trial.runs)),
                         trial.origin, trial.failure or (won if trial is best else "")])
        if rows:
            text.print_table(columns, rows, stream, trials.measured().index(best) if best else None)

    def _measured(self, trial: Trial) -> dict:
        found: dict = {kind: round(trial.level(kind).value, 4) for kind in self._kinds()}
        found.update(score=round(math.exp(trial.score), 4), relative_error=round(self.trials.error(trial), 5),
                     runs=len(trial.runs), samples=sum(map(len, trial.scores)))
        return found

    def write_profile(self, path: str | os.PathLike) -> None:
        """Writes the profile. `--tensor-split @FILE` reads the keys up to "split_mode". Later keys are only
        information for users. Raises OSError."""
        setup, best, even = self.setup, self.trials.best(), self._even()
        workload = {name: value for name, value in {**setup.sizes(), "threads": setup.threads}.items() if value}
        profile = {
            "version": PROFILE_VERSION, "model": {"file": setup.model, "type": self.about["model_type"]},
            "devices": setup.names(), "descriptions": self.about["descriptions"], "tensor_split": list(best.split),
            "split_mode": setup.split_mode, "objective": {"name": setup.objective.name}, "workload": workload,
            "measured": self._measured(best),
            "even": {"tensor_split": list(self.grid.even()), **(self._measured(even) if even else {})},
            "prediction": self.predicted, "trials": self.trials.splits_run(), "runs": self.trials.runs(),
            "shoal": {"commit": self.about["build_commit"]},
        }
        files.write_text(path, json.dumps(profile, indent=2) + "\n")

    def as_json(self, ended: str, complete: bool) -> dict:
        best = self.trials.best()

        def row(trial: Trial) -> dict:
            found = {"split": list(trial.split), "origin": trial.origin, "runs": len(trial.runs)}
            if trial.scores:
                found.update(self._measured(trial), vs_even=self._versus_even(trial))
            return {**found, "failed": trial.failure} if trial.failure else found

        return {"units": self.grid.units, "even": list(self.grid.even()), "objective": self.setup.objective.name,
                "ended": ended, "complete": complete, "trials": self.trials.splits_run(), "runs": self.trials.runs(),
                "best": row(best) if best else None,
                "undecided": [list(trial.split) for trial in self.trials.contenders()] if best else [],
                "all": [row(trial) for trial in self.trials]}

    def write_chart(self, path: str | os.PathLike) -> None:
        """Writes the chart. With two devices, the chart has one panel per kind of test. A panel shows the speed for
        each share of the first device. With more devices, the chart has one panel per device. A panel shows the score
        for each share of the device. Raises charts.ChartError and OSError."""
        names, best = self.setup.names(), self.trials.best()
        title = f"{pathlib.Path(self.setup.model).name} on {self.setup.devices}: best {split_text(best.split)} " \
                f"of {self.grid.units}"
        if len(names) == 2:
            count = len(self._kinds())
            made, axes = charts.figure("", "", "", rows=count, size=(7.2, 1.6 + 2.5 * count))
            for number, (one, kind) in enumerate(zip([axes] if count == 1 else axes.flat, self._kinds())):
                charts.label(one, title if number == 0 else "", f"share of {names[0]} (the rest: {names[1]}), %",
                             f"{kind} t/s")
                self._draw_speed(one, number, kind)
                one.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.2))
        else:
            rows = math.ceil(len(names) / 4)
            columns = math.ceil(len(names) / rows)
            size = (1 + 2.4 * columns, 1.2 + 2.4 * rows)
            made, axes = charts.figure("", "", "", columns=columns, rows=rows, size=size)
            for one in axes.flat[len(names):]:
                one.set_visible(False)
            for device, one in zip(range(len(names)), axes.flat):
                charts.label(one, names[device], "share, %", "score, % of the best" if device % columns == 0 else "")
                self._draw_score(one, device)
            made.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
            made.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
        charts.save(made, path)

    def _draw_speed(self, axes, number: int, kind: str) -> None:
        done = sorted(self.trials.measured(), key=lambda trial: trial.split)
        levels = [trial.level(kind) for trial in done]
        charts.series(axes, number, [self._percent(trial.split, 0) for trial in done],
                      [level.value for level in levels], "measured",
                      error=[level.deviation for level in levels], nearest=100 / self.grid.units)
        top = max(level.value + level.deviation for level in levels)
        self._mark(axes, 0, self.trials.best().level(kind).value, top)

    def _draw_score(self, axes, device: int) -> None:
        best = self.trials.best()
        others = [trial for trial in self.trials.measured() if trial is not best]
        parts = [100 * math.exp(trial.score - best.score) for trial in others]
        axes.plot([self._percent(trial.split, device) for trial in others], parts, marker="o", markersize=5,
                  linestyle="none", color=charts.COLOURS[0], label="measured")
        self._mark(axes, device, 100, max([100, *parts]))

    def _mark(self, axes, device: int, best_at: float, top: float) -> None:
        """Draws marks for the best split, for even shares and for the predicted shares."""
        best = self.trials.best().split
        axes.plot([self._percent(best, device)], [best_at], marker="o", markersize=12, markerfacecolor="none",
                  linestyle="none", color=charts.COLOURS[1], label=f"best: {split_text(best)}")
        even = self._percent(self.grid.even(), device)
        axes.axvline(even, color=charts.QUIET, linestyle=":", label=self.grid.name_of_even())
        if self.predicted:
            predicted = self.grid.rounded(self.predicted["tensor_split"])
            axes.axvline(self._percent(predicted, device), color=charts.COLOURS[2], linestyle="--", label="predicted")
        axes.set_xlim(-2, 102)
        axes.set_ylim(0, 1.06 * top)

    def _percent(self, split: Split, device: int) -> float:
        return 100 * split[device] / self.grid.units
