#!/usr/bin/env python3
"""Tests of `shoal run` on CUDA devices of several processes, with and without NCCL. Tokens must equal the tokens of one
device, and failed runs must exit. CTest sets SHOAL_PROGRAM, SHOAL_TEST_PLUGIN (the emulated plug-in) and
SHOAL_NCCL_STANDINS (the folder of the stand-ins for NCCL). Without CTest, the tests use the build in build/release."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/hosts"))

import mpirun  # noqa: E402

PLUGIN = os.environ.get("SHOAL_TEST_PLUGIN") or mpirun.PROGRAM.parents[1] / "tests/cuda/libshoal-cuda-emulated.so"
STANDINS = pathlib.Path(os.environ.get("SHOAL_NCCL_STANDINS") or pathlib.Path(PLUGIN).parent)
NCCL = STANDINS / "libnccl-standin.so"
OTHER_NCCL = STANDINS / "libnccl-standin-later.so"  # a later version
TIMEOUT, GRACE = 2.0, 4.0  # seconds: SHOAL_COMM_TIMEOUT, and additional time until all processes have exited
ENVIRONMENT = {"SHOAL_COMM_TIMEOUT": f"{TIMEOUT:g}", "SHOAL_CPU_THREADS": 1, "SHOAL_EMULATED_GPUS": 3,
               "SHOAL_EMULATED_PROCESSORS": 132, "SHOAL_NCCL_LIBRARY": NCCL}


def command(devices: str, *flags: str, tokens: int = 8) -> list[object]:
    return [mpirun.PROGRAM, "run", "--plugin", PLUGIN, "-m", ROOT / "data/models/tiny-kjv-5m-q8_0.gguf", "--prompt-tokens",
            "1,527,261", "-n", tokens, "--temp", 0, "--output", "json", "--devices", devices, *flags]


def only_in(rank: int, name: str, value: object) -> str:
    return f'[ "$OMPI_COMM_WORLD_RANK" != {rank} ] || export {name}={value}'


class Tokens(unittest.TestCase):
    """Compares tokens. Runs have a long time-out, because busy machines are slow."""

    @classmethod
    def setUpClass(cls):
        environment = {**os.environ, **{name: str(value) for name, value in ENVIRONMENT.items()}}
        one = subprocess.run(list(map(str, command("CUDA0"))), env=environment, capture_output=True, check=True)
        cls.expected = json.loads(one.stdout)["tokens"]

    def same(self, processes: int, devices: str, *flags: str, wrapper: str = "", **more: object):
        environment = {**ENVIRONMENT, "SHOAL_COMM_TIMEOUT": 120, **more}
        outcome = mpirun.run(command(devices, *flags), processes, 300, environment=environment, wrapper=wrapper)
        self.assertEqual(outcome.json()["tokens"], self.expected)

    def test_nccl_gives_same_tokens(self):
        self.same(2, "CUDA0,1:CUDA1", "--comm", "nccl")
        self.same(3, "CUDA0,1:CUDA1,2:CUDA2", "--comm", "nccl")
        self.same(2, "CUDA0,CUDA2,1:CUDA1", "--comm", "nccl")

    def test_nccl_allows_a_process_without_ranks(self):
        self.same(3, "1:CUDA0,2:CUDA1", "--comm", "nccl")

    def test_staged_gives_same_tokens(self):
        self.same(2, "CUDA0,1:CUDA1", "--comm", "staged")
        self.same(3, "CUDA0", "--comm", "staged")

    def test_staged_replaces_missing_nccl(self):
        self.same(2, "CUDA0,1:CUDA1", wrapper=only_in(1, "SHOAL_NCCL_LIBRARY", "none"))
        self.same(2, "CUDA0,1:CUDA1", wrapper=only_in(0, "SHOAL_NCCL_LIBRARY", "none"))

    def test_layer_mode_gives_same_tokens(self):
        self.same(2, "CUDA0", "-sm", "layer")
        self.same(2, "CUDA0+CUDA1", "-sm", "layer")

    def test_hosts_may_have_different_numbers_of_gpus(self):
        """Process 0 has one GPU. The three GPUs of process 1 use p2p and fuse all_reduces with norms."""
        few = only_in(0, "SHOAL_EMULATED_GPUS", 1)
        self.same(2, "CUDA0,1:CUDA0+1:CUDA1+1:CUDA2", "-sm", "layer", wrapper=few)
        self.same(2, "CPU0,1:CUDA0+1:CUDA1", "-sm", "layer", wrapper=few)
        self.same(2, "1:CUDA0,1:CUDA1,1:CUDA2", wrapper=few)

    def test_one_process_may_switch_off_a_feature(self):
        """Every process plans with the features of the process that owns the mesh."""
        for process in range(2):
            self.same(2, "CUDA0,1:CUDA0+1:CUDA1", "-sm", "layer", wrapper=only_in(process, "SHOAL_CUDA_OFF", "fuse"))

    def test_mesh_may_contain_a_cpu(self):
        self.same(2, "CPU0,1:CUDA0")


class Ends(unittest.TestCase):
    """Every process exits soon, with one error line that names a process and its host."""

    def ended(self, run: mpirun.Run, outcome: mpirun.Outcome, says: str, victim: int | None = None):
        self.assertNotEqual(outcome.code, 0)
        self.assertEqual(outcome.running, [])
        self.assertLess(outcome.ranks_seconds, TIMEOUT + GRACE)
        for rank in range(run.processes):
            if rank == victim:
                continue
            errors = outcome.errors(rank)
            self.assertEqual(len(errors), 1, errors)
            self.assertRegex(errors[0], says)
            self.assertIn(run.host(rank), errors[0])

    def refused(self, devices: str, says: str, *flags: str, processes: int = 2, wrapper: str = ""):
        with mpirun.Run(command(devices, *flags), processes, ENVIRONMENT, wrapper=wrapper) as run:
            self.ended(run, run.finish(60), says)

    def test_different_nccl_versions_are_refused(self):
        for flags in ((), ("--comm", "nccl")):
            self.refused("CUDA0,1:CUDA1", r"process 0 \(.*\) has NCCL 2\.28\.0, but process 1 \(.*\) has NCCL 2\.30\.0; ",
                         *flags, wrapper=only_in(1, "SHOAL_NCCL_LIBRARY", OTHER_NCCL))

    def test_missing_nccl_is_reported(self):
        self.refused("CUDA0,1:CUDA1", r"process 1 \(.*\): \[nccl\] cannot load none", "--comm", "nccl",
                     wrapper=only_in(1, "SHOAL_NCCL_LIBRARY", "none"))

    def test_ranks_that_share_a_gpu_are_refused(self):
        self.refused("CUDA0", r"rank 0 \(CUDA0 on .*\) and rank 1 \(1:CUDA0 on .*\) share a GPU", "--comm", "nccl")

    def test_p2p_over_processes_is_refused(self):
        self.refused("CUDA0,1:CUDA1", "'p2p' needs all ranks in one process", "--comm", "p2p")

    def disturbed(self, processes: int, number: int, says: str, victim: int | None = None):
        devices = ",".join(f"{process}:CUDA{process}" for process in range(processes))
        run_of_many = command(devices, "--comm", "nccl", "--ignore-eos", tokens=300)
        with mpirun.Run(run_of_many, processes, ENVIRONMENT) as run:
            run.sleep_until(4)
            self.assertTrue(run.kill(1, number))
            self.ended(run, run.finish(TIMEOUT + 3 * GRACE), says, victim)

    def test_killed_process_ends_all_processes(self):
        for processes in (2, 3):
            self.disturbed(processes, signal.SIGKILL, r"process 1 \(.*\) has died|told to end \(SIGTERM\)", victim=1)

    def test_stopped_process_ends_all_processes(self):
        self.disturbed(2, signal.SIGSTOP, r"process 1 \(.*\) has been silent for 2", victim=1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
