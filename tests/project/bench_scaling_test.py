"""scripts/bench_scaling.py: its arithmetic, its runs of a program that computes nothing (bench_scaling_shoal.py), and of
`shoal` itself where SHOAL_PROGRAM names it."""

import contextlib
import csv
import dataclasses
import importlib.util
import io
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
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))

from scaling import analysis, configurations, topology, trace  # noqa: E402
from scaling.configurations import Configuration, ConfigurationError, Test  # noqa: E402

SCRIPT = ROOT / "scripts/bench_scaling.py"
FAKE = ROOT / "tests/project/bench_scaling_shoal.py"
TINY = ROOT / "data/models/tiny-kjv-5m-q8_0.gguf"
PACKAGES = ("matplotlib", "rich")
if MISSING := [name for name in PACKAGES if importlib.util.find_spec(name) is None]:
    print(f"skipped: no {' and '.join(MISSING)} (scripts/install_python)")
    sys.exit(77)

import bench_scaling  # noqa: E402


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
        self.assertEqual(analysis.ideal_rates(["CPU0", "CPU1"], alone, "CPU0"), {0: 40.0, 1: 70.0})
        self.assertEqual(analysis.ideal_rates(["CPU0", "CPU7"], alone, "CPU0"), {0: 20.0, 1: 40.0})

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
        self.assertAlmostEqual(analysis.bandwidth_bound(machine, ["CPU0", "CPU1"], 1000), 1.5)
        self.assertAlmostEqual(analysis.bandwidth_bound(machine, ["CPU2", "CPU3"], 1000), 2.0)
        self.assertAlmostEqual(analysis.bandwidth_bound(machine, ["CPU0", "CPU1", "CPU2"], 1000), 2.5)
        self.assertIsNone(analysis.bandwidth_bound(machine, ["CPU0", "CPU1"], 150), "in caches")
        self.assertIsNone(analysis.bandwidth_bound(machine, ["CPU0", "GPU0"], 1000))
        self.assertIsNone(analysis.bandwidth_bound(None, ["CPU0"], 1000))
        cores = {"CPU0": 1, "CPU1": 1, "CPU2": 3}
        self.assertEqual(analysis.cores_bound(["CPU0", "CPU1"], cores, 3), 2)
        self.assertEqual(analysis.cores_bound(["CPU0", "CPU1", "CPU2"], cores, 3), 3)
        self.assertIsNone(analysis.cores_bound(["CPU0", "CUDA0"], cores, 3))

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
        found = [(time.compute, time.communication, time.waiting, time.copies, time.idle) for time in (one, two)]
        for values, expected in zip(found, [(0.4, 0.05, 0.4, 0.15, 0.0), (0.6, 0.05, 0.0, 0.0, 0.35)]):
            for value, wanted in zip(values, expected):
                self.assertAlmostEqual(value, wanted)
        self.assertAlmostEqual(trace.collective_share([one, two]), (0.45 + 0.05) / 2)

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


class ScriptTest(unittest.TestCase):
    def setUp(self):
        kept = tempfile.TemporaryDirectory()
        self.addCleanup(kept.cleanup)
        self.folder = pathlib.Path(kept.name)
        self.calls = self.folder / "calls"
        self.model = self.folder / "model.gguf"
        self.model.write_bytes(bytes(1000))
        self.output = self.folder / "out"

    def command(self, *arguments):
        words = ["--shoal", FAKE, "-m", self.model, "--output", self.output, *arguments]
        return [sys.executable, str(SCRIPT), *map(str, words)]

    def environment(self, **more):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SHOAL_", "FAKE_"))}
        return {**kept, "FAKE_CALLS": str(self.calls), **more}

    def run_script(self, *arguments, status=0, **environment):
        """In this process: what it imports takes longer than its runs."""
        out, err = io.StringIO(), io.StringIO()
        with (
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

    def test_figures(self):
        done = self.run_script("--counts", "1,2,4", "-r", "3", "--whole-machine", "--output-format", "json")
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
            "predicted_collective_share": 0.25,
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

    def test_rounds_alternate(self):
        self.run_script("--counts", "1,2", "-r", "3", "--whole-machine")
        lists, whole = ["CPU0", "2"], ["CPU0", "1"]
        self.assertEqual(
            self.benches()[:9],
            [lists, ["CPU0,CPU1", "2"], whole, ["CPU0,CPU1", "2"], whole, lists, whole, lists, ["CPU0,CPU1", "2"]],
        )

    def test_the_report(self):
        self.run_script("--counts", "1,2,4", "-r", "2", "-d", "0,256")
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
        self.run_script("--counts", "1,2,4", "-r", "2", "-d", "0,256")
        self.assertEqual(images, {path: path.read_bytes() for path in self.output.glob("*.svg")})
        self.assertEqual(len(self.benches()), 2 * 3 + 3 * 4, "nothing is run twice")

    def test_kill_loses_nothing(self):
        child = subprocess.Popen(
            self.command("-r", "2"),
            env=self.environment(FAKE_HANG="bench CPU0,CPU1 --trace"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            deadline = time.monotonic() + 200
            while time.monotonic() < deadline and child.poll() is None:
                if self.output.exists() and len(self.records_so_far()) >= 9:
                    break
                time.sleep(0.05)
            time.sleep(0.3)
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
        before = self.records()
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

    def records_so_far(self):
        path = self.output / "journal.jsonl"
        return path.read_text().splitlines()[1:] if path.exists() else []

    def test_signals_keep_what_is_there(self):
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with self.subTest(number):
                self.output = self.folder / f"out{status}"
                child = subprocess.Popen(
                    self.command("-r", "1"),
                    env=self.environment(FAKE_HANG="bench CPU0 --trace"),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                deadline = time.monotonic() + 200
                while time.monotonic() < deadline and len(self.records_so_far()) < 4:
                    time.sleep(0.05)
                child.send_signal(number)
                out, err = child.communicate(timeout=100)
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
                done = self.run_script("-r", "1", FAKE_FAIL=what)
                self.assertIn(missing, done.stdout)
                self.assertAlmostEqual(float(self.rows()["pp512", "CPU0,CPU1"]["speedup_median"]), 1.8, places=1)

    def test_a_build_that_knows_less(self):
        done = self.run_script("-r", "1", FAKE_LESS="1")
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
        cases = [
            (["-p", "0", "-n", "0"], "nothing to measure"),
            (["--devices", "CPU0,CPU0"], "twice"),
            (["-ts", "1,2,3"], "no list of devices has 3"),
            (["--cpu-devices", "1"], "give at least 2"),
            (["--family", "a b"], "--family"),
            (["-sm", "row"], "known are"),
            (["-m", self.folder / "none"], "No such file"),
            (["-m", self.model], "twice"),
            (["--shoal", "/nowhere"], "no program"),
        ]
        for arguments, message in cases:
            with self.subTest(arguments):
                done = self.run_script(*arguments, status=1)
                self.assertIn(message, done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        for arguments in (["-r", "0"], ["--counts", "0"], ["--counts", "a"], ["--timeout", "-1"], ["--timeout", "nan"]):
            with self.subTest(arguments):
                self.run_script(*arguments, status=2)

    def test_nothing_else_is_overwritten(self):
        self.output.mkdir()
        (self.output / "README.md").write_text("# Something else\n")
        done = self.run_script("-r", "1", status=1)
        self.assertIn("name another folder", done.stderr)
        self.assertEqual((self.output / "README.md").read_text(), "# Something else\n")

    def test_time_limit(self):
        done = self.run_script("-r", "1", "--timeout", "3", FAKE_HANG="bench CPU0,CPU1")
        self.assertIn("did not end within 3 s", done.stderr)
        self.assertEqual(self.rows()["pp512", "CPU0"]["rounds"], "1")

    @unittest.skipUnless(os.environ.get("SHOAL_PROGRAM"), "SHOAL_PROGRAM is not set")
    def test_the_program_itself(self):
        arguments = ["--shoal", os.environ["SHOAL_PROGRAM"], "-p", "16", "-n", "4", "-r", "1", "--inside", "1"]
        command = [sys.executable, str(SCRIPT), "-m", str(TINY), "--output", str(self.output), *arguments]
        done = subprocess.run(
            command,
            env=self.environment(SHOAL_MACHINE_FILE=str(self.folder / "machine.json")),
            capture_output=True,
            text=True,
            timeout=500,
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

    @unittest.skipUnless(os.environ.get("SHOAL_PROGRAM"), "SHOAL_PROGRAM is not set")
    def test_the_program_takes_auto_and_profiles(self):
        profile = self.folder / "a.json"
        profile.write_text('{"version": 1, "devices": ["CPU0", "CPU1"], "tensor_split": [1, 3]}')
        arguments = ["--shoal", os.environ["SHOAL_PROGRAM"], "-p", "8", "-n", "0", "-r", "1", "--inside", "1"]
        command = self.command("-ts", f"auto;@{profile};1,3", *arguments)
        command[command.index(str(self.model))] = str(TINY)
        environment = self.environment(SHOAL_MACHINE_FILE=str(self.folder / "machine.json"))
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
        self.assertEqual(done.returncode, 0, done.stderr)
        names = {"CPU0", *(f"CPU0,CPU1 {one}" for one in ("auto", f"@{profile}", "1,3"))}
        self.assertEqual({name for _, name in self.rows()}, names)
        self.assertFalse([record for record in self.records() if record.get("error")])
        found = json.loads((self.output / "scaling.json").read_text())
        memory = {one["configuration"]: [row["weights"] for row in one["devices"]] for one in found["memory"]}
        self.assertEqual(memory[f"CPU0,CPU1 @{profile}"], memory["CPU0,CPU1 1,3"])  # not even shares


if __name__ == "__main__":
    unittest.main()
