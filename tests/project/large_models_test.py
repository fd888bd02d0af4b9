"""Very large models on machines that nobody has here: files of their shapes without weights are planned, predicted and
simulated, soon, and with answers that make sense. Needs the packages of scripts/requirements.txt and SHOAL_PROGRAM."""

import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
import unittest

from make_model_test import PYTHON, SCRIPT

PROGRAM = os.environ.get("SHOAL_PROGRAM")
STEPS = 120_000_000  # an answer takes less of the processor than so many steps of Python
PATIENCE = float(os.environ.get("SHOAL_TEST_PATIENCE", "3"))  # how many times as slow the program may be

GPUS, WITH_HOST = "H200x8-nvlink", "RTX4090x4+EPYC9654-pcie"
# Presets, types, whether 4 x 24 GB have room, and about how many GB the file has.
MODELS = {
    "gpt-oss-120b": (("--preset", "gpt-oss-120b", "--type", "q8_0", "--tensor-type", "_exps=mxfp4"), True, 63),
    "qwen3-235b": (("--preset", "qwen3-235b-a22b", "--type", "q4_k_m"), False, 142),
    "qwen3.5-397b": (("--preset", "qwen3.5-397b-a17b", "--type", "q4_k_m"), False, 240),
    "deepseek-v3-iq1_s": (("--preset", "deepseek-v3", "--type", "iq1_s"), False, 132),
    "deepseek-v3-q4_k_m": (("--preset", "deepseek-v3", "--type", "q4_k_m"), False, 404),
}


def seconds_of_steps():
    """Of the processor: 10 where an answer takes 1 to 4, less or more on faster or slower machines."""
    start = time.process_time()
    sum(i * i for i in range(STEPS // 100))
    return (time.process_time() - start) * 100


def seconds_of_children():
    """Of the processor, which other programs take nothing from."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class LargeModelsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # In the build folder: file systems in memory may have no room for holes.
        cls.folder = tempfile.TemporaryDirectory(dir=pathlib.Path(PROGRAM).parent, prefix="large_models.")
        cls.files = {}
        cls.most = seconds_of_steps()
        for name, (arguments, _, _) in MODELS.items():
            file = pathlib.Path(cls.folder.name) / f"{name}.gguf"
            subprocess.run([PYTHON, SCRIPT, "--sparse", *arguments, file], check=True, capture_output=True)
            cls.files[name] = file

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def ask(self, command, name, machine, *arguments):
        """(answer, lines of stderr)"""
        start = seconds_of_children()
        output = "-o" if command == "simulate" else "--output"
        done = subprocess.run(
            [PROGRAM, command, "-m", self.files[name], "--machine", machine, output, "json", *arguments],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        seconds = seconds_of_children() - start
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLess(seconds, self.most * PATIENCE)
        return json.loads(done.stdout), done.stderr.splitlines()

    def test_files_have_their_size_and_take_no_room(self):
        for name, (_, _, gigabytes) in MODELS.items():
            stat = self.files[name].stat()
            self.assertAlmostEqual(stat.st_size / 1e9, gigabytes, delta=1, msg=name)
            self.assertLess(stat.st_blocks * 512, 16e6, name)

    def test_plans_fit(self):
        """What `shoal run` would do: where the devices have no room a part of the model is on the host."""
        for name, (_, fits, _) in MODELS.items():
            for machine in (GPUS, WITH_HOST):
                with self.subTest(model=name, machine=machine):
                    plan, errors = self.ask("plan", name, machine, "-c", "8192", "--fit", "on")
                    self.assertTrue(plan["fits"])
                    self.assertGreaterEqual(plan["context"], 4096)
                    self.assertGreater(plan["prediction"]["generation"]["tokens_per_second"], 1)
                    told = [line for line in errors if "on the host, as if by" in line]
                    self.assertEqual(len(told), 0 if fits or machine == GPUS else 1, errors)
                    for line in told:
                        self.assertRegex(line, r"the experts of \d+ of \d+ layers stay .* -ncmoe \d+.*: predicted ")
                    devices = {use["device"] for use in plan["memory"]}
                    self.assertEqual("EPYC9654" in devices, bool(told))

    def test_told_flags_do_the_same(self):
        plan, errors = self.ask("plan", "qwen3-235b", WITH_HOST, "-c", "8192", "--fit", "on")
        told = next(line for line in errors if "as if by " in line)
        flags = told.split("as if by ")[1].split(":")[0].split()
        same, _ = self.ask("plan", "qwen3-235b", WITH_HOST, "-c", str(plan["context"]), *flags)
        self.assertEqual(plan["split_key"], same["split_key"])
        self.assertTrue(same["fits"])
        less, _ = self.ask("plan", "qwen3-235b", WITH_HOST, "-c", str(plan["context"]), "-ncmoe", str(int(flags[1]) - 8))
        self.assertFalse(less["fits"])

    def test_recommendations(self):
        rates = {}
        for name, (_, fits, _) in MODELS.items():
            for machine in (GPUS, WITH_HOST):
                with self.subTest(model=name, machine=machine):
                    answer, _ = self.ask("plan", name, machine, "--recommend", "-c", "8192")
                    best = answer["recommended"]
                    self.assertIsNotNone(best, answer["reason"])
                    rates[name, machine] = best["generation"]["tokens_per_second"]
                    if fits or machine == GPUS:
                        self.assertEqual(best["host"], "")
                    else:
                        self.assertIn("-ncmoe", best["host"])
                        # Layers on the host are looked at, and slower.
                        layers = [one for one in answer["candidates"] if one["host"].startswith("-ngl") and one["fits"]]
                        self.assertTrue(layers)
                        for one in layers:
                            self.assertLessEqual(one["generation"]["tokens_per_second"], rates[name, machine])
        for name in MODELS:
            self.assertGreater(rates[name, GPUS], rates[name, WITH_HOST], name)

    def test_without_a_host_it_says_so(self):
        answer, _ = self.ask("plan", "deepseek-v3-q4_k_m", "RTX4090x4-pcie", "--recommend", "-c", "8192")
        self.assertIsNone(answer["recommended"])
        self.assertIn("nothing fits", answer["reason"])
        self.assertFalse(any(one["host"] for one in answer["candidates"]))

    def test_simulations(self):
        for name, (_, fits, _) in MODELS.items():
            for machine, count in ((GPUS, 8), (WITH_HOST, 4)):
                with self.subTest(model=name, machine=machine):
                    rows, _ = self.ask("simulate", name, machine, "--device-counts", str(count), "-p", "512", "-n", "32")
                    self.assertEqual([row["fits"] for row in rows], [fits or machine == GPUS] * 2)
                    if fits or machine == GPUS:
                        continue
                    rows, _ = self.ask("simulate", name, machine, "--device-counts", str(count), "-p", "512", "-n", "32",
                                       "-cmoe")  # fmt: skip
                    self.assertTrue(all(row["fits"] and row["avg_ts"] > 0 for row in rows), rows)


if __name__ == "__main__":
    if not PYTHON or not PROGRAM:
        print("skipped: no Python with gguf and numpy, or no SHOAL_PROGRAM; run scripts/install_python")
        sys.exit(77)  # what CTest takes for skipped
    unittest.main()
