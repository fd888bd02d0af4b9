"""Tests scripts/bench_scaling.py and its modules with a program that computes nothing (bench_scaling_shoal.py). If
SHOAL_PROGRAM is set, some tests use `shoal`."""

import contextlib
import csv
import importlib.util
import io
import itertools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import types
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs start with SIGINT ignored
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))

SCRIPT = ROOT / "scripts/bench_scaling.py"
FAKE = ROOT / "tests/project/bench_scaling_shoal.py"
TINY = ROOT / "data/models/tiny-kjv-5m-q8_0.gguf"
PACKAGES = ("matplotlib", "rich")
if MISSING := [name for name in PACKAGES if importlib.util.find_spec(name) is None]:
    print(f"skipped: no {' and '.join(MISSING)} (scripts/install_python)")
    sys.exit(77)

import bench_scaling  # noqa: E402
import hours  # noqa: E402
from measuring import interference  # noqa: E402
from scaling import charts, configurations, results  # noqa: E402
from scaling.configurations import Configuration, ConfigurationError, Test  # noqa: E402


def write_machine(path, environment):
    """Writes a machine file with `shoal probe`. Measures one weight type and copies its measurements to all other
    types, because on a busy machine the measurement of all types takes minutes."""
    probe = [os.environ["SHOAL_PROGRAM"], "probe", "--quick", "--devices", "CPU0,CPU1", "--dtypes"]
    options = {"env": environment | {"SHOAL_MACHINE_FILE": str(path)}, "capture_output": True, "text": True}
    subprocess.run([*probe, "q8_0"], check=True, **options)
    refused = subprocess.run([*probe, "none"], check=False, **options).stderr
    dtypes = re.search(r"--dtypes must be one or more of (.*); got 'none'", refused)[1].split(", ")
    kept = json.loads(path.read_text())
    for device in kept["machines"][0]["machine"]["devices"]:
        device["products"] = dict.fromkeys(dtypes, device["products"]["q8_0"])
    path.write_text(json.dumps(kept))


class ScriptTest(unittest.TestCase):
    def setUp(self):
        kept = tempfile.TemporaryDirectory()
        self.addCleanup(kept.cleanup)
        self.folder = pathlib.Path(kept.name)
        self.fake = self.folder / "shoal"  # -IS skips the default imports, which saves time in hundreds of calls
        self.fake.write_text(f"#!{sys.executable} -IS\n{FAKE.read_text()}")
        self.fake.chmod(0o755)
        self.calls = self.folder / "calls"
        self.model = self.folder / "model.gguf"
        self.model.write_bytes(bytes(1000))
        self.output = self.folder / "out"

    def command(self, *arguments):
        words = ["--shoal", self.fake, "-m", self.model, "--folder", self.output, *arguments]
        return [sys.executable, str(SCRIPT), *map(str, words)]

    def environment(self, **more):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SHOAL_", "FAKE_"))}
        return {**kept, "FAKE_CALLS": str(self.calls), **more}

    def run_script(self, *arguments, status=0, with_charts=False, others=0.0, **environment):
        """Runs the script in this process, because imports take longer than the runs. Between two queries, other
        programs seem to use `others` seconds of CPU time."""
        out, err = io.StringIO(), io.StringIO()
        draw = bench_scaling.draw if with_charts else lambda *_: []
        with (
            mock.patch.object(bench_scaling, "draw", draw),
            mock.patch.object(interference, "_others_seconds", itertools.count(0, others).__next__),
            mock.patch.object(sys, "argv", self.command(*arguments)[1:]),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            mock.patch.dict(os.environ, self.environment(**environment), clear=True),
        ):
            try:
                found = bench_scaling.main()
            except SystemExit as ended:
                found = ended.code
        self.assertEqual(found, status, err.getvalue())
        self.assertNotIn("\x1b", out.getvalue() + err.getvalue())
        return types.SimpleNamespace(stdout=out.getvalue(), stderr=err.getvalue())

    def records(self):
        return [json.loads(line) for line in (self.output / "journal.jsonl").read_text().splitlines()[1:]]

    def benches(self):
        calls = [json.loads(line) for line in self.calls.read_text().splitlines()]
        return [call[2:] for call in calls if call[0] == "bench"]

    def rows(self):
        with open(self.output / "scaling.csv", newline="") as file:
            return {(row["test"], row["configuration"]): row for row in csv.DictReader(file)}


class FakeTest(ScriptTest):
    def test_results_are_correct(self):
        self.run_script("--counts", "1,2,4", "-r", "3", "--whole-machine")
        rows = self.rows()
        self.assertEqual(len(rows), 8)
        two = rows["tg128", "CPU0,CPU1"]
        expected = {"n_devices": 2, "rounds": 3, "ts": 180 / 1.1, "speedup": 1.8, "speedup_least": 1.8, "speedup_most": 1.8,
                    "ideal": 2, "efficiency": 0.9, "predicted_ts": 198, "predicted_speedup": 1.98,
                    "prediction_error": 198 / (180 / 1.1) - 1,
                    "device_bytes": (8 << 20) + (512 << 10) + (1 << 19) + 4096}  # memory of the largest context
        for name, value in expected.items():
            self.assertAlmostEqual(float(two[name]), value, delta=1e-4 * value, msg=name)
        whole = rows["tg128", "all cores as one device"]
        self.assertEqual((whole["speedup"], whole["ideal"], whole["predicted_ts"]), ("1", "", ""))

    def test_reports_busy_programs(self):
        self.assertNotIn("busy", self.run_script("-r", "2").stdout)
        busy = self.run_script("-r", "3", "-n", "64", others=10.0).stdout
        self.assertRegex(busy, r"other programs kept up to \d+\.\d of \d+ cores busy during 6 of 6 runs: measure again")

    def test_ideal_speedup_needs_runs_of_each_uneven_device(self):
        uneven = {"SHOAL_CPU_THREADS": "2,1", "SHOAL_CPU_SLOWDOWN": "1,3"}
        self.run_script("-r", "2", **uneven)
        self.assertEqual(self.rows()["tg128", "CPU0,CPU1"]["ideal"], "", "CPU1 alone is unknown")
        self.run_script("--devices", "CPU0;CPU1;CPU0,CPU1", "-r", "2", **uneven)
        ideal = (2 + 1 / 3) / 2
        rows = self.rows()
        self.assertAlmostEqual(float(rows["tg128", "CPU0,CPU1"]["ideal"]), ideal, places=4)
        self.assertAlmostEqual(float(rows["tg128", "CPU0,CPU1"]["efficiency"]), 0.9 / ideal, places=4)
        self.assertAlmostEqual(float(rows["tg128", "CPU1"]["speedup"]), 1 / 6, places=4)
        text = (self.output / "README.md").read_text()
        self.assertIn("\n    SHOAL_CPU_SLOWDOWN=1,3 SHOAL_CPU_THREADS=2,1 scripts/bench_scaling.py --shoal", text)

    def test_compares_numbers_of_processes(self):
        launched = ("--processes", "2,1,2", "--mpirun", str(self.fake), "-r", "2")
        self.run_script(*launched, SHOAL_CPU_THREADS="2")
        self.assertEqual(self.benches()[:3], [["CPU0", "1", "1"], ["CPU0", "1", "2"], ["CPU0", "1", "2"]])
        rows = self.rows()
        names = ["CPU0", "CPU0 in 2 processes"]
        self.assertEqual([name for test, name in rows if test == "pp512"], names)
        two = rows["tg128", names[1]]
        self.assertEqual(two["n_devices"], "2")
        for name, value in (("speedup", 0.9), ("ideal", 2), ("efficiency", 0.45)):
            self.assertAlmostEqual(float(two[name]), value, places=4, msg=name)  # one device has speed 2, two have 1.8
        self.assertEqual(self.calls.read_text().count("probe"), 2)

    def test_reports_failed_process(self):
        launched = ("--processes", "1", "--counts", "1,2", "--mpirun", str(self.fake), "-r", "1")
        self.run_script(*launched, FAKE_FAIL="bench CPU0,CPU1")
        self.assertEqual(self.rows()["tg128", "CPU0,CPU1"]["failure"], "CPU1 has not enough memory; use fewer layers")

    def test_order_of_configurations_changes_in_each_round(self):
        self.run_script("--counts", "1,2", "-r", "3", "--whole-machine")
        lists, whole = ["CPU0", "2"], ["CPU0", "1"]
        self.assertEqual(
            self.benches()[:9],
            [lists, ["CPU0,CPU1", "2"], whole, ["CPU0,CPU1", "2"], whole, lists, whole, lists, ["CPU0,CPU1", "2"]],
        )

    def test_writes_report(self):
        flags = ("--counts", "1,2,4", "-r", "2", "-d", "0,256")
        done = self.run_script(*flags, with_charts=True)
        text = (self.output / "README.md").read_text()
        links = re.findall(r"\]\(([^)]+)\)", text)
        self.assertEqual(links, ["speedup-model.svg", "memory-model.svg"])
        for words in ("SHOAL_CPU_DEVICES=4", "--counts 1,2,4", "| tg128 @ d256 | CPU0,CPU1 |", "predicted t/s"):
            self.assertIn(words, text)
        self.assertEqual((done.stderr, done.stdout.count("tg128 @ d256")), ("", 3))
        images = {path: path.read_bytes() for path in self.output.glob("*.svg")}
        self.assertIn(b"<text", images[self.output / "speedup-model.svg"])
        done = self.run_script(*flags, with_charts=True)
        self.assertEqual(done.stderr, "bench_scaling: 19 of 19 runs are already finished\n")
        self.assertEqual(images, {path: path.read_bytes() for path in self.output.glob("*.svg")})
        self.assertEqual(len(self.benches()), 2 * 3, "nothing is run twice")

    def test_measures_numbers_of_requests(self):
        flags = ("--counts", "1,2", "-r", "2", "-p", "64", "-n", "8", "--parallel", "1,8,64")
        done = self.run_script(*flags, with_charts=True)
        rows = self.rows()
        tests = [f"np{count} pp64 tg8" for count in (1, 8, 64)]
        self.assertEqual(list(rows), [(test, name) for test in tests for name in ("CPU0", "CPU0,CPU1")])
        two = rows["np8 pp64 tg8", "CPU0,CPU1"]
        self.assertEqual((two["n_parallel"], two["rounds"]), ("8", "2"))
        rate = 72 / (64 / 1000 + 8 / (8 * 100)) * 1.8 * 1.1  # of a prompt and an answer
        self.assertAlmostEqual(float(two["predicted_ts"]), rate, delta=0.01 * rate)
        self.assertEqual(int(two["device_bytes"]), (8 << 20) + (64 * 96 << 10) + (1 << 19) + 4096, "for 64 requests")
        self.assertAlmostEqual(float(two["ts"]), 8 * 50 * 1.8 * (1 + 1 / 1.1) / 2, delta=0.01)
        self.assertIn("speed-up", done.stdout)
        self.assertEqual(len(self.benches()), 2 * 2, "one process measures all numbers of requests")
        links = re.findall(r"\]\(([^)]+)\)", (self.output / "README.md").read_text())
        self.assertEqual(links, ["speedup-model.svg", "throughput-model.svg", "memory-model.svg"])
        self.assertIn("requests at the same time", (self.output / "throughput-model.svg").read_text())

    @property
    def hangs(self):
        """The file that a call creates if FAKE_HANG names the call."""
        return pathlib.Path(f"{self.calls}.hangs")

    def wait_until_it_hangs(self, child):
        while not self.hangs.exists():
            self.assertIsNone(child.poll(), "it has ended")
            time.sleep(0.02)

    def test_kill_loses_no_finished_run(self):
        child = subprocess.Popen(self.command("-r", "2"), env=self.environment(FAKE_HANG="plan CPU0,CPU1"),
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            self.wait_until_it_hangs(child)
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
        before = self.records()
        self.assertEqual([record["kind"] for record in before], ["probe", *["bench"] * 4, "plan", "plan"])
        with open(self.output / "journal.jsonl", "a") as file:
            file.write('{"kind": "bench", "ke')  # truncated line
        done = self.run_script("-r", "2")
        self.assertIn("7 of 9 runs are already finished", done.stderr)
        self.assertEqual(self.records()[:7], before)
        self.assertEqual((len(self.records()), len(self.benches())), (9, 4))
        self.assertAlmostEqual(float(self.rows()["tg128", "CPU0,CPU1"]["speedup"]), 1.8, places=4)

    def test_signals_keep_finished_runs(self):
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with self.subTest(number):
                self.output, self.calls = self.folder / f"out{status}", self.folder / f"calls{status}"
                environment = self.environment(FAKE_HANG="plan CPU0")
                child = subprocess.Popen(self.command("-r", "1"), env=environment, stdout=subprocess.PIPE,
                                         stderr=subprocess.PIPE, text=True)
                self.wait_until_it_hangs(child)
                child.send_signal(number)
                out, err = child.communicate()
                self.assertEqual(child.returncode, status, err)
                self.assertIn("the same command resumes", err)
                self.assertIn("1.80", out)
                self.assertIn("4 runs are missing", (self.output / "README.md").read_text())

    def test_failed_configuration_is_recorded(self):
        done = self.run_script("--counts", "1,2,4", "-r", "3", FAKE_FAIL="bench CPU0,CPU1")
        self.assertIn("CPU1 has not enough memory; use fewer layers", done.stderr)
        self.assertEqual(self.benches().count(["CPU0,CPU1", "4"]), 0)
        rows = self.rows()
        self.assertEqual(rows["tg128", "CPU0,CPU1"]["rounds"], "0")
        self.assertIn("not enough memory", rows["tg128", "CPU0,CPU1"]["failure"])
        self.assertAlmostEqual(float(rows["tg128", "CPU0,CPU1,CPU2,CPU3"]["speedup"]), 2.6, places=4)
        text = (self.output / "README.md").read_text()
        self.assertIn("- model, CPU0,CPU1 failed: CPU1 has not enough memory", text)
        self.assertNotIn("are missing", text)
        failures = [record for record in self.records() if record.get("error")]
        self.assertEqual([record["kind"] for record in failures], ["bench"], "tried once, recorded, skipped")
        self.run_script("--counts", "1,2,4", "-r", "3")
        self.assertAlmostEqual(float(self.rows()["tg128", "CPU0,CPU1"]["speedup"]), 1.8, places=4)

    def test_failed_plans_and_probes_are_reported(self):
        for what, told in (("plan CPU0,CPU1", "model, CPU0,CPU1 failed: "), ("probe CPU0,CPU1", "shoal probe failed: ")):
            with self.subTest(what):
                self.output, self.calls = self.folder / what[:5], self.folder / f"calls {what[:5]}"
                done = self.run_script("-r", "1", with_charts=True, FAKE_FAIL=what)
                self.assertIn(told, done.stdout)
                self.assertAlmostEqual(float(self.rows()["pp512", "CPU0,CPU1"]["speedup"]), 1.8, places=4)

    def test_combines_device_lists_modes_and_shares(self):
        self.run_script("--devices", "CPU0;CPU1;CPU0,CPU1", "-ts", "1,1;3,1", "-sm", "tensor,layer", "-r", "1")
        self.assertEqual(
            [name for test, name in self.rows() if test == "pp512"],
            ["CPU0", "CPU1", "CPU0,CPU1 1,1", "CPU0,CPU1 3,1", "CPU0,CPU1 layer 1,1", "CPU0,CPU1 layer 3,1"],
        )

    def test_rejects_bad_flags(self):
        cases = [
            (["-p", "0", "-n", "0"], "nothing to measure"),
            (["--devices", "CPU0,CPU0"], "empty or listed twice"),
            (["-ts", "1,2,3"], "no list of devices fits"),
            (["-sm", "row"], "known modes are"),
            (["-m", self.model], "twice"),
            (["-r", "0"], "-r: 0 is not above 0"),
            (["--counts", "0"], "--counts: 0: 0 is less than 1"),
            (["--counts", "a"], "expected numbers separated by commas"),
            (["--timeout", "nan"], "--timeout"),
            (["--bench-arguments", "'x"], "--bench-arguments: 'x: a quotation is not closed"),
            (["--nonsense"], "unrecognized arguments: --nonsense"),
            (["--mpirun", "mpirun"], "--mpirun needs the numbers of processes; give them with --processes"),
            (["--processes", "1,2", "--whole-machine"], "--whole-machine measures one process"),
            (["--parallel", "0"], "--parallel"),
            (["--parallel", "4", "-n", "0"], "each request has a prompt and an answer"),
            (["--processes", "1,2", "--devices", "@0,@1"], "with --processes, name the devices of one process"),
        ]
        outside = [(["-m", self.folder / "none"], "No such file"), (["--shoal", "/nowhere"], "no program")]
        for arguments, message, status in [*((*one, 2) for one in cases), *((*one, 1) for one in outside)]:
            with self.subTest(arguments):
                done = self.run_script(*arguments, status=status)
                self.assertIn(message, done.stderr)
                self.assertTrue(done.stderr.startswith("bench_scaling.py: error: "), done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                self.assertEqual((done.stdout, self.output.exists()), ("", False))

    def test_time_limit_stops_only_one_configuration(self):
        with hours.hours_pass_while(self.hangs):
            done = self.run_script("-r", "1", "--timeout", "3600", FAKE_HANG="bench CPU0,CPU1")
        self.assertIn("did not end within 3600 s", done.stderr)
        rows = self.rows()
        self.assertEqual(rows["pp512", "CPU0"]["rounds"], "1")
        self.assertEqual(rows["pp512", "CPU0,CPU1"]["failure"], "shoal did not end within 3600 s")


class ResultsTest(unittest.TestCase):
    def test_ratios_use_rates_of_the_same_round(self):
        found = results.Findings(rates={("m", "a", "t"): {0: 100.0, 1: 80.0, 2: 90.0, 3: 50.0},
                                        ("m", "b", "t"): {0: 180.0, 1: 150.0, 2: 160.0}})
        row = results.Row("m", "t", "b", 2)
        base = found.rates["m", "a", "t"]
        ideal = {number: 2 * rate for number, rate in base.items()}
        results.fill(row, found, found.rates["m", "b", "t"], base, ideal, "a")
        for value, expected in ((row.speedup, 1.8), (row.speedup_least, 160 / 90), (row.speedup_most, 1.875),
                                (row.efficiency, 0.9), (row.ideal, 2), (row.ts, 160)):
            self.assertAlmostEqual(value, expected)

    def test_ideal_rate_is_sum_of_single_devices(self):
        alone = {"CPU0": {0: 10.0, 1: 20.0}, "CPU1": {0: 30.0, 1: 50.0, 2: 60.0}}
        described = {"CPU0": "a", "CPU1": "b", "CPU2": "a", "GPU0": "G, part 1 of 2", "GPU1": "G, part 2 of 2"}

        def ideal(devices, rates=alone):
            return results.ideal_of(Configuration(devices), rates, described)

        self.assertEqual(ideal("CPU0,CPU1"), {0: 40.0, 1: 70.0})
        self.assertEqual(ideal("CPU1,CPU2"), {0: 40.0, 1: 70.0}, "CPU2 is like CPU0")
        self.assertEqual(ideal("CPU0,CPU7"), {}, "CPU7 alone is unknown")
        self.assertEqual(ideal("GPU0,GPU1", {"GPU0": {0: 5.0}}), {0: 10.0})


class ChartTest(unittest.TestCase):
    def test_values_next_to_panel_do_not_overlap(self):
        rows = [results.Row("m", "tg8", f"CPU{i}", 1, 3, 9, 1.0 + i, 0.9 + i, 1.1 + i, 2, 0.5, 9, 1.5) for i in range(3)]
        devices = [{"device": "CPU0", "total": 60, "weights": 40, "compute": 10, "communication": 10}]
        for figure, values in ((charts.speedup(rows), ["1.00", "2.00", "3.00"]),
                               (charts.memory({"CPU0": devices}), ["5.72e-05 MiB"])):
            figure.draw_without_rendering()
            axes = figure.axes[0]
            self.assertEqual([text.get_text() for text in axes.texts], values)
            boxes = [text.get_window_extent() for text in axes.texts]
            for place, box in enumerate(boxes):
                self.assertFalse(axes.get_window_extent().overlaps(box))
                self.assertFalse(any(box.overlaps(other) for other in boxes[:place]))
                self.assertLessEqual(box.x1, figure.bbox.x1)

    def test_draws_no_chart_without_results(self):
        self.assertIsNone(charts.speedup([results.Row("m", "tg8", "CPU0", 1)]))
        self.assertIsNone(charts.throughput([results.Row("m", "np8 pp8 tg8", "CPU0", 1, ts=5.0, n_parallel=8)]), "a single point")
        self.assertIsNone(charts.memory({"CPU0": []}))


class ConfigurationTest(unittest.TestCase):
    def of(self, lists, modes=("tensor",), shares=(), processes=(0,)):
        return configurations.configurations_of(list(lists), list(modes), list(shares), list(processes))

    def names(self, *arguments):
        return [one.name for one in self.of(*arguments)]

    def test_name_and_flags_contain_mode_and_shares(self):
        self.assertEqual(
            self.names(["CPU0", "CPU0,CPU1"], ["tensor", "layer"], ["3,1"]),
            ["CPU0", "CPU0,CPU1 3,1", "CPU0,CPU1 layer 3,1"],
        )
        grouped = self.of(["CPU0+CPU1,CPU2"], ["layer"], ["2,1"])[0]
        self.assertEqual(grouped.name, "CPU0+CPU1,CPU2 layer 2,1")
        self.assertEqual(
            grouped.flags(), ["--devices", "CPU0+CPU1,CPU2", "--split-mode", "layer", "--tensor-split", "2,1"]
        )
        self.assertEqual(configurations.cpu_devices([grouped]), 3)

    def test_name_contains_number_of_processes(self):
        tensor, layers = self.of(["CPU0,CPU1"], ["tensor", "layer"], [], [2])
        self.assertEqual((tensor.name, tensor.count), ("CPU0,CPU1 in 2 processes", 4))
        self.assertEqual(tensor.flags(), ["--devices", "CPU0,CPU1"])
        self.assertEqual(layers.flags(), ["--devices", "CPU0,CPU1", "--split-mode", "layer"])
        self.assertEqual(self.names(["CPU0+CPU1"], ["layer"], ["3,1"], [1, 2]),
                         ["CPU0+CPU1 layer", "CPU0+CPU1 in 2 processes layer 3,1"])
        one, two = self.of(["CPU0"], ["layer"], [], [1, 2])
        self.assertEqual((one.name, one.flags(), two.name), ("CPU0", ["--devices", "CPU0"], "CPU0 in 2 processes layer"))

    def test_accepts_auto_and_profiles(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "a.json"
            text = f"@{path}"
            path.write_text('{"version": 1, "devices": ["CPU0", "CPU1"], "tensor_split": [1, 3]}')
            found = self.of(["CPU0", "CPU0,CPU1", "CPU1,CPU0"], ["tensor"], ["auto", text])
            expected = ["CPU0", "CPU0,CPU1 auto", f"CPU0,CPU1 {text}", "CPU1,CPU0 auto"]
            self.assertEqual([one.name for one in found], expected)
            self.assertEqual(found[2].flags(), ["--devices", "CPU0,CPU1", "--tensor-split", "1,3"])
            for lists, modes, shares, message in (
                (["CPU0"], ["tensor"], "auto", "no list of devices fits"),
                (["CPU1,CPU0"], ["tensor"], text, "no list of devices fits"),
                (["CPU0,CPU1"], ["layer"], text, "no list of devices fits"),
                (["CPU0,CPU1"], ["tensor"], f"@{folder}/none", "No such file"),
                (["CPU0,CPU1"], ["tensor"], f"@{TINY}", "is not a profile"),
            ):
                with self.subTest(message), self.assertRaisesRegex(ConfigurationError, message):
                    self.of(lists, modes, [shares])
            path.write_text('{"version": 1, "devices": ["CPU0", "CPU1"], "tensor_split": [2, 3]}')
            self.assertNotEqual(found[2], self.of(["CPU0,CPU1"], ["tensor"], [text])[0], "another profile")

    def test_rejects_invalid_combinations(self):
        for lists, modes in ((["CPU0,"], ["tensor"]), (["CPU0,CPU0"], ["tensor"]), (["CPU0"], ["row"]),
                             (["CPU0+CPU1"], ["tensor"])):
            with self.subTest(lists=lists), self.assertRaises(ConfigurationError):
                self.of(lists, modes)

    def test_tests_have_names_of_shoal_bench(self):
        found = configurations.tests_of([512, 0], [128], [0, 1024])
        self.assertEqual([test.name for test in found], ["pp512", "tg128", "pp512 @ d1024", "tg128 @ d1024"])
        self.assertEqual(Test(0, 128, 1024).context, 1152)
        found = configurations.tests_of([256], [64, 8], [0, 32], [1, 8])
        names = [f"np{count} pp256 tg{answer}" for answer in (64, 8) for count in (1, 8)]
        self.assertEqual([test.name for test in found], [*names, *(f"{name} @ d32" for name in names)])


@unittest.skipUnless(os.environ.get("SHOAL_PROGRAM"), "SHOAL_PROGRAM is not set")
class ProgramTest(ScriptTest):
    @classmethod
    def setUpClass(cls):
        kept = tempfile.TemporaryDirectory()
        cls.addClassCleanup(kept.cleanup)
        cls.machine = pathlib.Path(kept.name) / "machine.json"
        others = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        write_machine(cls.machine, others | {"SHOAL_CPU_DEVICES": "2"})

    def test_runs_real_program(self):
        arguments = ["-p", "16", "-n", "4", "-r", "1"]
        command = [sys.executable, str(SCRIPT), "-m", str(TINY), "--folder", str(self.output), *arguments]
        command += ["--shoal", os.environ["SHOAL_PROGRAM"]]
        done = subprocess.run(
            command,
            env=self.environment(SHOAL_MACHINE_FILE=str(self.machine)),
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = self.rows()
        self.assertEqual(set(rows), {(test, name) for test in ("pp16", "tg4") for name in ("CPU0", "CPU0,CPU1")})
        for key, row in rows.items():
            self.assertGreater(float(row["ts"]), 0, key)
            self.assertEqual(row["failure"], "", key)
        bytes_of = {name: int(row["device_bytes"]) for (test, name), row in rows.items() if test == "tg4"}
        self.assertLess(bytes_of["CPU0,CPU1"], bytes_of["CPU0"])
        self.assertFalse([record for record in self.records() if record.get("error")])

    def test_real_program_accepts_auto_and_profiles(self):
        profile = self.folder / "a.json"
        profile.write_text('{"version": 1, "devices": ["CPU0", "CPU1"], "tensor_split": [1, 3]}')
        arguments = ["-p", "8", "-n", "0", "-r", "1"]
        command = self.command("-ts", f"auto;@{profile};1,3", *arguments, "--shoal", os.environ["SHOAL_PROGRAM"])
        command[command.index(str(self.model))] = str(TINY)
        environment = self.environment(SHOAL_MACHINE_FILE=str(self.machine))
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        names = {"CPU0", *(f"CPU0,CPU1 {one}" for one in ("auto", f"@{profile}", "1,3"))}
        self.assertEqual({name for _, name in self.rows()}, names)
        self.assertFalse([record for record in self.records() if record.get("error")])
        plans = [one for one in self.records() if one["kind"] == "plan"]
        memory = {one["configuration"]: [device["weights"] for device in one["memory"]] for one in plans}
        self.assertEqual(memory[f"CPU0,CPU1 @{profile}"], memory["CPU0,CPU1 1,3"])  # the profile has the shares 1,3


if __name__ == "__main__":
    unittest.main()
