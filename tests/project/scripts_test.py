"""Tests that the shell scripts have valid syntax, and reject unknown arguments with a one-line error."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).parents[2]
SCRIPTS = ["scripts/install_deps", "scripts/install_python", "scripts/quickstart", "scripts/test", "scripts/hosts/enter", ".ci/run"]


def run(*command):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)


class ScriptsTest(unittest.TestCase):
    def test_scripts_parse_and_are_executable(self):
        for script in SCRIPTS:
            with self.subTest(script):
                self.assertTrue((ROOT / script).stat().st_mode & 0o100, "is not executable")
                self.assertEqual(run("bash", "-n", script).stderr, "")

    def test_install_deps_rejects_unknown_argument(self):
        result = run("scripts/install_deps", "--everything")
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stderr, "install_deps: unknown argument '--everything' (known: --sanitizers, --mpi, --browser)\n")

    def test_install_python_rejects_unknown_argument(self):
        result = run("scripts/install_python", "--everything")
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stderr, "install_python: unknown argument '--everything' (known: --help)\n")
        self.assertIn("build/venv", run("scripts/install_python", "--help").stdout)

    def test_help_prints_head_of_script(self):
        result = run("scripts/test", "--help")
        self.assertEqual(result.returncode, 0)
        self.assertIn("scripts/test [--preset release|dev|tsan|tsan-cuda]", result.stdout)

    def test_model_of_quickstart_exists(self):
        text = (ROOT / "scripts/quickstart").read_text()
        models = [word for word in text.split() if word.endswith(".gguf")]
        self.assertEqual(len(models), 1)
        self.assertTrue((ROOT / models[0]).is_file(), models[0])


class QuickstartTest(unittest.TestCase):
    """Runs scripts/quickstart in a temporary folder. A substitute for cmake has the targets that the file `installed`
    lists."""

    PROGRAMS = {
        "scripts/install_deps": "",
        "bin/cmake": """case "$1" in
            --preset) mkdir -p build/release; sed 's/.*/build &: phony/' installed >build/release/build.ninja ;;
            --build) shift 3; echo "$*" >>built ;;
            esac""",
        "bin/nvidia-smi": "[ -e gpu ]",
        "build/release/bin/shoal": "",
    }

    def test_builds_available_plug_ins(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for path, text in self.PROGRAMS.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_text(f"#!/usr/bin/env bash\n{text}\n")
                (folder / path).chmod(0o755)
            shutil.copy(ROOT / "scripts/quickstart", folder / "scripts")
            environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
            for installed in ("shoal", "shoal shoal_mpi", "shoal shoal_mpi shoal_cuda"):
                (folder / "installed").write_text(installed.replace(" ", "\n") + "\n")
                subprocess.run([folder / "scripts/quickstart"], check=True, capture_output=True, env=environment)
            (folder / "gpu").touch()
            subprocess.run([folder / "scripts/quickstart"], check=True, capture_output=True, env=environment)
            built = (folder / "built").read_text().splitlines()
            self.assertEqual(built, ["shoal", "shoal shoal_mpi", "shoal shoal_mpi", "shoal shoal_mpi shoal_cuda"])

    def test_mpi_without_headers_is_not_used(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "CMakeLists.txt").write_text(
                "cmake_minimum_required(VERSION 3.22)\nproject(p CXX)\n"
                "add_library(shoal_plugin INTERFACE)\nadd_library(shoal_flags INTERFACE)\n"
                f"set(PROJECT_SOURCE_DIR {ROOT})\ninclude({ROOT}/cmake/mpi.cmake)\n"
                "if(TARGET shoal_mpi)\n  message(STATUS \"MPI is there\")\nendif()\n")
            (folder / "bin").mkdir()
            # This mpicxx behaves like the mpicxx of the package openmpi-bin on a machine without MPI headers.
            (folder / "bin/mpicxx").write_text("#!/bin/sh\ncase $1 in\n-showme:compile) echo -I/nowhere/include ;;\n"
                                               "-showme:link) echo -L/nowhere -lmpi ;;\n*) exit 1 ;;\nesac\n")
            (folder / "bin/mpicxx").chmod(0o755)
            command = ["cmake", "-S", folder, "-B", folder / "build"]
            broken = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
            first = subprocess.run(command, capture_output=True, text=True, env=broken)
            self.assertEqual(first.returncode, 0, first.stderr)
            self.assertNotIn("MPI is there", first.stdout)
            self.assertIn("cannot compile an MPI program", first.stdout)
            if shutil.which("mpicxx") and run("mpicxx", "--showme:version").returncode == 0:
                second = subprocess.run(command, capture_output=True, text=True)
                self.assertEqual(second.returncode, 0, second.stderr)
                self.assertIn("MPI is there", second.stdout)

    def test_all_remedies_for_mpi_are_equal(self):
        for path in ("README.md", "docs/hosts.md", "processes/join.cpp"):
            text = (ROOT / path).read_text()
            self.assertRegex(text, r"scripts/install_deps --mpi`?,? (and )?then `?scripts/quickstart", path)


class CudaArchitecturesTest(unittest.TestCase):
    """Tests cmake/cuda_architectures.cmake. A substitute for nvidia-smi prints the GPUs that the file `gpus` lists."""

    PROGRAMS = {
        "nvidia-smi": 'cat "$(dirname "$0")/gpus" 2>/dev/null || { echo "failed 580.65"; exit 9; }',
        "nvcc": "printf 'compute_%s\\n' 80 86 89 90",
    }

    def chosen(self, gpus, *options):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for program, text in self.PROGRAMS.items():
                (folder / program).write_text(f"#!/usr/bin/env bash\n{text}\n")
                (folder / program).chmod(0o755)
            if gpus:
                (folder / "gpus").write_text(gpus)
            (folder / "choose.cmake").write_text(
                f"include({ROOT}/cmake/cuda_architectures.cmake)\n"
                f"shoal_choose_cuda_architectures(chosen {folder}/nvcc)\nmessage(STATUS \"chosen: ${{chosen}}\")\n")
            result = subprocess.run(["cmake", *options, "-P", folder / "choose.cmake"], capture_output=True, text=True,
                                    env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}, check=False)
            return result.stdout.rpartition("chosen: ")[2].strip(), " ".join(result.stderr.split())

    def test_compiles_once_for_each_gpu_architecture(self):
        self.assertEqual(self.chosen("8.6\n9.0\n8.6\n"), ("86-real;90-real", ""))
        self.assertEqual(self.chosen("7.5\n8.9\n"), ("89-real", ""))

    def test_without_gpu_compiles_for_all_architectures(self):
        for gpus in ("", "7.5\n", "12.0\n"):
            chosen, warnings = self.chosen(gpus)
            self.assertEqual(chosen, "80-real;86-real;89-real;90-real", gpus)
            self.assertIn("cannot compile for compute capability 120", warnings)
        self.assertEqual(self.chosen("", "-DSHOAL_CUDA_WITHOUT_GPU=90"), ("90-real", ""))

    def test_option_overrides_architectures(self):
        self.assertEqual(self.chosen("8.6\n", "-DSHOAL_CUDA_ARCHITECTURES=80-real;90"), ("80-real;90-real", ""))
        for wrong in ("75", "90a", "native"):
            self.assertIn(f"'{wrong}' is not a compute capability of at least 80",
                          self.chosen("", f"-DSHOAL_CUDA_ARCHITECTURES={wrong}")[1])
            self.assertIn(f"SHOAL_CUDA_WITHOUT_GPU={wrong}: '{wrong}' is not",
                          self.chosen("", f"-DSHOAL_CUDA_WITHOUT_GPU={wrong}")[1])
        self.assertEqual(self.chosen("", "-DSHOAL_CUDA_ARCHITECTURES=86;86-real"), ("86-real", ""))
        self.assertEqual(self.chosen("", "-DSHOAL_CUDA_WITHOUT_GPU=80-real"), ("80-real", ""))

    def test_unknown_architecture_is_error(self):
        for option in ("ARCHITECTURES=80;120", "WITHOUT_GPU=120"):
            chosen, errors = self.chosen("", f"-DSHOAL_CUDA_{option}")
            self.assertEqual(chosen, "")
            self.assertRegex(errors, "CMake Error.*compute capability 120|can compile for none of.*=120; set SHOAL_CUDA_ARCHITECTURES")

    def test_warns_of_gpus_without_code(self):
        for gpus, without_code in (("8.6\n9.0\n", "90"), ("8.7\n", "87"), ("8.0\n8.9\n", "80"), ("8.9\n", None)):
            chosen, warnings = self.chosen(gpus, "-DSHOAL_CUDA_ARCHITECTURES=86")
            self.assertEqual(chosen, "86-real")
            expected = f"GPU of compute capability {without_code}; -DSHOAL_CUDA_ARCHITECTURES= compiles"
            self.assertEqual(warnings.count("omits"), without_code is not None, warnings)
            self.assertEqual(expected in warnings, without_code is not None, warnings)


if __name__ == "__main__":
    unittest.main()
