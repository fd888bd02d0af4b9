"""Tests that docs/cli.md contains every command, every flag and the output of examples as the program prints them."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("SHOAL_PROGRAM", str(ROOT / "build/release/bin/shoal"))


def make(page, *flags):
    command = [sys.executable, ROOT / "scripts/make_cli_docs.py", "--program", PROGRAM, "--page", page, *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False)


class CliDocsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.text = (ROOT / "docs/cli.md").read_text()
        self.page = pathlib.Path(folder.name) / "cli.md"

    def test_page_matches_output_of_program(self):
        result = make(ROOT / "docs/cli.md", "--check")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_missing_flag_is_found_and_restored(self):
        lines = self.text.splitlines(keepends=True)
        flag = next(line for line in lines if line.startswith("  --min-p "))
        self.page.write_text("".join(line for line in lines if line != flag))
        result = make(self.page, "--check")
        self.assertEqual(result.returncode, 1)
        self.assertIn("+" + flag, result.stdout)
        self.assertNotIn("--min-p ", self.page.read_text(), "a check changes nothing")
        self.assertEqual(make(self.page).returncode, 0)
        self.assertEqual(self.page.read_text(), self.text)

    def test_changed_example_is_found_and_restored(self):
        self.assertIn("       527  ▁But\n", self.text)
        self.page.write_text(self.text.replace("       527  ▁But\n", "       528  ▁But\n"))
        result = make(self.page, "--check")
        self.assertEqual(result.returncode, 1)
        self.assertIn("+       527  ▁But\n", result.stdout)
        self.assertEqual(make(self.page).returncode, 0)
        self.assertEqual(self.page.read_text(), self.text)

    def test_simulated_rates_are_checked(self):
        example = self.text.index("    $ shoal simulate -m 70b")
        figure = re.compile(r" (\d+\.\d\d) \| +1\.00 \|").search(self.text, example)
        self.page.write_text(self.text[:figure.start(1)] + "0.01" + self.text[figure.end(1):])
        result = make(self.page, "--check")
        if "are left as they are" in result.stderr:
            self.skipTest("without the packages that make_model.py needs")
        self.assertEqual(result.returncode, 1)
        self.assertIn(figure[1], result.stdout)

    def test_missing_command_is_found(self):
        self.page.write_text(self.text.replace("$ shoal probe --help", "$ something else"))
        result = make(self.page, "--check")
        self.assertEqual(result.returncode, 1)
        self.assertIn("no block '$ shoal probe --help'", result.stdout)


if __name__ == "__main__":
    unittest.main()
