#!/usr/bin/env python3
"""Tests output and errors of commands with several processes on this computer."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import mpirun  # noqa: E402
from mpirun import PROGRAM, ROOT, Outcome, Run  # noqa: E402

MODEL = ROOT / "data/models/tiny-kjv-5m-q8_0.gguf"
ONE_THREAD = {"SHOAL_CPU_THREADS": 1, "SHOAL_COMM_TIMEOUT": 30}


def run(*words: object, processes: int = 2) -> Outcome:
    return mpirun.run([PROGRAM, *words], processes, environment=ONE_THREAD)


class BenchComm(unittest.TestCase):
    def test_uses_ranks_of_all_processes(self):
        found = run("bench-comm", "--devices", "CPU0,CPU1,1:CPU0", "-b", "64", "-e", "256K", "-f", "4096", "-n", 5,
                    "--op", "all", "--dtype", "f32,bf16", "--comm", "all", "-o", "json", processes=3).json()
        self.assertEqual([device["name"] for device in found["devices"]], ["CPU0", "CPU1", "1:CPU0"])
        self.assertEqual({device["host"] for device in found["devices"]}, {os.uname().nodename})
        results = found["results"]
        self.assertEqual(len(results), 5 * 3 * 2 * 2)  # collectives, communicators, types, sizes
        self.assertEqual({(one["comm"], one["communicator"]) for one in results},
                         {("auto", "mpi"), ("mpi", "mpi"), ("staged", "staged")})
        self.assertEqual({one["ranks"] for one in results}, {3})
        self.assertEqual(found["wrong"], 0)
        self.assertTrue(all(one["time_us"] > 0 for one in results))

    def test_prints_the_table_once(self):
        text = run("bench-comm", "--devices", "CPU0", "-b", 64, "-e", 64, "-n", 5).stdout
        self.assertEqual(text.count("\n          64 "), 1)
        self.assertRegex(text, rf"#  rank  1  1:CPU0  {os.uname().nodename}  ")
        self.assertIn("# all_reduce by auto (the mpi communicator)\n", text)

    def test_killed_process_ends_the_run(self):
        command = [PROGRAM, "bench-comm", "--devices", "CPU0", "-n", 1000000, "-b", 1024]
        with Run(command, 3, ONE_THREAD) as one:
            one.wait_for_output()
            self.assertTrue(one.kill(1, signal.SIGKILL))
            found = one.finish(10)
        self.assertEqual(found.running, [])
        self.assertNotIn(found.code, (0, None))
        for rank in (0, 2):
            self.assertEqual(len(found.errors(rank)), 1, found.stderr)
        self.assertIn("process 1", found.words)

    def test_refuses_flags_for_one_process(self):
        for words, says in ((("--calibrate",), "--calibrate is for devices of one process; start shoal without mpirun"),
                            (("--comm", "host"), "--comm host: collectives by 'host' are for devices of one process; use "
                             "auto or mpi for the mesh of CPU0; these implementations work: auto, mpi, staged")):
            with self.subTest(words):
                check_refused(self, run("bench-comm", "--devices", "CPU0", "-b", 64, "-e", 64, *words), says)


class Devices(unittest.TestCase):
    """Values of --devices."""

    def ranks(self, devices: str, processes: int = 2) -> list[str]:
        found = run("bench-comm", "--devices", devices, "-b", 64, "-e", 64, "-n", 1, "-o", "json", processes=processes)
        return [device["name"] for device in found.json()["devices"]]

    def test_accepts_names_with_process_numbers(self):
        self.assertEqual(self.ranks("CPU0,CPU1,1:CPU0"), ["CPU0", "CPU1", "1:CPU0"])
        self.assertEqual(self.ranks("0:CPU1,2:CPU0", 3), ["CPU1", "2:CPU0"])

    def test_accepts_devices_of_only_one_process(self):
        for devices, ranks in (("1:CPU0,1:CPU1", ["1:CPU0", "1:CPU1"]), ("1:CPU0", ["1:CPU0"]), ("0:CPU0", ["CPU0"])):
            with self.subTest(devices):
                self.assertEqual(self.ranks(devices), ranks)

    def test_accepts_several_lists(self):
        found = run("bench", "-m", MODEL, "--devices", "CPU0,1:CPU0;CPU1,1:CPU1;1:CPU0,1:CPU1", "-p", 0, "-n", 4, "-r", 1,
                    "-o", "jsonl")
        self.assertEqual([json.loads(line)["devices"] for line in found.stdout.splitlines()],
                         ["CPU0,1:CPU0", "CPU1,1:CPU1", "1:CPU0,1:CPU1"])

    def test_measures_requests(self):
        found = run("bench", "-m", MODEL, "--devices", "CPU0,1:CPU0;1:CPU0,1:CPU1", "-np", "1,3", "-p", 40, "-n", 3, "-b",
                    "16,32", "-r", 2, "-o", "jsonl")
        rows = [json.loads(line) for line in found.stdout.splitlines()]
        self.assertEqual([(row["devices"], row["n_batch"], row["test"]) for row in rows],
                         [(devices, batch, f"np{count} pp40 tg3") for devices in ("CPU0,1:CPU0", "1:CPU0,1:CPU1")
                          for batch in (16, 32) for count in (1, 3)])
        self.assertTrue(all(rate > 0 for row in rows for rate in (*row["samples_ts"], row["speed_tg"])), rows)

    def test_refuses_bad_lists(self):
        for devices, says in (("1:CPU0,CPU0", "process 0 comes after process 1 in '1:CPU0,CPU0'; name processes in ascending order"),
                              ("CPU0,2:CPU0", "'2:CPU0' names an unknown process; processes are 0 to 1"),
                              ("CPU0,x:CPU0", "'x:CPU0' names an unknown process"), ("CPU0,:CPU0", "':CPU0' names an unknown process"),
                              ("CPU0,99999999999:CPU0", "'99999999999:CPU0' names an unknown process"),
                              ("CPU0,1:", "'1:' is not PROCESS:DEVICE"), ("CPU0,0:1:CPU0", "'0:1:CPU0' is not PROCESS:DEVICE")):
            with self.subTest(devices):
                check_refused(self, run("bench-comm", "--devices", devices, "-b", 64, "-e", 64), says)


class Slurm(unittest.TestCase):
    def test_warns_of_unconnected_tasks(self):
        says = "shoal: warning: srun started 2 unconnected processes; add --mpi=pmix to srun to connect them"
        for more, warns in (({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}, True),
                            ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}, False),
                            ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, False)):
            with self.subTest(more):
                found = subprocess.run([PROGRAM, "devices"], env=os.environ | more, capture_output=True, text=True, check=True)
                self.assertEqual(says in found.stderr, warns, found.stderr)


class Refused(unittest.TestCase):
    def test_refuses_flags_that_use_the_host(self):
        remedy = "omit the flag and add CPU devices to --devices"
        for command, words, flag in (("run", ("-p", "a", "-ngl", 4), "-ngl 4"), ("bench", ("-nkvo",), "-nkvo"),
                                     ("plan", ("-ot", "ffn_up=CPU"), "-ot ffn_up=CPU"), ("run", ("-p", "a", "-cmoe"), "-cmoe")):
            with self.subTest(flag):
                found = run(command, "-m", MODEL, "--devices", "CPU0", *words)
                check_refused(self, found, f": {flag}: several processes cannot keep parts of a model on the host")
                self.assertIn(remedy, found.words)

    def test_refuses_compare(self):
        check_refused(self, run("compare", "-m", MODEL, "--devices", "CPU0"), "start it without mpirun or srun")


def check_refused(test: unittest.TestCase, found: Outcome, says: str) -> None:
    test.assertNotIn(found.code, (0, None))
    for rank, text in found.stderr.items():
        errors = found.errors(rank)
        test.assertLessEqual(len(errors), 1, text)  # a rank that mpirun ends can exit without an error line
        test.assertTrue(all(says in line for line in errors), text)
    test.assertTrue(any(found.errors(rank) for rank in found.stderr), found.words)


if __name__ == "__main__":
    unittest.main()
