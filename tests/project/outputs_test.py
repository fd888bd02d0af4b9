"""Tests that a script never replaces its inputs. Without --force, a script also keeps files that are not its own
outputs. The flags are read from the help, so new flags are also tested."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from measuring import charts, files, python  # noqa: E402

if __name__ == "__main__":
    python.use_packages("outputs_test", "gguf", "matplotlib", "numpy", "rich")

MODEL = ROOT / "data/models/tiny-kjv-5m-q8_0.gguf"
TUNE = ["tune_split.py", "--devices", "CPU0,CPU1", "--shoal", "/bin/false"]
SCALE = ["bench_scaling.py", "--shoal", "/bin/false"]
ACCURACY = ["../benchmarks/prediction_accuracy.py", "--program", "/bin/false"]
KIND = files.Kind(b"{", b'"key"')


def run(script, *arguments, cwd=None):
    command = [sys.executable, ROOT / "scripts" / script, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)


def file_flags(script):
    """The flags with the metavar FILE in the help of a script."""
    return re.findall(r"(--[a-z-]+) FILE\b", run(script, "--help").stdout)


class OutputsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def precious(self, name="precious.svg", data=b"GGUF precious"):
        path = self.folder / name
        path.write_bytes(data)
        return path

    def expect_refused(self, result, path, data, why="is not a"):
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn(why, result.stderr)
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertEqual(path.read_bytes(), data)

    def test_replaces_empty_files_and_own_outputs(self):
        for data in (b"", b' {"key": 1}'):
            files.check_replaced(self.precious(data=data), "profile", KIND)
        files.check_replaced(self.folder / "none", "profile", KIND)

    def test_keeps_inputs_and_files_of_other_programs(self):
        for data in (b"GGUF", b"{}", b"\n"):
            path = self.precious(data=data)
            with self.assertRaisesRegex(files.Refused, "is not a profile of this script, and would be lost; name another"):
                files.check_replaced(path, "profile", KIND)
            files.check_replaced(path, "profile", KIND, force=True)
        own = self.precious("own.json", b'{"key": 1}')
        symbolic, hard = self.folder / "symbolic", self.folder / "hard"
        symbolic.symlink_to(own)
        os.link(own, hard)
        for path in (own, symbolic, hard):
            with self.assertRaisesRegex(files.Refused, "is also an input file; name another file for the profile"):
                files.check_replaced(path, "profile", KIND, [MODEL, own], force=True)

    def test_recognises_own_charts(self):
        path = self.folder / "chart.svg"
        figure, _ = charts.figure("title", "x", "y")
        charts.save(figure, path)
        self.assertTrue(charts.KIND.fits(path.read_bytes()))
        self.assertFalse(charts.KIND.fits(b"<svg>"))
        for path in [*ROOT.glob("docs/tuning/*.svg"), *ROOT.glob("docs/scaling/*.svg")]:
            self.assertTrue(charts.KIND.fits(path.read_bytes()), path)

    def test_tune_split_keeps_files_of_other_programs(self):
        flags = file_flags("tune_split.py")
        self.assertGreaterEqual(set(flags), {"--model", "--profile", "--journal", "--chart"})
        for flag in flags:
            with self.subTest(flag):
                path = self.precious()
                model = [] if flag == "--model" else ["-m", MODEL]
                result = run(*TUNE, *model, flag, path, cwd=self.folder)
                self.assertEqual(path.read_bytes(), b"GGUF precious")
                self.assertNotEqual(result.returncode, 0)
                if flag in ("--profile", "--chart"):
                    self.expect_refused(result, path, b"GGUF precious")

    def test_tune_split_does_not_overwrite_its_model(self):
        path = self.precious("model.svg")
        for flag in ("-o", "--journal", "--chart"):
            result = run(*TUNE, "-m", path, flag, path, *["--force"] * (flag != "--journal"), cwd=self.folder)
            self.expect_refused(result, path, b"GGUF precious", "is also an input file; name another file for the ")

    def test_bench_scaling_replaces_only_its_own_files(self):
        chart = "speedup-tiny-kjv-5m-q8_0.svg"
        for name in ("README.md", "scaling.csv", chart):
            with self.subTest(name):
                path = self.precious(name)
                result = run(*SCALE, "-m", MODEL, "--folder", self.folder)
                self.expect_refused(result, path, b"GGUF precious")
                self.assertNotEqual(run(*SCALE, "-m", MODEL, "--folder", self.folder, "--force").returncode, 2)
                path.unlink()

    def test_prediction_accuracy_replaces_only_its_own_files(self):
        self.assertEqual(set(file_flags(ACCURACY[0])), {"--json"})
        path = self.precious("rows.json", b'{"rows": "of another program"}')
        accuracy = [*ACCURACY, "-m", MODEL, "--json", path]
        self.expect_refused(run(*accuracy), path, b'{"rows": "of another program"}')
        self.assertIn("/bin/false", run(*accuracy, "--force").stderr, "the script starts to measure")
        path.write_bytes(b'{"mean_errors": {}, "rows": []}')
        self.assertIn("/bin/false", run(*accuracy).stderr, "this file is an output of the script")
        model = self.precious("model.gguf")
        result = run(*ACCURACY, "-m", model, "--json", model, "--force")
        self.expect_refused(result, model, b"GGUF precious", "is also an input file; name another file for the table")

    def test_make_model_replaces_only_its_own_files(self):
        path = self.precious("model.gguf")
        made = ["make_model.py", "--layers", "1", "--sparse", path]
        self.expect_refused(run(*made), path, b"GGUF precious")
        self.assertEqual(run(*made, "--force").returncode, 0)
        self.assertEqual(run(*made).returncode, 0, "this file is an output of the script")
        model = self.precious("other.gguf", MODEL.read_bytes())
        self.expect_refused(run(*made[:-1], model), model, MODEL.read_bytes())

    def test_gpu_check_replaces_only_its_own_files(self):
        for name in ("gpu_check.json", "summary.txt", "log.txt"):
            with self.subTest(name):
                path = self.precious(name)
                result = run("gpu_check", "--emulated", "--only", "environment", "--out", self.folder)
                self.assertEqual((result.returncode, path.read_bytes()), (2, b"GGUF precious"), result.stdout)
                self.assertIn("would be lost; name another folder with --out", result.stdout)
                path.unlink()


if __name__ == "__main__":
    unittest.main()
