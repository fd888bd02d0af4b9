"""benchmarks/busy_machine.py: its table, and what it refuses, with a program that measures nothing."""
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks/busy_machine.py"


class BusyMachineTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def program(self, name, body='print(json.dumps({"n_gen": 8, "n_prompt": 0, "avg_ns": 2e9}))'):
        path = self.folder / name / "shoal"
        path.parent.mkdir()
        path.write_text(f"#!{sys.executable}\nimport json, sys\n{textwrap.dedent(body)}\n")
        path.chmod(0o755)
        return str(path)

    def measure(self, *flags, cores=None):
        pin = (lambda: os.sched_setaffinity(0, cores)) if cores else None
        command = [sys.executable, SCRIPT, "-m", "m.gguf", "-r", "1", *flags]
        return subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=pin)

    def test_programs_are_told_apart_by_their_paths(self):
        one, other = self.program("one"), self.program("other")
        done = self.measure("--case", "2x1", "--program", one, "--program", other)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        rows = [f"| m.gguf | 2x1 | {path} | 4.0 | 4.0 | 1.00 | 1.00 - 1.00 |" for path in (one, other)]
        self.assertEqual(done.stdout.splitlines()[2:], rows)

    def test_with_one_core_there_is_one_case(self):
        core = {min(os.sched_getaffinity(0))}
        done = self.measure("--program", self.program("one"), "--beside", "0", cores=core)
        self.assertEqual([line.split(" | ")[1] for line in done.stdout.splitlines()[2:]], ["1x1"])

    def test_what_it_refuses(self):
        broken = self.program("broken", 'sys.exit("shoal: error: CPU0 has too little memory")')
        for flags, code, message in (
            (["--case", "1y2"], 2, "argument --case: 1y2: expected devices x threads, such as 2x1; see"),
            (["--case", "0x1"], 2, "argument --case: 0x1: expected devices x threads"),
            (["--beside", "-1"], 2, "argument --beside: -1 is below 0"),
            (["-r", "0"], 2, "argument -r: 0 is not above 0"),
            (["-n", "x"], 2, "argument -n: invalid int value: 'x'"),
            (["--program", "nope"], 1, "nope; check --program"),
            (["--program", broken], 1, "CPU0 has too little memory"),
        ):
            with self.subTest(flags):
                done = self.measure(*flags)
                self.assertEqual(done.returncode, code)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                self.assertTrue(done.stderr.startswith("busy_machine.py: error: "), done.stderr)
                self.assertIn(message, done.stderr)


if __name__ == "__main__":
    unittest.main()
