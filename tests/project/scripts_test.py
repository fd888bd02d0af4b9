"""The shell scripts parse, and refuse what they do not know, with one line that says why."""
import pathlib
import subprocess
import unittest

ROOT = pathlib.Path(__file__).parents[2]
SCRIPTS = ["scripts/install_deps", "scripts/install_python", "scripts/quickstart", "scripts/test", "scripts/hosts/enter", ".ci/run"]


def run(*command):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)


class ScriptsTest(unittest.TestCase):
    def test_they_parse_and_can_be_run(self):
        for script in SCRIPTS:
            with self.subTest(script):
                self.assertTrue((ROOT / script).stat().st_mode & 0o100, "is not executable")
                self.assertEqual(run("bash", "-n", script).stderr, "")

    def test_an_unknown_argument_is_an_error(self):
        result = run("scripts/install_deps", "--everything")
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stderr, "install_deps: unknown argument '--everything' (known: --sanitizers, --mpi)\n")

    def test_python_is_installed_once(self):
        result = run("scripts/install_python", "--everything")
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stderr, "install_python: unknown argument '--everything' (known: --help)\n")
        self.assertIn("build/venv", run("scripts/install_python", "--help").stdout)

    def test_help_is_the_head_of_the_script(self):
        result = run("scripts/test", "--help")
        self.assertEqual(result.returncode, 0)
        self.assertIn("scripts/test [--preset release|dev|tsan|tsan-cuda]", result.stdout)

    def test_the_model_of_the_quickstart_is_there(self):
        text = (ROOT / "scripts/quickstart").read_text()
        models = [word for word in text.split() if word.endswith(".gguf")]
        self.assertEqual(len(models), 1)
        self.assertTrue((ROOT / models[0]).is_file(), models[0])


if __name__ == "__main__":
    unittest.main()
