"""scripts/bench_scaling.py: its runs of a program that computes nothing (bench_scaling_shoal.py), and of `shoal` itself
where SHOAL_PROGRAM names it. Its parts: bench_scaling_parts_test.py."""

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
signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background inherit that it is ignored
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
from scaling import report  # noqa: E402


def write_machine(path, environment):
    """What `shoal probe` keeps, measured with one type of weights, whose figures stand for all others: to measure each
    takes minutes where other programs run."""
    probe = [os.environ["SHOAL_PROGRAM"], "probe", "--quick", "--devices", "CPU0,CPU1", "--dtypes"]
    options = {"env": environment | {"SHOAL_MACHINE_FILE": str(path)}, "capture_output": True, "text": True}
    subprocess.run([*probe, "q8_0"], check=True, **options)
    refused = subprocess.run([*probe, "none"], check=False, **options).stderr
    dtypes = re.search(r"--dtypes must be of (.*); got 'none'", refused)[1].split(", ")
    kept = json.loads(path.read_text())
    for device in kept["machines"][0]["machine"]["devices"]:
        device["products"] = dict.fromkeys(dtypes, device["products"]["q8_0"])
    path.write_text(json.dumps(kept))


class ScriptTest(unittest.TestCase):
    def setUp(self):
        kept = tempfile.TemporaryDirectory()
        self.addCleanup(kept.cleanup)
        self.folder = pathlib.Path(kept.name)
        self.fake = self.folder / "shoal"  # without what the interpreter loads at its start: there are hundreds of calls
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

    def run_script(self, *arguments, status=0, charts=False, others=0.0, **environment):
        """In this process: what it imports takes longer than its runs, and so do charts. `others`: CPU seconds that other
        programs have used more each time that they are asked for."""
        out, err = io.StringIO(), io.StringIO()
        draw = report.draw if charts else lambda *_: {"speedup": [], "time": [], "memory": []}
        with (
            mock.patch.object(report, "draw", draw),
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

    def probes(self):
        calls = [json.loads(line) for line in self.calls.read_text().splitlines()]
        return [call[1] for call in calls if call[0] == "probe"]

    def rows(self):
        with open(self.output / "scaling.csv", newline="") as file:
            return {(row["test"], row["configuration"]): row for row in csv.DictReader(file)}


class FakeTest(ScriptTest):
    def test_figures(self):
        done = self.run_script("--counts", "1,2,4", "-r", "3", "--whole-machine", "--output", "json")
        found = json.loads(done.stdout)
        self.assertEqual(found, json.loads((self.output / "scaling.json").read_text()))
        rows = self.rows()
        self.assertEqual(len(rows), 8)
        two = rows["tg128", "CPU0,CPU1"]
        expected = {
            "n_devices": 2,
            "rounds": 3,
            "speedup_median": 1.8,
            "speedup_least": 1.8,
            "speedup_most": 1.8,
            "ideal_speedup": 2,
            "efficiency_median": 0.9,
            "machine_bound": 1.5,
            "predicted_speedup": 1.98,
            "predicted_ts": 198,
            "prediction_error": 198 / (180 / 1.1) - 1,
            "collective_share": 30 / 170,
            "predicted_collective_share": 0.35,
        }
        for name, value in expected.items():
            self.assertAlmostEqual(float(two[name]), value, places=4, msg=name)
        self.assertAlmostEqual(float(rows["pp512", "CPU0,CPU1,CPU2,CPU3"]["machine_bound"]), 3)  # of cores
        times = {(row["test"], row["configuration"]): row["times"] for row in found["results"]}["tg128", "CPU0,CPU1"]
        self.assertEqual([time["device"] for time in times], ["CPU0", "CPU1"])
        for time_, waiting in zip(times, (0, 20 / 170)):
            self.assertAlmostEqual(time_["waiting"], waiting, places=3)
            self.assertAlmostEqual(time_["communication"], 20 / 170, places=3)
        self.assertAlmostEqual(found["mean_prediction_error"]["model"], (2 * 0.1 + 2 * 0.21 + 2 * 0.21) / 6, places=3)
        self.assertEqual(found["environment"], {"SHOAL_CPU_DEVICES": "4"})

    def test_says_what_makes_figures_doubtful(self):
        quiet = self.run_script("-r", "2").stdout
        self.assertNotIn("busy", quiet)
        self.assertNotIn("ideal cannot be", quiet)
        busy = self.run_script("-r", "3", "-n", "64", FAKE_GAIN="2.5", others=10.0).stdout
        self.assertRegex(busy, r"other programs kept up to \d+\.\d of \d+ cores busy during 6 of 6 runs: measure again")
        self.assertIn("model, tg64 on CPU0,CPU1: 225% of the ideal cannot be, unless caches add up: measure again", busy)
        found = json.loads((self.output / "scaling.json").read_text())
        self.assertEqual(len([one for one in found["remarks"] if "cores busy" in one or "of the ideal" in one]), 3)

    def test_uneven_devices(self):
        uneven = {"SHOAL_CPU_THREADS": "2,1", "SHOAL_CPU_SLOWDOWN": "1,3"}
        done = self.run_script("-r", "2", "--output", "json", **uneven)
        rows, found = self.rows(), json.loads(done.stdout)
        ideal = (2 + 1 / 3) / 2
        self.assertAlmostEqual(float(rows["tg128", "CPU0,CPU1"]["ideal_speedup"]), ideal, places=4)
        self.assertAlmostEqual(float(rows["tg128", "CPU0,CPU1"]["efficiency_median"]), 0.9 / ideal, places=4)
        self.assertAlmostEqual(float(rows["tg128", "CPU1"]["speedup_median"]), 1 / 6, places=4)
        self.assertEqual(found["environment"], {"SHOAL_CPU_DEVICES": "2", **uneven})
        self.assertEqual(found["threads"], {"CPU0": 2, "CPU1": 1})
        text = (self.output / "README.md").read_text()
        for words in (
            "CPU0 computes with 2 threads (`SHOAL_CPU_THREADS=2,1`) whether",
            "CPU1 has 1 thread and is slowed 3 times.",
            "the devices are not alike; CPU0 and CPU1 were each measured alone",
            "\n    SHOAL_CPU_SLOWDOWN=1,3 SHOAL_CPU_THREADS=2,1 scripts/bench_scaling.py --shoal",
            "Environment: `SHOAL_CPU_DEVICES=2`, `SHOAL_CPU_SLOWDOWN=1,3`, `SHOAL_CPU_THREADS=2,1`",
        ):
            self.assertIn(words, text)
        self.assertNotIn("take turns", text)
        self.run_script("-r", "1", SHOAL_CPU_THREADS="1,3")
        text = (self.output / "README.md").read_text()
        self.assertIn("CPU0 computes with 1 thread (`SHOAL_CPU_THREADS=1,3`)", text)
        self.assertIn("4 threads for 3 cores", text)

    def test_uneven_devices_without_one_alone(self):
        self.run_script("--counts", "2,4", "-r", "1", SHOAL_CPU_SLOWDOWN="1,2,4,4")
        rows = self.rows()
        self.assertEqual(rows["pp512", "CPU0"]["baseline"], "CPU0,CPU1")
        self.assertNotIn(("pp512", "CPU3"), rows, "it is like CPU2")
        four = float(rows["pp512", "CPU0,CPU1,CPU2,CPU3"]["ideal_speedup"])
        self.assertAlmostEqual(four, (1 + 1 / 2 + 2 / 4) / (1 + 1 / 2), places=4)

    def test_layers_have_no_collectives(self):
        self.run_script("-sm", "tensor,layer", "-r", "1")
        rows = self.rows()
        for name, measured, predicted in (("CPU0,CPU1", 30 / 170, 0.35), ("CPU0,CPU1 layer", 0, 0)):
            self.assertAlmostEqual(float(rows["tg128", name]["collective_share"]), measured, places=4)
            self.assertAlmostEqual(float(rows["tg128", name]["predicted_collective_share"]), predicted, places=4)

    def test_processes(self):
        launched = ("--processes", "2,1,2", "--mpirun", str(self.fake), "-r", "2")
        done = self.run_script(*launched, "--output", "json", SHOAL_CPU_THREADS="2")
        self.assertEqual(self.benches()[:3], [["CPU0", "1", "1"], ["CPU0", "1", "2"], ["CPU0", "1", "2"]])
        rows = self.rows()
        names = ["CPU0", "CPU0 in 2 processes"]
        self.assertEqual([name for test, name in rows if test == "pp512"], names)
        two = rows["tg128", names[1]]
        self.assertEqual((two["devices"], two["n_devices"]), ("CPU0", "2"))
        for name, value in (("speedup_median", 0.9), ("ideal_speedup", 2), ("efficiency_median", 0.45)):
            self.assertAlmostEqual(float(two[name]), value, places=4, msg=name)  # one alone has two threads
        times = {row["configuration"]: row["times"] for row in json.loads(done.stdout)["results"]}
        self.assertEqual([time["device"] for time in times[names[1]]], ["CPU0", "1:CPU0"])
        self.assertEqual(len(self.probes()), 2)
        text = (self.output / "README.md").read_text()
        self.assertIn(f"Processes are started by `{self.fake} -n N`.", text)
        self.assertIn("The cores of each process are divided among 1 device", text)

    def test_a_process_that_fails(self):
        launched = ("--processes", "1", "--counts", "1,2", "--mpirun", str(self.fake), "-r", "1")
        self.run_script(*launched, FAKE_FAIL="bench CPU0,CPU1")
        failure = self.rows()["tg128", "CPU0,CPU1 in 1 process"]["failure"]
        self.assertEqual(failure, "CPU1 has not enough memory; use fewer layers")

    def test_rounds_alternate(self):
        self.run_script("--counts", "1,2", "-r", "3", "--whole-machine")
        lists, whole = ["CPU0", "2"], ["CPU0", "1"]
        self.assertEqual(
            self.benches()[:9],
            [lists, ["CPU0,CPU1", "2"], whole, ["CPU0,CPU1", "2"], whole, lists, whole, lists, ["CPU0,CPU1", "2"]],
        )

    def test_the_report(self):
        self.run_script("--counts", "1,2,4", "-r", "2", "-d", "0,256", charts=True)
        text = (self.output / "README.md").read_text()
        for title in (
            "Speed-up",
            "Where the time goes",
            "Memory",
            "Figures",
            "Predictions",
            "Machine",
            "How it was made",
        ):
            self.assertIn(f"\n## {title}\n", text)
        links = re.findall(r"\]\(([^)]+)\)", text)
        self.assertEqual(sum(link.endswith(".svg") for link in links), 3)
        for link in links:
            self.assertGreater((self.output / link).stat().st_size, 300, link)
        self.assertIn("SHOAL_CPU_DEVICES=4", text)
        self.assertIn("4 threads for 3 cores", text)
        self.assertIn("--counts 1,2,4", text)
        self.assertIn("tg128 @ d256", text)
        images = {path: path.read_bytes() for path in self.output.glob("*.svg")}
        self.assertLess(sum(map(len, images.values())), 45000)
        self.assertIn(b"<text", images[self.output / "speedup-model.svg"])
        self.run_script("--counts", "1,2,4", "-r", "2", "-d", "0,256", charts=True)
        self.assertEqual(images, {path: path.read_bytes() for path in self.output.glob("*.svg")})
        self.assertEqual(len(self.benches()), 2 * 3 + 3 * 4, "nothing is run twice")

    def test_says_what_it_is_doing(self):
        """Where there is no terminal for a bar, too."""
        told = self.run_script("-r", "2").stderr.splitlines()
        self.assertEqual(
            told,
            [
                "bench_scaling: measuring the devices (shoal probe), about 40 s on an idle machine",
                "bench_scaling: model: 2 rounds of 2 configurations",
                "bench_scaling: model: where the time goes, memory and predictions",
            ],
        )
        self.assertEqual(self.run_script("-r", "2").stderr.splitlines(), ["bench_scaling: 13 of 13 runs are there already"])

    def test_a_quick_probe(self):
        self.assertIn("(shoal probe), about 20 s", self.run_script("--quick", "-r", "1").stderr)
        self.assertEqual(self.probes(), ["--quick"])
        self.run_script("--quick", "-r", "1")
        self.run_script("-r", "1")
        self.assertEqual(self.probes(), ["--quick", ""], "a thorough one is another")

    def test_kill_loses_nothing(self):
        child = subprocess.Popen(
            self.command("-r", "2"),
            env=self.environment(FAKE_HANG="bench CPU0,CPU1 --trace"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            self.wait_until_it_hangs(child)
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
        before = self.records()
        self.assertEqual(len(before), 10)
        self.assertEqual([record["kind"] for record in before if record["kind"] == "bench"], ["bench"] * 4)
        self.assertFalse(any(record["kind"] == "trace" and "," in record["configuration"] for record in before))
        with open(self.output / "journal.jsonl", "a") as file:
            file.write('{"kind": "bench", "ke')  # torn
        called = len(self.benches())
        done = self.run_script("-r", "2")
        self.assertIn(f"{len(before)} of 13 runs are there already", done.stderr)
        self.assertEqual(self.records()[: len(before)], before)
        self.assertEqual(len(self.records()), 13)
        self.assertLessEqual(len(self.benches()) - called, 3)
        self.assertAlmostEqual(float(self.rows()["tg128", "CPU0,CPU1"]["speedup_median"]), 1.8, places=4)

    @property
    def hangs(self):
        """A file that is there when a call that FAKE_HANG names has begun."""
        return pathlib.Path(f"{self.calls}.hangs")

    def wait_until_it_hangs(self, child):
        while not self.hangs.exists():
            self.assertIsNone(child.poll(), "it has ended")
            time.sleep(0.02)

    def test_signals_keep_what_is_there(self):
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with self.subTest(number):
                self.output, self.calls = self.folder / f"out{status}", self.folder / f"calls{status}"
                child = subprocess.Popen(
                    self.command("-r", "1"),
                    env=self.environment(FAKE_HANG="bench CPU0 --trace"),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                self.wait_until_it_hangs(child)
                child.send_signal(number)
                out, err = child.communicate()
                self.assertEqual(child.returncode, status, err)
                self.assertIn("the same command goes on", err)
                self.assertIn("1.80", out)
                self.assertIn("**Not finished:**", (self.output / "README.md").read_text())

    def test_a_configuration_that_fails(self):
        done = self.run_script("--counts", "1,2,4", "-r", "3", FAKE_FAIL="bench CPU0,CPU1")
        self.assertIn("CPU1 has not enough memory; use fewer layers", done.stderr)
        self.assertEqual(self.benches().count(["CPU0,CPU1", "4"]), 0)
        rows = self.rows()
        self.assertEqual(rows["tg128", "CPU0,CPU1"]["rounds"], "0")
        self.assertIn("not enough memory", rows["tg128", "CPU0,CPU1"]["failure"])
        self.assertAlmostEqual(float(rows["tg128", "CPU0,CPU1,CPU2,CPU3"]["speedup_median"]), 2.6, places=4)
        text = (self.output / "README.md").read_text()
        self.assertIn("## What failed", text)
        self.assertNotIn("Not finished", text)
        failures = [record for record in self.records() if record.get("error")]
        self.assertEqual([record["kind"] for record in failures], ["bench"], "tried once, recorded, skipped")
        again = self.run_script("--counts", "1,2,4", "-r", "3")
        self.assertIn("not enough memory", again.stdout)
        self.run_script("--counts", "1,2,4", "-r", "3", "--retry")
        self.assertAlmostEqual(float(self.rows()["tg128", "CPU0,CPU1"]["speedup_median"]), 1.8, places=4)

    def test_runs_that_explain_may_fail(self):
        for what, missing in (
            ("plan CPU0,CPU1", "no memory and prediction"),
            ("bench CPU0,CPU1 --trace", "no time by device"),
            ("probe CPU0,CPU1", "no predictions"),
        ):
            with self.subTest(what):
                self.output, self.calls = self.folder / str(len(what)), self.folder / f"calls{len(what)}"
                done = self.run_script("-r", "1", charts=True, FAKE_FAIL=what)
                self.assertIn(missing, done.stdout)
                self.assertAlmostEqual(float(self.rows()["pp512", "CPU0,CPU1"]["speedup_median"]), 1.8, places=1)

    def test_a_build_that_knows_less(self):
        done = self.run_script("-r", "1", charts=True, FAKE_LESS="1")
        self.assertIn("writes no traces", done.stdout)
        self.assertIn("predicts nothing", done.stdout)
        text = (self.output / "README.md").read_text()
        self.assertIn("predicts nothing", text)
        self.assertNotIn("## Where the time goes", text)
        self.assertNotIn("predicted t/s", text)

    def test_lists_and_shares(self):
        self.run_script(
            "--devices",
            "CPU0;CPU1;CPU0,CPU1",
            "-ts",
            "1,1;3,1",
            "-sm",
            "tensor,layer",
            "-r",
            "1",
            "--report",
            self.folder / "report",
            "--charts",
            "png",
            "--keep-traces",
            charts=True,
        )
        self.assertEqual(
            [name for test, name in self.rows_in("report") if test == "pp512"],
            ["CPU0", "CPU1", "CPU0,CPU1 1,1", "CPU0,CPU1 3,1", "CPU0,CPU1 layer 1,1", "CPU0,CPU1 layer 3,1"],
        )
        self.assertTrue((self.folder / "report/speedup-model.png").read_bytes().startswith(b"\x89PNG"))
        self.assertTrue((self.output / "scaling.json").exists())
        self.assertEqual(len(list((self.output / "traces").glob("*.json"))), 12)

    def rows_in(self, folder):
        with open(self.folder / folder / "scaling.csv", newline="") as file:
            return [(row["test"], row["configuration"]) for row in csv.DictReader(file)]

    def test_bad_flags(self):
        in_line = [
            (["-p", "0", "-n", "0"], "nothing to measure"),
            (["--devices", "CPU0,CPU0"], "twice"),
            (["-ts", "1,2,3"], "no list of devices has 3"),
            (["--cpu-devices", "1"], "give at least 2"),
            (["--family", "a b"], "--family"),
            (["-sm", "row"], "known are"),
            (["-m", self.model], "twice"),
            (["-r", "0"], "-r: '0': expected a positive number"),
            (["--counts", "0"], "--counts: 0: 0 is less than 1"),
            (["--counts", "a"], "expected numbers with commas"),
            (["--timeout", "-1"], "--timeout"),
            (["--timeout", "nan"], "--timeout"),
            (["--bench-arguments", "'x"], "--bench-arguments: 'x: a quotation is not closed"),
            (["--output", self.folder / "x"], "is neither text nor json; the folder is named with --folder"),
            (["--output-format", "json"], "unrecognized arguments"),
            (["--nonsense"], "unrecognized arguments: --nonsense"),
            (["--mpirun", "mpirun"], "--mpirun starts several processes; say how many with --processes"),
            (["--processes", "0"], "--processes: 0: 0 is less than 1"),
            (["--processes", "1,2", "--whole-machine"], "--whole-machine measures one process"),
            (["--processes", "1,2", "--devices", "@0,@1"], "'@0,@1': with --processes name those that each has"),
        ]
        outside = [
            (["-m", self.folder / "none"], "No such file", {}),
            (["--shoal", "/nowhere"], "no program", {}),
            ([], "SHOAL_CPU_DEVICES is 1, but CPU1", {"SHOAL_CPU_DEVICES": "1"}),
            (["--counts", "3"], "numbers in SHOAL_CPU_THREADS is 2, but CPU2", {"SHOAL_CPU_THREADS": "1,1"}),
        ]
        cases = [(arguments, message, {}, 2) for arguments, message in in_line]
        for arguments, message, environment, status in cases + [(*one, 1) for one in outside]:
            with self.subTest(arguments):
                done = self.run_script(*arguments, status=status, **environment)
                self.assertIn(message, done.stderr)
                self.assertTrue(done.stderr.startswith("bench_scaling.py: error: "), done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                self.assertEqual((done.stdout, self.output.exists()), ("", False))

    def test_nothing_else_is_overwritten(self):
        self.output.mkdir()
        (self.output / "README.md").write_text("# Something else\n")
        done = self.run_script("-r", "1", status=2)
        self.assertIn("README.md: is not a report of this script, and would be lost; name another file", done.stderr)
        self.assertEqual((self.output / "README.md").read_text(), "# Something else\n")

    def test_time_limit(self):
        with hours.hours_pass_while(self.hangs):
            done = self.run_script("-r", "1", "--timeout", "3600", FAKE_HANG="bench CPU0,CPU1")
        self.assertIn("did not end within 3600 s", done.stderr)
        rows = self.rows()
        self.assertEqual(rows["pp512", "CPU0"]["rounds"], "1")
        self.assertEqual(rows["pp512", "CPU0,CPU1"]["failure"], "shoal did not end within 3600 s")


@unittest.skipUnless(os.environ.get("SHOAL_PROGRAM"), "SHOAL_PROGRAM is not set")
class ProgramTest(ScriptTest):
    @classmethod
    def setUpClass(cls):
        kept = tempfile.TemporaryDirectory()
        cls.addClassCleanup(kept.cleanup)
        cls.machine = pathlib.Path(kept.name) / "machine.json"
        others = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        write_machine(cls.machine, others | {"SHOAL_CPU_DEVICES": "2"})

    def test_the_program_itself(self):
        arguments = ["-p", "16", "-n", "4", "-r", "1", "--inside", "1", "--quick"]
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
            self.assertGreater(float(row["ts_median"]), 0, key)
            self.assertEqual(row["failure"], "", key)
        found = json.loads((self.output / "scaling.json").read_text())
        memory = {one["configuration"]: one["devices"] for one in found["memory"]}
        self.assertLess(memory["CPU0,CPU1"][0]["weights"], memory["CPU0"][0]["weights"])
        self.assertFalse([record for record in self.records() if record.get("error")])

    def test_the_program_takes_auto_and_profiles(self):
        profile = self.folder / "a.json"
        profile.write_text('{"version": 1, "devices": ["CPU0", "CPU1"], "tensor_split": [1, 3]}')
        arguments = ["-p", "8", "-n", "0", "-r", "1", "--inside", "1", "--quick"]
        command = self.command("-ts", f"auto;@{profile};1,3", *arguments, "--shoal", os.environ["SHOAL_PROGRAM"])
        command[command.index(str(self.model))] = str(TINY)
        environment = self.environment(SHOAL_MACHINE_FILE=str(self.machine))
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        names = {"CPU0", *(f"CPU0,CPU1 {one}" for one in ("auto", f"@{profile}", "1,3"))}
        self.assertEqual({name for _, name in self.rows()}, names)
        self.assertFalse([record for record in self.records() if record.get("error")])
        found = json.loads((self.output / "scaling.json").read_text())
        memory = {one["configuration"]: [row["weights"] for row in one["devices"]] for one in found["memory"]}
        self.assertEqual(memory[f"CPU0,CPU1 @{profile}"], memory["CPU0,CPU1 1,3"])  # not even shares


if __name__ == "__main__":
    unittest.main()
