"""Tests scripts/tune_split.py with the real program. The script tunes two CPU devices of different speeds, then `run`
and `plan` use the profile. The test also passes on a busy machine. tune_split_test.py checks speeds on a simulated
machine."""
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "data/models/tiny-kjv-5m-q8_0.gguf"
PROGRAM = pathlib.Path(os.environ.get("SHOAL_PROGRAM", ROOT / "build/release/bin/shoal"))
# This code runs the script without its limit on noise, so that the script always writes a profile.
SCRIPT = f"""import runpy, sys
sys.path.insert(0, {str(ROOT / "scripts")!r})
import tuning.main
tuning.main.NOISE = float("inf")
runpy.run_path({str(ROOT / "scripts/tune_split.py")!r}, run_name="__main__")"""


class ProgramTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.profile = self.folder / "tuned.json"
        self.slowdown = "9,1"

    def environment(self, **changes):
        return {**os.environ, "SHOAL_CPU_DEVICES": "2", "SHOAL_CPU_THREADS": "1", "SHOAL_CPU_SLOWDOWN": self.slowdown,
                "SHOAL_PROGRAM": str(PROGRAM), "SHOAL_MACHINE_FILE": str(self.folder / "machine.json"), **changes}

    def call(self, *command):
        done = subprocess.run([str(one) for one in command], env=self.environment(), cwd=self.folder,
                              capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 0, f"{command}: {done.stderr}")
        return done.stdout

    def shoal(self, command, *arguments):
        return self.call(PROGRAM, command, "-m", MODEL, "--devices", "CPU0,CPU1", *arguments)

    def tune(self, *arguments):
        return json.loads(self.call(sys.executable, "-c", SCRIPT, "-m", MODEL, "--devices", "CPU0,CPU1",
                                    "-o", self.profile, "--chart", "none", "--output", "json",
                                    *arguments))

    def test_tuned_profile_is_used(self):
        tuned = self.tune("--objective", "prompt", "-p", 32, "-r", 2, "--trials", 8)
        split = tuned["best"]["split"]
        self.assertEqual(tuned["units"], 24)
        self.assertEqual(sum(split), 24)
        self.assertLess(split[0], split[1])  # CPU0 is nine times slower than CPU1
        self.assertFalse([trial for trial in tuned["all"] if "failed" in trial])
        self.check_who_uses_it(",".join(map(str, split)))

    def check_who_uses_it(self, ratio):
        """Checks that `run` and `plan` use the profile. `plan` prints the placement of tensors. In `run`, the shares
        determine the number of values that each device sums, and so the last digits of the logits."""
        profile = ["--tensor-split", f"@{self.profile}"]
        for command, kept, arguments in (
                ("run", ("tokens", "top_logits"), ["-p", "In the beginning", "-n", 8, "--temp", 0, "--top-logits", 8]),
                ("plan", ("tensors",), [])):
            by_profile, by_ratio, by_even = ([json.loads(self.shoal(command, *arguments, "--output", "json", *shares))
                                              [name] for name in kept]
                                             for shares in (profile, ["--tensor-split", ratio], []))
            self.assertEqual(by_profile, by_ratio, command)
            self.assertNotEqual(by_profile, by_even, command)

    def test_predicted_split_is_measured_first(self):
        self.slowdown = "3,1"  # with the default "9,1", the probe would take longer
        tuned = self.tune("-n", 8, "-r", 1, "--trials", 2)
        self.assertEqual(tuned["all"][0]["origin"], "prediction")
        self.assertIn("generation", json.loads(self.profile.read_text())["prediction"])

    def test_profile_records_model_commit_and_devices(self):
        self.tune("-n", 4, "-r", 1, "--trials", 1)
        profile = json.loads(self.profile.read_text())
        self.assertEqual(profile["model"]["type"], "llama 5.2M Q8_0")
        self.assertTrue(profile["shoal"]["commit"])
        self.assertIn("slowed 9x", profile["descriptions"][0])


if __name__ == "__main__":
    if any(importlib.util.find_spec(name) is None for name in ("matplotlib", "rich")):
        print("skipped: run scripts/install_python")
        sys.exit(77)  # exit code that CTest treats as skipped
    unittest.main()
