"""Tests plans, predictions and simulations of very large models on described machines. The model files have no weights.
Answers must be fast and plausible. Needs the packages of scripts/requirements.txt and SHOAL_PROGRAM."""

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
STEPS = 120_000_000  # CPU time limit of an answer, in steps of a Python loop
PATIENCE = float(os.environ.get("SHOAL_TEST_PATIENCE", "3"))  # factor of the limit, for slow builds of the program

GPUS, WITH_HOST = "H200x8-nvlink", "RTX4090x4+EPYC9654-pcie"
# Flags of make_model.py, whether the model fits on 4 GPUs of 24 GB, and the approximate size of the file in GB.
MODELS = {
    "gpt-oss-120b": (("--preset", "gpt-oss-120b", "--type", "q8_0", "--tensor-type", "_exps=mxfp4"), True, 63),
    "qwen3-235b": (("--preset", "qwen3-235b-a22b", "--type", "q4_k_m"), False, 142),
    "qwen3.5-397b": (("--preset", "qwen3.5-397b-a17b", "--type", "q4_k_m"), False, 240),
    "deepseek-v3-iq1_s": (("--preset", "deepseek-v3", "--type", "iq1_s"), False, 132),
    "deepseek-v3-q4_k_m": (("--preset", "deepseek-v3", "--type", "q4_k_m"), False, 404),
}


def seconds_of_steps():
    """CPU seconds of STEPS steps on this machine: 10 s on a machine on which an answer takes 1 to 4 s."""
    start = time.process_time()
    sum(i * i for i in range(STEPS // 100))
    return (time.process_time() - start) * 100


def seconds_of_children():
    """CPU seconds of all ended child processes. Other programs do not change this time."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class LargeModelsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # The files are in the build folder, because some file systems in memory do not support such large sparse files.
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
        """Returns the JSON answer and the lines of stderr."""
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

    def test_files_have_full_size_but_take_no_space(self):
        for name, (_, _, gigabytes) in MODELS.items():
            stat = self.files[name].stat()
            self.assertAlmostEqual(stat.st_size / 1e9, gigabytes, delta=1, msg=name)
            self.assertLess(stat.st_blocks * 512, 16e6, name)

    def test_every_plan_fits(self):
        """If the devices have too little memory, `plan --fit on` puts experts on the host, as `shoal run` does."""
        for name, (_, fits, _) in MODELS.items():
            for machine in (GPUS, WITH_HOST):
                with self.subTest(model=name, machine=machine):
                    plan, errors = self.ask("plan", name, machine, "-c", "8192", "--fit", "on")
                    self.assertTrue(plan["fits"])
                    self.assertGreaterEqual(plan["context"], 4096)
                    self.assertGreater(plan["prediction"]["generation"]["tokens_per_second"], 1)
                    told = [line for line in errors if "the host keeps" in line]
                    self.assertEqual(len(told), 0 if fits or machine == GPUS else 1, errors)
                    for line in told:
                        self.assertRegex(line, r"the experts of \d+ of \d+ layers.* as with -ncmoe \d+.*: predicted ")
                    devices = {use["device"] for use in plan["memory"]}
                    self.assertEqual("EPYC9654" in devices, bool(told))

    def test_suggested_flags_give_the_same_plan(self):
        plan, errors = self.ask("plan", "qwen3-235b", WITH_HOST, "-c", "8192", "--fit", "on")
        told = next(line for line in errors if "as with " in line)
        flags = told.split("as with ")[1].split(":")[0].split()
        same, _ = self.ask("plan", "qwen3-235b", WITH_HOST, "-c", str(plan["context"]), *flags)
        self.assertEqual(plan["split_key"], same["split_key"])
        self.assertTrue(same["fits"])
        less, _ = self.ask("plan", "qwen3-235b", WITH_HOST, "-c", str(plan["context"]), "-ncmoe", str(int(flags[1]) - 8))
        self.assertFalse(less["fits"])

    def test_recommends_host_only_if_gpus_are_too_small(self):
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
                        # The table also contains slower candidates, which have layers on the host.
                        layers = [one for one in answer["candidates"] if one["host"].startswith("-ngl") and one["fits"]]
                        self.assertTrue(layers)
                        for one in layers:
                            self.assertLessEqual(one["generation"]["tokens_per_second"], rates[name, machine])
        for name in MODELS:
            self.assertGreater(rates[name, GPUS], rates[name, WITH_HOST], name)

    def test_recommends_nothing_without_a_host(self):
        answer, _ = self.ask("plan", "deepseek-v3-q4_k_m", "RTX4090x4-pcie", "--recommend", "-c", "8192")
        self.assertIsNone(answer["recommended"])
        self.assertIn("nothing fits", answer["reason"])
        self.assertFalse(any(one["host"] for one in answer["candidates"]))

    def test_simulated_models_fit_with_a_host(self):
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
        sys.exit(77)  # exit code that CTest treats as skipped
    unittest.main()
