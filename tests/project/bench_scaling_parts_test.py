"""scripts/scaling: arithmetic, traces, predictions, devices, charts and the host; nothing is run."""

import dataclasses
import importlib.util
import json
import math
import os
import pathlib
import re
import sys
import tempfile
import types
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))

TINY = ROOT / "data/models/tiny-kjv-5m-q8_0.gguf"
PACKAGES = ("matplotlib", "rich")
if MISSING := [name for name in PACKAGES if importlib.util.find_spec(name) is None]:
    print(f"skipped: no {' and '.join(MISSING)} (scripts/install_python)")
    sys.exit(77)

from scaling import analysis, charts, configurations, devices, facts, report, results, runs, topology, trace  # noqa: E402
from scaling.configurations import Configuration, ConfigurationError, Test  # noqa: E402


class AnalysisTest(unittest.TestCase):
    def test_ratios_are_those_of_rounds(self):
        base, two = {0: 100.0, 1: 80.0, 2: 90.0, 3: 50.0}, {0: 180.0, 1: 150.0, 2: 160.0}
        gain = analysis.gain(two, base, {number: 2 * rate for number, rate in base.items()})
        self.assertAlmostEqual(gain.speedup.median, 1.8)
        self.assertAlmostEqual(gain.speedup.least, 160 / 90)
        self.assertAlmostEqual(gain.speedup.most, 1.875)
        self.assertAlmostEqual(gain.efficiency.median, 0.9)
        self.assertEqual((gain.ideal, gain.rate.median), (2.0, 160.0))
        self.assertIsNone(analysis.gain(two, None, {}).speedup)
        self.assertIsNone(analysis.gain(two, {7: 1.0}, {}).speedup)

    def test_ideal_is_the_sum_of_the_devices(self):
        alone = {"CPU0": {0: 10.0, 1: 20.0}, "CPU1": {0: 30.0, 1: 50.0, 2: 60.0}}
        self.assertEqual(analysis.ideal_rates(["CPU0", "CPU1"], alone), {0: 40.0, 1: 70.0})
        self.assertEqual(analysis.ideal_rates(["CPU0", "CPU7"], alone), {}, "what CPU7 does is not known")

    def test_intervals(self):
        few = analysis.Spread.of([3.0, 1.0, 2.0])
        self.assertEqual((few.low, few.median, few.high), (1.0, 2.0, 3.0))
        values = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 5.0]
        many = analysis.Spread.of(values)
        self.assertEqual(many, analysis.Spread.of(values[::-1]))
        self.assertLess(many.high, 5.0)
        self.assertGreaterEqual(many.low, 0.98)

    def test_limits_of_the_machine(self):
        machine = {
            "domains": [{"name": "a", "bandwidth": 15e9}, {"name": "b", "bandwidth": 0}],
            "devices": [
                {"name": f"CPU{i}", "domain": "ab"[i // 2], "bandwidth": 1e10, "cache_bytes": 100} for i in range(4)
            ],
        }
        def bound(members, size=1000, base="CPU0", of=machine):
            return analysis.bandwidth_bound(of, members, base, size)

        self.assertAlmostEqual(bound(["CPU0", "CPU1"]), 1.5)
        self.assertAlmostEqual(bound(["CPU2", "CPU3"]), 2.0)
        self.assertAlmostEqual(bound(["CPU0", "CPU1", "CPU2"]), 2.5)
        self.assertIsNone(bound(["CPU0", "CPU1"], 150), "in caches")
        self.assertIsNone(bound(["CPU0", "GPU0"]))
        self.assertIsNone(bound(["CPU0"], of=None))
        machine["devices"][3]["bandwidth"] = 4e10  # more than its domain, when it was measured
        machine["domains"][1]["bandwidth"] = 2e10
        self.assertAlmostEqual(bound(["CPU3"], base="CPU3"), 1.0)
        self.assertAlmostEqual(bound(["CPU0", "CPU3"], base="CPU0"), 3.0)
        self.assertAlmostEqual(bound(["CPU0", "CPU3"], base="CPU3"), 1.5)
        busy = {"CPU0": 1, "CPU1": 1, "CPU2": 3}
        self.assertEqual(analysis.cores_bound(["CPU0", "CPU1"], "CPU0", busy, 3), 2)
        self.assertEqual(analysis.cores_bound(["CPU0", "CPU1", "CPU2"], "CPU0", busy, 3), 3)
        self.assertIsNone(analysis.cores_bound(["CPU0", "CUDA0"], "CPU0", busy, 3))

    def test_errors_of_predictions(self):
        self.assertAlmostEqual(analysis.relative_error(110, 100), 0.1)
        self.assertIsNone(analysis.relative_error(None, 100))
        self.assertAlmostEqual(analysis.mean_error([0.1, -0.2, None]), 0.15)
        self.assertIsNone(analysis.mean_error([None]))


class TraceTest(unittest.TestCase):
    def events(self, *spans):
        rows = sorted({row for row, *_ in spans})
        names = [
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": rows.index(row), "args": {"name": row}} for row in rows
        ]
        return json.dumps(
            {
                "traceEvents": names
                + [
                    {"ph": "X", "pid": 1, "tid": rows.index(row), "cat": kind, "name": "x", "ts": begin, "dur": length}
                    for row, kind, begin, length in spans
                ]
            }
        )

    def test_waiting_is_until_the_last_one_comes(self):
        text = self.events(
            ("CPU0", "compute", 0, 40),
            ("CPU0", "collective", 40, 25),
            ("CPU0", "copy", 65, 15),
            ("CPU0", "wait", 80, 20),
            ("CPU1", "compute", 0, 60),
            ("CPU1", "collective", 60, 5),
            ("host", "host", -900, 5000),
        )
        one, two = trace.breakdown(trace.parse(text), [["CPU0", "CPU1"]])
        names = ("compute", "communication", "waiting", "copies", "blocked", "idle")
        found = [[getattr(time, name) for name in names] for time in (one, two)]
        for values, expected in zip(found, [(0.4, 0.05, 0.2, 0.15, 0.2, 0.0), (0.6, 0.05, 0.0, 0.0, 0.0, 0.35)]):
            for value, wanted in zip(values, expected):
                self.assertAlmostEqual(value, wanted)
        self.assertAlmostEqual(trace.collective_share([one, two]), (0.25 + 0.05) / 2)
        stages = trace.breakdown(trace.parse(self.events(("A", "wait", 0, 90), ("A", "compute", 90, 10))), [["A"]])
        self.assertEqual(trace.collective_share(stages), 0.0, "waiting for a stream is no collective")

    def test_the_nth_collectives_belong_together_and_groups_do_not(self):
        spans = [
            ("CPU0", "collective", 0, 30),
            ("CPU0", "collective", 50, 10),
            ("CPU1", "collective", 20, 10),
            ("CPU1", "collective", 40, 20),
            ("CPU2", "collective", 90, 10),
        ]
        times = trace.breakdown(trace.parse(self.events(*spans)), [["CPU0", "CPU1"], ["CPU2"]])
        waiting = [round(time.waiting, 6) for time in times]
        self.assertEqual(waiting, [0.2, 0.1, 0.0])
        self.assertEqual([round(time.communication, 6) for time in times], [0.2, 0.2, 0.1])
        with self.assertRaisesRegex(trace.TraceError, "CPU0 has 2, CPU1 has 2, CPU2 has 1"):
            trace.breakdown(trace.parse(self.events(*spans)), [["CPU0", "CPU1", "CPU2"]])

    def test_only_measured_runs_count(self):
        spans = [
            ("bench", "host", 0, 50),
            ("bench", "host", 100, 10),
            ("bench", "host", 200, 10),
            ("CPU0", "compute", 0, 50),
            ("CPU0", "compute", 100, 4),
            ("CPU0", "compute", 202, 8),
            ("CPU0", "compute", 220, 70),
        ]
        found = [
            dataclasses.replace(span, name=f"tg4 run {span.begin:g}") if span.kind == "host" and span.begin else span
            for span in trace.parse(self.events(*spans))
        ]
        self.assertAlmostEqual(trace.breakdown(found, [["CPU0"]])[0].compute, 12 / 20)

    def test_what_is_no_trace(self):
        for text in ("", "[1]", "{}", '{"traceEvents": [{"ph": "X", "cat": "compute"}]}', '{"traceEvents": 3}'):
            with self.subTest(text), self.assertRaises(trace.TraceError):
                trace.parse(text)
        with self.assertRaisesRegex(trace.TraceError, "no row of CPU1"):
            trace.breakdown(trace.parse(self.events(("CPU0", "compute", 0, 1))), [["CPU0", "CPU1"]])
        with self.assertRaises(trace.TraceError):
            trace.read(pathlib.Path("/nowhere"), [["CPU0"]])


def devices_of(*descriptions, threads=None, cores=4):
    found = [
        {"name": f"{text.partition(':')[0]}{i}", "type": text.partition(":")[0], "description": text.partition(":")[2]}
        for i, text in enumerate(descriptions)
    ]
    return devices.Devices({one["name"]: devices.Device.of(one, threads) for one in found}, cores)


class DevicesTest(unittest.TestCase):
    def test_threads_are_those_that_compute(self):
        texts = ("CPU:X, 2 cores, node 0", "CPU:X, 1 core, 3 threads, node 0, slowed 2.5x", "GPU:X, 2 cores", "CPU:odd")
        told = [(one.threads, one.slowdown) for one in devices_of(*texts).found.values()]
        self.assertEqual(told, [(2, 1.0), (3, 2.5), (0, 1.0), (0, 1.0)])
        self.assertEqual([one.threads for one in devices_of(*texts, threads=5).found.values()], [5, 5, 0, 5])

    def alone(self, there, *lists):
        found = configurations.configurations_of(list(lists), ["tensor"], [])
        added = devices.to_measure_alone(found, there)
        self.assertTrue(all(one.reference and one.count == 1 for one in added))
        return [one.name for one in added], " ".join(devices.ideal_lines(found + added, there))

    def test_one_of_each_kind_is_measured_alone(self):
        even = devices_of("CPU:X, 1 core", "CPU:X, 1 core", "CPU:X, 1 core")
        self.assertEqual(self.alone(even, "CPU0", "CPU0,CPU1,CPU2")[0], [])
        told = self.alone(even, "CPU0", "CPU0,CPU1,CPU2")[1]
        self.assertIn("CPU1 and CPU2, which are like CPU0, count as CPU0", told)
        self.assertEqual(self.alone(even, "CPU0,CPU1")[0], [])
        self.assertIn("all devices are alike", self.alone(even, "CPU0,CPU1")[1])
        uneven = devices_of("CPU:X, 1 core", "CPU:X, 1 core, slowed 3x", "CPU:X, 1 core", "CPU:X, 1 core, slowed 3x")
        added, told = self.alone(uneven, "CPU0", "CPU0,CPU1,CPU2,CPU3")
        self.assertEqual(added, ["CPU1"])
        self.assertIn("CPU0 and CPU1 were each measured alone", told)
        self.assertIn("CPU2, which is like CPU0, counts as CPU0; CPU3, which is like CPU1, counts as CPU1", told)
        self.assertEqual(self.alone(uneven, "CPU0,CPU1", "CPU0,CPU1,CPU2")[0], ["CPU0", "CPU1"])
        self.assertEqual(self.alone(uneven, "CPU1", "CPU0,CPU2")[0], ["CPU0"], "the one alone is unlike them")
        self.assertEqual(self.alone(uneven, "CPU0", "CPU1"), ([], ""))
        gpus = devices_of("GPU:G, sm_90, part 1 of 2", "GPU:G, sm_90, part 2 of 2", "CPU:X, 1 core")
        self.assertEqual(self.alone(gpus, "GPU0", "GPU0,GPU1")[0], [])
        self.assertEqual(self.alone(gpus, "GPU0", "GPU0,CPU2")[0], ["CPU2"])

    def test_limits_are_of_equal_devices(self):
        threads = devices_of("CPU:X, 1 core", "CPU:X, 1 core", "CPU:X, 1 core, 2 threads", "CPU:X, 1 core, slowed 2x")
        found = results.Findings(devices=threads)
        self.assertTrue(found.equally_fast(["CPU0", "CPU1"]))
        for other in ("CPU2", "CPU3", "CUDA0"):
            self.assertFalse(found.equally_fast(["CPU0", other]), other)
        found.bench_threads["CPU0"] = 2  # of flags that are for `shoal bench` alone
        self.assertEqual([found.threads(f"CPU{i}") for i in range(4)], [2, 2, 2, 1])

    def test_commands_begin_with_what_shapes_them(self):
        given = {"SHOAL_CPU_THREADS": "2,1", "SHOAL_COMM": "a b", "HOME": "/x", "SHOAL_CPU_SLOWDOWN": ""}
        with mock.patch.dict(os.environ, given, clear=True):
            told = facts.command_line(["-m", "a b.gguf"])
        self.assertEqual(told, "SHOAL_COMM='a b' SHOAL_CPU_THREADS=2,1 scripts/bench_scaling.py -m 'a b.gguf'")


class PredictionTest(unittest.TestCase):
    def share(self, groups, mode="tensor", prompt=0, copies=0.0, names=("CPU0", "CPU1")):
        """Of two devices, 0.2 and 0.1 s of 1 s in collectives, waiting included; 0.3 s are the host's."""
        parts = [(0.5, 0.1, 0.1), (0.6, 0.1, 0.0)]
        keys = ("device", "compute", "communication", "waiting")
        rows = [dict(zip(keys, (name, *one))) for name, one in zip(names, parts)]
        phase = {"tokens_per_second": prompt or 1, "devices": rows, "host_seconds": 0.3, "copy_seconds": copies}
        found = {"prediction": {"prompt" if prompt else "generation": phase}}
        configuration = Configuration(groups, mode)
        return runs.prediction_in(found, configuration, Test(prompt, 0 if prompt else 8)).get("collectives")

    def test_collectives_are_a_part_of_all_the_time(self):
        self.assertAlmostEqual(self.share((("CPU0", "CPU1"),)), 0.15)
        self.assertAlmostEqual(self.share((("CPU0", "CPU1"),), prompt=64), 0.15)
        self.assertAlmostEqual(self.share((("CPU0", "CPU1"),), copies=0.05), 0.1)
        self.assertEqual(self.share((("CPU0",), ("CPU1",)), "layer"), 0.0, "these wait, but not in collectives")
        self.assertIsNone(self.share((("CPU0", "CPU1"), ("CPU2",)), "layer"), "what is waited for is not recorded")
        self.assertIsNone(self.share((("CPU0", "CPU1"),), names=("CPU0", "CUDA1")))


def row(name, speedup, ideal, predicted, groups=None, spread=0.4, **more):
    """Of a report: CPU0,CPU1 is as much faster than CPU0."""
    given = groups or (tuple(name.split(",")),)
    found = results.Row("m", Test(0, 8), Configuration(given, **more), "CPU0", 3)
    found.gain = analysis.gain(
        {0: speedup, 1: speedup * (1 - spread), 2: speedup * (1 + spread)}, {i: 1.0 for i in range(3)}, {0: ideal}
    )
    found.predicted_speedup = predicted
    return found


class ChartTest(unittest.TestCase):
    """Values of bars are in a column of their own, those of curves beside their points; none covers another."""

    def values(self, rows, beside_points=True):
        with charts.style():
            figure = charts.speedup(rows)
            figure.draw_without_rendering()
            axes = figure.axes[0]
            inside = axes.get_window_extent()
            texts = [text for text in axes.texts if re.fullmatch(r"\d+\.\d\d", text.get_text())]
            boxes = [text.get_window_extent() for text in texts]
            marks = [mark for line in axes.lines if line.get_marker() in ("o", "s") for mark in self.marks(line)]
            labels = [*axes.get_xticklabels(), *axes.get_yticklabels(), axes.xaxis.label]
            others = [label.get_window_extent() for label in labels if label.get_text()]
            whole = figure.bbox
        for place, box in enumerate(boxes):
            if beside_points:
                self.assertTrue(inside.contains(box.x0, box.y0) and inside.contains(box.x1, box.y1), texts[place])
                self.assertFalse(any(box.contains(*mark) for mark in marks), f"{texts[place]} covers a point")
                centre, near = ((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2), 25 * figure.dpi / 72
                point = axes.transData.transform(texts[place].xy)
                self.assertLess(math.dist(centre, point), near, f"{texts[place]} is not at its point")
            else:
                self.assertFalse(inside.overlaps(box), texts[place])
            self.assertFalse(any(box.overlaps(other) for other in boxes[place + 1 :] + others), texts[place])
            self.assertTrue(whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0, texts[place])
        if beside_points:
            self.assertTrue(all(inside.x0 + 8 < x < inside.x1 - 8 for x, _ in marks), "a point touches an edge")
        return [text.get_text() for text in texts]

    @staticmethod
    def marks(line):
        return line.get_transform().transform(line.get_xydata())

    def test_curves(self):
        rows = [row("CPU0", 1, 1, 1, spread=0)]
        rows += [row(",".join(f"CPU{i}" for i in range(n)), 0.9 * n, n, 0.88 * n) for n in (2, 4, 8, 16)]
        self.assertEqual(self.values(rows), ["1.00", "1.80", "3.60", "7.20", "14.40"])
        layers = [row("CPU0,CPU1", 1.1, 2, 1.2, (("CPU0",), ("CPU1",)), mode="layer")]
        self.assertEqual(self.values(rows[:3] + layers), ["1.00", "1.80", "3.60", "1.10"])

    def test_values_hide_no_range_where_there_is_another_place(self):
        with charts.style():
            figure = charts.speedup([row("CPU0", 1, 1, 1), row("CPU0,CPU1", 1.2, 1.3, 1.25)])
            figure.draw_without_rendering()
            axes = figure.axes[0]
            boxes = [text.get_window_extent() for text in axes.texts if re.fullmatch(r"\d+\.\d\d", text.get_text())]
            ranges = [one.get_paths()[0].transformed(one.get_transform()) for one in axes.collections]
        self.assertEqual((len(boxes), len(ranges)), (2, 2))
        self.assertFalse(any(part.intersects_bbox(box, filled=False) for part in ranges for box in boxes))

    def test_references_are_no_curve(self):
        rows = [row("CPU0", 1, 1, 1), row("CPU0,CPU1", 1.2, 1.3, 1.25), row("CPU1", 0.3, 0.3, 0.3, reference=True)]
        self.assertTrue(charts.is_curve(rows))
        self.assertEqual(self.values(rows), ["1.00", "1.20"])

    def test_bars(self):
        rows = [row("CPU0", 1, 1, 1), row("CPU1", 1.46, 1.46, 0.5), row("CPU0,CPU1", 0.6, 2.46, 0.85)]
        self.assertFalse(charts.is_curve(rows))
        self.assertEqual(self.values(rows, beside_points=False), ["1.00", "1.46", "0.60"])

    def test_shares_in_collectives_are_of_devices_that_have_some(self):
        mixed = row("", 1, 1, 1, (("CPU0", "CPU1"), ("CPU2",)), mode="layer")
        mixed.times = [trace.DeviceTime(f"CPU{i}", 0.5, 0.1, 0.1, blocked=0.2) for i in range(3)]
        with charts.style():
            figure = charts.time_by_device([mixed])
        self.assertEqual([text.get_text() for text in figure.axes[0].texts], ["20%", "20%", ""])

    def test_legends_list_parts_as_bars_do_and_a_part_has_one_colour(self):
        without, with_copies = row("CPU0", 1, 1, 1), row("CPU0,CPU1", 1, 1, 1)
        without.times = [trace.DeviceTime("CPU0", 0.9)]
        with_copies.times = [trace.DeviceTime(f"CPU{i}", 0.5, 0.1, 0.1, copies=0.2) for i in range(2)]
        memory = [("CPU0", [{"device": "CPU0", "total": 60, "weights": 40, "compute": 10, "communication": 10}])]
        with charts.style():
            figures = charts.time_by_device([without, with_copies]), charts.memory_by_device(memory)
        colours = []
        for figure in figures:
            legend = figure.legends[0]
            texts = [text.get_text() for text in legend.get_texts()]
            colours.append(dict(zip(texts, (patch.get_facecolor() for patch in legend.get_patches()))))
        self.assertEqual(
            list(colours[0]), ["compute", "communication", "waiting in collectives", "copies", "between runs"]
        )
        for part in ("compute", "communication"):
            self.assertEqual(colours[0][part], colours[1][part])
        self.assertEqual(len(set(colours[0].values()) | set(colours[1].values())), 6)

    def test_verdicts_name_what_was_compared(self):
        noise = [row("CPU0", 1, 1, 1), row("CPU0,CPU1", 1.01, 2, 1)]
        self.assertEqual(
            report.verdict(noise),
            "no difference beyond noise: CPU0,CPU1 is 1.01 (0.61 - 1.41) times as fast as CPU0",
        )
        self.assertIn(": CPU0,CPU1, the best of 2, is 1.01", report.verdict([*noise, row("CPU0,CPU2", 0.9, 2, 1)]))


class ConfigurationTest(unittest.TestCase):
    def of(self, lists, modes=("tensor",), shares=()):
        return [one.name for one in configurations.configurations_of(list(lists), list(modes), list(shares))]

    def test_lists_modes_and_shares(self):
        self.assertEqual(self.of(configurations.lists_of_counts([1, 3], "CUDA")), ["CUDA0", "CUDA0,CUDA1,CUDA2"])
        self.assertEqual(
            self.of(["CPU0", "CPU0,CPU1"], ["tensor", "layer"], ["", "3,1"]),
            ["CPU0", "CPU0,CPU1", "CPU0,CPU1 3,1", "CPU0,CPU1 layer", "CPU0,CPU1 layer 3,1"],
        )
        self.assertEqual(self.of(["CPU0+CPU1,CPU2"], ["layer"], ["2,1"]), ["CPU0+CPU1,CPU2 layer 2,1"])
        grouped = configurations.configurations_of(["CPU0+CPU1,CPU2"], ["layer"], ["2,1"])[0]
        self.assertEqual(
            grouped.flags(), ["--devices", "CPU0+CPU1,CPU2", "--split-mode", "layer", "--tensor-split", "2,1"]
        )
        self.assertEqual(configurations.cpu_devices([grouped]), 3)

    def test_processes(self):
        tensor, layers = configurations.configurations_of(["CPU0,CPU1"], ["tensor", "layer"], [], (2,))
        self.assertEqual(tensor.groups, (("CPU0", "CPU1", "1:CPU0", "1:CPU1"),))
        self.assertEqual(layers.groups, (("CPU0",), ("CPU1",), ("1:CPU0",), ("1:CPU1",)))
        self.assertEqual((tensor.name, tensor.count), ("CPU0,CPU1 in 2 processes", 4))
        self.assertEqual(tensor.flags(), ["--devices", "CPU0,CPU1"])
        self.assertEqual(layers.flags(), ["--devices", "CPU0,CPU1", "--split-mode", "layer"])
        hosts = configurations.configurations_of(["CPU0+CPU1"], ["layer"], ["3,1"], (1, 2))
        self.assertEqual([one.name for one in hosts], ["CPU0+CPU1 in 1 process layer", "CPU0+CPU1 in 2 processes layer 3,1"])
        self.assertEqual(hosts[1].groups, (("CPU0", "CPU1"), ("1:CPU0", "1:CPU1")))
        self.assertEqual(configurations.cpu_devices(hosts), 2)
        one, two = configurations.configurations_of(["CPU0"], ["layer"], [], (1, 2))
        self.assertEqual((one.name, one.flags(), two.name), ("CPU0", ["--devices", "CPU0"], "CPU0 in 2 processes layer"))
        self.assertNotEqual(two.series, layers.series, "other curves")

    def test_auto_and_profiles(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "a.json"
            text = f"@{path}"
            path.write_text('{"version": 1, "devices": ["CPU0", "CPU1"], "tensor_split": [1, 3]}')
            found = configurations.configurations_of(["CPU0", "CPU0,CPU1", "CPU1,CPU0"], ["tensor"], ["auto", text])
            expected = ["CPU0", "CPU0,CPU1 auto", f"CPU0,CPU1 {text}", "CPU1,CPU0 auto"]
            self.assertEqual([one.name for one in found], expected)
            self.assertEqual(found[2].flags(), ["--devices", "CPU0,CPU1", "--tensor-split", text])
            self.assertEqual(self.of(["CPU0,CPU1,CPU2"], ["tensor", "layer"], ["auto"])[1], "CPU0,CPU1,CPU2 layer auto")
            for lists, modes, shares, message in (
                (["CPU0"], ["tensor"], "auto", "has two or more"),
                (["CPU1,CPU0"], ["tensor"], text, "no list of devices is CPU0,CPU1 in split mode tensor"),
                (["CPU0,CPU1"], ["layer"], text, "no list of devices is CPU0,CPU1"),
                (["CPU0,CPU1"], ["tensor"], f"@{folder}/none", "No such file"),
                (["CPU0,CPU1"], ["tensor"], f"@{TINY}", "is no profile"),
            ):
                with self.subTest(message), self.assertRaisesRegex(ConfigurationError, message):
                    self.of(lists, modes, [shares])
            before = found[2]
            path.write_text('{"version": 1, "devices": ["CPU0", "CPU1"], "tensor_split": [2, 3]}')
            after = configurations.configurations_of(["CPU0,CPU1"], ["tensor"], [text])[0]
            self.assertNotEqual(before, after)
            self.assertEqual(before.name, after.name)

    def test_what_makes_no_sense(self):
        for lists, modes, shares in (
            (["CPU0,"], ["tensor"], []),
            (["CPU0,CPU0"], ["tensor"], []),
            (["CPU0"], ["row"], []),
            (["CPU0+CPU1"], ["tensor"], []),
            (["CPU0"], ["tensor"], ["1,2"]),
        ):
            with self.subTest(lists=lists), self.assertRaises(ConfigurationError):
                self.of(lists, modes, shares)
        with self.assertRaises(ConfigurationError):
            configurations.tests_of([0], [0], [0])

    def test_each_round_begins_with_the_next_one(self):
        found = [Configuration((("a",),)), Configuration((("b",),)), Configuration((("c",),))]
        order = ["".join(one.name for one in configurations.order_of_round(found, number)) for number in range(4)]
        self.assertEqual(order, ["abc", "bca", "cab", "abc"])

    def test_names_of_tests(self):
        found = configurations.tests_of([512, 0], [128], [0, 1024])
        self.assertEqual([test.name for test in found], ["pp512", "tg128", "pp512 @ d1024", "tg128 @ d1024"])
        self.assertEqual(Test(0, 128, 1024).context, 1152)


HWLOC = """<?xml version="1.0"?><!DOCTYPE topology SYSTEM "hwloc2.dtd"><topology version="2.0">
<object type="Machine"><info name="hwlocVersion" value="2.9.0"/><info name="HostName" value="secret"/>
{packages}</object></topology>"""
PACKAGE = """<object type="Package" cpuset="{set}"><info name="CPUModel" value="Some CPU "/>
<object type="NUMANode" os_index="{i}" cpuset="{set}" local_memory="8589934592"/>
<object type="L3Cache" cache_size="1048576" cpuset="{set}"><object type="Core" cpuset="{set}">
<object type="PU" cpuset="{set}"/><object type="PU" cpuset="{set}"/></object></object></object>"""


class TopologyTest(unittest.TestCase):
    def test_hwloc(self):
        packages = "".join(PACKAGE.format(i=i, set=f"0x{3 << 2 * i:08x},0x00000000") for i in range(2))
        host = topology.from_hwloc(HWLOC.format(packages=packages))
        host.usable = 1
        told = dict(topology.lines(host))
        self.assertEqual(told["CPU"], "Some CPU")
        self.assertEqual(told["cores"], "2 sockets, 2 cores, 4 hardware threads, 1 of them usable here")
        self.assertEqual(told["NUMA"], "node 0: 1 core, 8 GiB; node 1: 1 core, 8 GiB")
        self.assertEqual((told["caches"], told["memory"]), ("L3 2 x 1 MiB", "16 GiB"))
        self.assertNotIn("secret", str(told))
        for text in ("", "<a/>", HWLOC.format(packages="")):
            with self.assertRaises(ValueError):
                topology.from_hwloc(text)

    def test_sysfs(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            files = {
                "proc/cpuinfo": "processor : 0\nmodel name\t: Other CPU\n",
                "proc/meminfo": "MemTotal: 1048576 kB\n",
            }
            for cpu in range(4):
                place = f"sys/devices/system/cpu/cpu{cpu}"
                files |= {
                    f"{place}/topology/physical_package_id": "0",
                    f"{place}/topology/core_id": str(cpu // 2),
                    f"{place}/cache/index0/type": "Instruction",
                    f"{place}/cache/index0/level": "1",
                    f"{place}/cache/index2/type": "Unified",
                    f"{place}/cache/index2/level": "2",
                    f"{place}/cache/index2/size": "512K",
                    f"{place}/cache/index2/shared_cpu_list": f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}",
                }
            files |= {
                "sys/devices/system/node/node0/cpulist": "0-3\n",
                "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:   1048576 kB\n",
            }
            for name, content in files.items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(content)
            told = dict(topology.lines(topology.from_sysfs(root)))
            self.assertEqual(told["cores"], "1 socket, 2 cores, 4 hardware threads")
            self.assertEqual((told["caches"], told["NUMA"]), ("L2 2 x 512 KiB", "node 0: 2 cores, 1 GiB"))
            self.assertEqual((told["CPU"], told["memory"]), ("Other CPU", "1 GiB"))
            bare = topology.from_sysfs(root / "nothing")
            self.assertEqual(dict(topology.lines(bare))["GPUs"], "none")

    def test_gpus_as_nvidia_smi_says(self):
        listing = "0, NVIDIA H200, 143771 MiB, 580.1, 5, 16\n1, NVIDIA H200, 143771 MiB, 580.1, [N/A], 16\nbroken\n"
        matrix = "\x1b[4m\tGPU0\tGPU1\tCPU Affinity\x1b[0m\nGPU0\t X \tNV18\t0-15\nGPU1\tNV18\t X \t0-15\n"
        gpus, driver, links = topology.gpus_of_smi(listing, matrix)
        self.assertEqual([gpu["link"] for gpu in gpus], ["PCIe 5.0 x16", ""])
        self.assertEqual((gpus[0]["memory"], driver, links), (143771 << 20, "580.1", ["GPU0 - GPU1: NVLink x18"]))

    def test_gpus_as_nvml_says(self):
        class NVMLError(Exception):
            pass

        def remote(handle, link):
            if link > 3:
                raise NVMLError
            return types.SimpleNamespace(busId=b"bus1" if link < 3 else b"bus9")

        nvml = types.SimpleNamespace(
            NVMLError=NVMLError,
            nvmlDeviceGetCount=lambda: 2,
            nvmlDeviceGetHandleByIndex=lambda index: index,
            nvmlDeviceGetName=lambda handle: b"GPU of tests",
            nvmlSystemGetDriverVersion=lambda: "1.2",
            nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(total=1 << 30),
            nvmlDeviceGetMaxPcieLinkGeneration=lambda handle: 4,
            nvmlDeviceGetMaxPcieLinkWidth=lambda handle: 8,
            nvmlDeviceGetPciInfo=lambda handle: types.SimpleNamespace(busId=f"bus{handle}".encode()),
            nvmlDeviceGetNvLinkState=lambda handle, link: link != 1,
            nvmlDeviceGetNvLinkRemotePciInfo=remote,
        )
        gpus, driver, links = topology.gpus_of_nvml(nvml)
        self.assertEqual(gpus[1], {"name": "GPU of tests", "memory": 1 << 30, "link": "PCIe 4.0 x8"})
        self.assertEqual((driver, links), ("1.2", ["GPU0 - GPU1: NVLink x2"]))


if __name__ == "__main__":
    unittest.main()
