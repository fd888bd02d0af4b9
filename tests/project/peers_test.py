"""Tests benchmarks/peers: measurements, order of runs, and errors. The engines are shell scripts. If SHOAL_PROGRAM is
set, some tests use `shoal`. If SHOAL_PEERS_VENV is set, one test uses the package of llama.cpp."""

import contextlib
import csv
import io
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs start with SIGINT ignored
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "benchmarks/peers"))

import batched  # noqa: E402
import compare  # noqa: E402
import engines  # noqa: E402
import environment  # noqa: E402
import gguf_bytes  # noqa: E402
import report  # noqa: E402
from errors import CompareError  # noqa: E402

SCRIPT = ROOT / "benchmarks/peers/compare.py"
TINY = ROOT / "data/models/tiny-kjv-5m-q8_0.gguf"


def string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def gguf(tensors, metadata=(), alignment=32):
    """Returns a GGUF file. A tensor is (name, bytes), and an entry of metadata is (key, type, packed value)."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(string(key) + struct.pack("<I", kind) + value for key, kind, value in metadata)
    at = 0
    for name, size in tensors:
        head += string(name) + struct.pack("<IQQIQ", 2, 1, size, 24, at)
        at += -(-size // alignment) * alignment
    return head + bytes(-len(head) % alignment) + bytes(at)


class Folder(unittest.TestCase):
    def setUp(self):
        kept = tempfile.TemporaryDirectory()
        self.addCleanup(kept.cleanup)
        self.folder = pathlib.Path(kept.name)
        self.calls = self.folder / "calls"
        self.model = self.write("model.gguf", gguf([("a.weight", 1 << 20)]))

    def write(self, name, data):
        path = self.folder / name
        path.write_bytes(data)
        return path

    def program(self, name, text):
        path = self.write(name, f"#!/bin/sh\n{text}\n".encode())
        path.chmod(0o755)
        return path

    def engine(self, name, prompt, generate, before=""):
        """An engine that records its calls. In the shell expressions for its rates, $n is the number of past calls."""
        text = f"""\
echo "{name} $*" >> {self.calls}
n=$(($(grep -c "^{name} " {self.calls}) - 1))
{before}
echo "loading" >&2
echo '[{{"n_prompt": 512, "n_gen": 0, "n_depth": 0, "n_threads": 2, "build_commit": "{name}-commit",' \
     '"avg_ts":' $(({prompt})) '}}, {{"n_prompt": 0, "n_gen": 128, "avg_ts":' $(({generate})) '}}]'"""
        return self.program(name, text)

    def order(self):
        return [line.split()[0] for line in self.calls.read_text().splitlines()]

    def compare(self, *arguments, status=0, models=True):
        """Returns stdout and stderr of the script, which measures the `shoal` of the test folder."""
        words = ["compare.py", "--shoal", str(self.folder / "shoal"), "--no-llama-cpp", *map(str, arguments)]
        words += ["-m", str(self.model)] if models else []
        out, err = io.StringIO(), io.StringIO()
        found = 0
        with mock.patch.object(sys, "argv", words), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                compare.main()
            except SystemExit as ended:
                found = ended.code
                if isinstance(found, str):
                    print(found, file=sys.stderr)
                    found = 1
        self.assertEqual(found, status, err.getvalue())
        return out.getvalue(), err.getvalue()

    def fails(self, *arguments):
        """The line that reports the failure."""
        return self.compare(*arguments, status=1)[1].splitlines()[-1]


class Rounds(Folder):
    def setUp(self):
        super().setUp()
        self.engine("shoal", "100 + 20 * n", "10")
        self.peer = self.engine("peer", "50", "20 - 4 * n")

    def test_each_round_begins_with_another_engine(self):
        third = self.engine("third", "1", "1")
        self.compare("-r", "4", "--llama-bench", f"peer={self.peer}", "--llama-bench", f"third={third}")
        self.assertEqual(
            self.order(),
            ["shoal", "peer", "third", "peer", "third", "shoal", "third", "shoal", "peer"] + ["shoal", "peer", "third"],
        )

    def test_all_engines_get_same_work(self):
        self.compare("-r", "1", "-t", "3", "--llama-bench", f"peer={self.peer},-rtr 1 -fa 'on'")
        first, second = self.calls.read_text().splitlines()
        flags = f"-m {self.model} -p 512 -n 128 -t 3 -b 512 -ub 512 -r 1 -o json"
        self.assertEqual(first, f"shoal bench {flags}")
        self.assertEqual(second, f"peer {flags} -rtr 1 -fa on")

    def test_engine_may_have_its_own_number_of_threads(self):
        self.compare("-r", "1", "-t", "2", "--shoal-bench", f"two={self.folder}/shoal,--devices CPU0,CPU1 -t 1")
        self.assertTrue(self.calls.read_text().splitlines()[1].endswith("-o json --devices CPU0,CPU1 -t 1"))
        self.assertEqual(self.calls.read_text().splitlines()[1].count("-t "), 1)

    def test_table_has_medians_and_ratios_of_rounds(self):
        out, _ = self.compare("-r", "3", "--llama-bench", f"peer={self.peer}", "--bandwidth", "0.1")
        share = [f"{rate * (1 << 20) / 1e8:.2f}" for rate in (10, 12, 16, 20)]
        self.assertEqual(
            out.splitlines(),
            [
                "- shoal: commit shoal-commit, threads: 2",
                "- peer: commit peer-commit, threads: 2",
                "",
                "| model | test | engine | t/s | smallest - largest | shoal / engine | smallest - largest"
                " | of read bandwidth | smallest - largest |",
                "|---|---|---|---|---|---|---|---|---|",
                "| model | pp512 | shoal | 120.0 | 100.0 - 140.0 |  |  |  |  |",
                "| model | pp512 | peer | 50.0 | 50.0 - 50.0 | 2.40 | 2.00 - 2.80 |  |  |",
                f"| model | tg128 | shoal | 10.0 | 10.0 - 10.0 |  |  | {share[0]} | {share[0]} - {share[0]} |",
                "| model | tg128 | peer | 16.0 | 12.0 - 20.0 | 0.62 | 0.50 - 0.83"
                f" | {share[2]} | {share[1]} - {share[3]} |",
            ],
        )

    def test_csv_and_json_have_the_same_numbers(self):
        arguments = ("-r", "2", "--llama-bench", f"peer={self.peer}", "-o")
        rows = list(csv.DictReader(io.StringIO(self.compare(*arguments, "csv")[0])))
        self.calls.unlink()
        data = json.loads(self.compare(*arguments, "json")[0])
        self.assertEqual(data["threads"], compare.usable_processors())
        self.assertEqual(list(data["engines"]), ["shoal", "peer"])
        self.assertEqual([row["samples_ts"] for row in data["results"]], [[100, 120], [50, 50], [10, 10], [20, 16]])
        self.assertEqual(
            [(row["test"], row["engine"]) for row in rows],
            [("pp512", "shoal"), ("pp512", "peer"), ("tg128", "shoal"), ("tg128", "peer")],
        )
        for flat, full in zip(rows, data["results"]):
            del full["samples_ts"]
            self.assertEqual(flat, {key: "" if value is None else str(value) for key, value in full.items()})
        self.assertEqual(
            (rows[1]["ratio_least"], rows[1]["ratio_median"], rows[1]["ratio_most"]), ("2.0", "2.2", "2.4")
        )

    def test_bandwidth_is_measured_in_each_round(self):
        program = self.program("bandwidth", f"echo bandwidth >> {self.calls}; echo header; echo '0.05 GB/s'; echo")
        out, _ = self.compare("-r", "2", "-o", "json", "--bandwidth-program", program)
        self.assertEqual(self.order(), ["bandwidth", "shoal", "bandwidth", "shoal"])
        self.assertEqual(json.loads(out)["bandwidth_gbs"], {"model": [0.05, 0.05]})
        self.assertAlmostEqual(json.loads(out)["results"][1]["bandwidth_share_median"], 10 * (1 << 20) / 5e7, places=5)

    def test_messages_between_rows_are_skipped(self):
        text = """\
printf '[\\n==== Repacked {97} tensors\\n  {"n_prompt": 512, "n_gen": 0, "avg_ts": 50.5, "samples_ts": [ 50.5 ]\\n  }'
printf ',\\nloaded\\n  {"n_prompt": 0, "n_gen": 128, "cuda_params": {}, "avg_ts": 4}\\n]\\n'"""
        out, _ = self.compare("-r", "1", "--llama-bench", f"noisy={self.program('noisy', text)}")
        self.assertIn("| model | pp512 | noisy | 50.5 |", out)
        self.assertIn("| model | tg128 | noisy | 4.0 |", out)

    def test_prefix_precedes_every_run(self):
        prefix = self.program("prefix", f'echo "prefix" >> {self.calls}; exec "$@"')
        self.compare("-r", "1", "--llama-bench", f"peer={self.peer}", "--prefix", f"{prefix} env")
        self.assertEqual(self.order(), ["prefix", "shoal", "prefix", "peer"])

    def test_models_with_same_name_are_distinguished(self):
        (self.folder / "other").mkdir()
        other = self.write("other/model.gguf", self.model.read_bytes())
        out, _ = self.compare("-r", "1", "-m", other)
        self.assertIn(f"| {other} | pp512 |", out)
        self.assertIn(f"| {self.model} | pp512 |", out)


class Failures(Folder):
    def setUp(self):
        super().setUp()
        self.engine("shoal", "100", "10")

    def test_crash_names_engine_and_keeps_finished_rounds(self):
        peer = self.engine("peer", "50", "5", '[ $n -lt 2 ] || { echo first >&2; echo "out of luck" >&2; exit 3; }')
        out, err = self.compare("-r", "3", "--llama-bench", f"peer={peer}", status=1)
        self.assertIn("| model | tg128 | peer | 5.0 | 5.0 - 5.0 | 2.00 | 2.00 - 2.00 |", out)
        self.assertIn("compare: not finished: model has 2 of 3 rounds", err)
        self.assertRegex(
            err.splitlines()[-1],
            r"^compare: peer on model.gguf: exited with status 3: out of luck \(command: .*/peer -m ",
        )

    def test_error_names_the_signal(self):
        peer = self.program("peer", "kill -SEGV $$")
        self.assertIn(
            "peer on model.gguf: was ended by SIGSEGV: no output", self.fails("--llama-bench", f"peer={peer}")
        )

    def test_reports_wrong_output(self):
        for text, words in (
            ("echo hello", "its output has no rate for pp512, tg128"),
            ("""echo '[{"n_prompt": 512, "n_gen": 0, "avg_ts": 1'""", "its output has no rate for pp512, tg128"),
            ("echo '[{}]'", "its output is not the JSON of llama-bench (KeyError('n_prompt'))"),
            ("""echo '{"n_prompt": 512, "n_gen": 0, "avg_ts": "fast"}'""", "its output is not the JSON"),
            ("""echo '[{"n_prompt": 512, "n_gen": 0, "avg_ts": 1}]'""", "its output has no rate for tg128; omit"),
            ("""echo '[{"n_prompt": 512, "n_gen": 0, "avg_ts": 0}]'""", "its output has no rate for pp512, tg128"),
        ):
            with self.subTest(text):
                peer = self.program("peer", text)
                self.assertIn(f"compare: peer on model.gguf: {words}", self.fails("--llama-bench", f"peer={peer}"))

    def test_missing_files_are_found_before_first_run(self):
        for arguments, words in (
            (
                ["-m", self.folder / "no.gguf"],
                "no.gguf: No such file or directory; scripts/make_model.py writes models",
            ),
            (["-m", self.write("bad.gguf", b"hello")], "bad.gguf: it is not a GGUF file"),
            (["--llama-bench", "peer"], "--llama-bench peer: expected NAME=PATH or NAME=PATH,ARGUMENTS"),
            (
                ["--llama-bench", "peer=/no/such"],
                "peer: no program /no/such; give the llama-bench of the engine's own build",
            ),
            (["--shoal", "/no/shoal"], "shoal: no program /no/shoal; build it: cmake --preset release"),
            (["--llama-bench", f"shoal={self.folder}/shoal"], "two engines have the same name: shoal, shoal"),
            (["--llama-bench", f"peer={self.folder}/shoal,-a 'b"], "peer: cannot read the arguments -a 'b: No closing"),
        ):
            with self.subTest(arguments):
                self.assertIn(words, self.fails(*arguments))
                self.assertFalse(self.calls.exists())

    def test_rejects_wrong_arguments(self):
        for arguments in (
            ["-r", "0"],
            ["-p", "0", "-n", "0"],
            ["-p", "-1"],
            ["-p", "x"],
            ["--bandwidth", "0"],
            ["-t", "0"],
        ):
            with self.subTest(arguments):
                self.compare(*arguments, status=2)
        self.assertIn("give a model with -m", self.compare(status=2, models=False)[1])

    def test_bandwidth_program_must_print_number(self):
        for text in ("echo none", "true", "echo -1", "echo inf"):
            with self.subTest(text):
                program = self.program("bandwidth", text)
                self.assertIn("--bandwidth-program: its last line is", self.fails("--bandwidth-program", program))

    def test_ctrl_c_prints_finished_rounds(self):
        peer = self.engine("peer", "50", "5", f"[ $n -lt 1 ] || {{ touch {self.folder}/waiting; exec sleep 100000; }}")
        command = [
            sys.executable,
            SCRIPT,
            "--shoal",
            self.folder / "shoal",
            "--no-llama-cpp",
            "-m",
            self.model,
            "--llama-bench",
            f"peer={peer}",
        ]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        while not (self.folder / "waiting").exists() and process.poll() is None:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate()
        self.assertEqual(process.returncode, 130, err)
        self.assertIn("| model | tg128 | peer | 5.0 | 5.0 - 5.0 | 2.00 | 2.00 - 2.00 |", out)
        self.assertIn("compare: not finished: model has 1 of 5 rounds", err)
        self.assertNotIn("Traceback", err)


class Batched(Folder):
    """Tests the comparison of many sequences."""

    def setUp(self):
        super().setUp()
        self.program("shoal", self.seconds("shoal", "4", "8"))
        self.peer = self.program("peer", self.seconds("peer", "8", "16 - 4 * n"))

    def seconds(self, name, prompt, generate, before=""):
        """A program that records its calls. In the shell expressions for its seconds, $n is the number of past calls."""
        return f"""\
echo "{name} $*" >> {self.calls}
n=$(($(grep -c "^{name} " {self.calls}) - 1))
{before}
echo "loading" >&2
printf 'main: n_kv_max\\n[{{"pp": 1, "t_pp": %d, "t_tg": %d}}]\\n' $(({prompt})) $(({generate}))"""

    def batched(self, *arguments, status=0, models=True):
        """Returns stdout and stderr of the script."""
        words = ["batched.py", "--shoal", self.folder / "shoal", "--batched-bench", self.peer, *arguments]
        words += ["-m", self.model] if models else []
        out, err = io.StringIO(), io.StringIO()
        found = 0
        with (
            mock.patch.object(sys, "argv", list(map(str, words))),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                batched.main()
            except SystemExit as ended:
                found = ended.code
                if isinstance(found, str):
                    print(found, file=sys.stderr)
                    found = 1
        self.assertEqual(found, status, err.getvalue())
        return out.getvalue(), err.getvalue()

    def test_programs_get_same_work(self):
        self.batched("-r", "1", "-np", "8", "-p", "300", "-n", "64", "-t", "3", "-ub", "256",
                     "--batched-bench", f"{self.peer},-fa on", "--shoal", f"{self.folder}/shoal,--devices CPU0")
        first, second = self.calls.read_text().splitlines()
        flags = "-t 3 -b 2048 -ub 256"
        self.assertEqual(
            first, f"shoal bench -m {self.model} -np 8 -p 300 -n 65 {flags} -r 1 -o jsonl --devices CPU0"
        )
        self.assertEqual(
            second,
            f"peer -m {self.model} -npl 8 -npp 300 -ntg 64 {flags} -c 4096 -ngl 0 --output-format jsonl -fa on",
        )

    def test_rate_of_generation_excludes_tokens_of_first_phase(self):
        self.program("shoal", """echo '{"t_pp": 4, "t_tg": 8, "speed_tg": 5.5}'""")
        (row,) = json.loads(self.batched("-r", "1", "-np", "4", "-n", "64", "-o", "json")[0])
        self.assertEqual(row["s_tg_shoal"], 5.5)

    def test_order_alternates(self):
        self.program("peer", self.seconds("peer", "8", "16"))
        self.batched("-r", "2", "-np", "1,4,8")
        self.assertEqual(self.order(), ["shoal", "peer", "peer", "shoal"] * 3)

    def test_table_has_medians_and_ratios(self):
        out, err = self.batched("-r", "3", "-np", "16", "-p", "256", "-n", "64")
        self.assertEqual(
            out.splitlines(),
            [
                "| model | B | S_PP shoal | S_PP llama.cpp | S_PP ratio | S_TG shoal | S_TG llama.cpp | S_TG ratio"
                " | S shoal | S llama.cpp | S ratio |",
                "|---|---|---|---|---|---|---|---|---|---|---|",
                "| model | 16 | 1024 | 512.0 | 2.00 (2.00) | 128.0 | 85.3 | 1.50 (1.00) | 426.7 | 256.0 | 1.67 (1.33) |",
            ],
        )
        self.assertIn("batched: model, 16 sequences, round 3 of 3: shoal\n", err)

    def test_csv_and_json_have_the_same_numbers(self):
        rows = list(csv.DictReader(io.StringIO(self.batched("-r", "2", "-np", "2,4", "-o", "csv")[0])))
        self.calls.unlink()
        full = json.loads(self.batched("-r", "2", "-np", "2,4", "-o", "json")[0])
        self.assertEqual([(row["sequences"], row["rounds"]) for row in rows], [("2", "2"), ("4", "2")])
        for row, one in zip(rows, full):
            samples = one.pop("samples")
            self.assertEqual(row, {name: str(value) for name, value in one.items()})
            self.assertEqual([round(rates["S_TG"], 6) for rates in samples["shoal"]], [one["s_tg_shoal"]] * 2)

    def test_crash_keeps_finished_rounds(self):
        self.program("peer", self.seconds("peer", "8", "16", "[ $n -lt 3 ] || { echo out of luck >&2; exit 3; }"))
        out, err = self.batched("-r", "2", "-np", "1,4", status=1)
        self.assertEqual(len(out.splitlines()), 4)
        self.assertIn("batched: not finished: model with 4 sequences has 1 of 2 rounds", err)
        self.assertRegex(err.splitlines()[-1], r"^batched: llama.cpp on model.gguf: exited with status 3: out of luck")

    def test_reports_wrong_output(self):
        for text in ("echo hello", """echo '{"t_pp": 1}'""", """echo '{"t_pp": 0, "t_tg": 1}'""",
                     """echo '{"t_pp": 1, "t_tg": 1} {"t_pp": 1, "t_tg": 1}'"""):
            with self.subTest(text):
                self.program("peer", text)
                err = self.batched(status=1)[1]
                self.assertIn("batched: llama.cpp on model.gguf: its output is not one JSON object with t_pp and t_tg", err)

    def test_missing_files_are_found_before_first_run(self):
        for arguments, words in (
            (["-m", self.folder / "no.gguf"], "no.gguf: no such file; scripts/make_model.py writes models"),
            (["--shoal", "/no/shoal"], "shoal: no program /no/shoal; build it: cmake --preset release"),
            (["--batched-bench", "/no/peer"], "llama.cpp: no program /no/peer; give the path of llama-batched-bench"),
        ):
            with self.subTest(arguments):
                self.assertIn(words, self.batched(*arguments, status=1)[1])
                self.assertFalse(self.calls.exists())
        self.assertIn("give a model with -m", self.batched(status=2, models=False)[1])
        self.batched("-np", "0", status=2)

    def test_signals_print_finished_rounds(self):
        wait = f"[ $n -lt 2 ] || {{ touch {self.folder}/waiting; exec sleep 100000; }}"
        self.program("peer", self.seconds("peer", "8", "16", wait))
        command = [sys.executable, SCRIPT.with_name("batched.py"), "-m", self.model, "-np", "1,4", "-r", "2"]
        command += ["--shoal", self.folder / "shoal", "--batched-bench", self.peer]
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with self.subTest(number):
                self.calls.unlink(missing_ok=True)
                (self.folder / "waiting").unlink(missing_ok=True)
                process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                while not (self.folder / "waiting").exists() and process.poll() is None:
                    time.sleep(0.01)
                process.send_signal(number)
                out, err = process.communicate()
                self.assertEqual(process.returncode, status, err)
                self.assertEqual(len(out.splitlines()), 4, out)
                self.assertIn("1 sequences has 1 of 2 rounds, model with 4 sequences has 1 of 2 rounds", err)
                self.assertNotIn("Traceback", err)

    def compiled(self, wanted=False, sources=True):
        """Runs the compilation with substitutes for Python and cmake."""
        package = self.folder / "llama_cpp_python-1.0.tar.gz"
        inner = self.folder / "llama_cpp_python-1.0" / ("vendor/llama.cpp" if sources else "none")
        inner.mkdir(parents=True, exist_ok=True)
        subprocess.run(["tar", "czf", package, "-C", self.folder, "llama_cpp_python-1.0"], check=True)
        text = f"""\
echo "$0 $*" >> {self.calls}
case "$*" in
  *"-m venv"*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
  *"pip download"*) cp {package} {self.folder}/build ;;
  *--build*) mkdir -p "$2/bin"; touch "$2/bin/llama-batched-bench" ;;
esac"""
        (self.folder / "bin").mkdir(exist_ok=True)
        self.program("bin/cmake", text)
        with (
            mock.patch.object(sys, "executable", str(self.program("python", text))),
            mock.patch.dict(os.environ, {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "CMAKE_ARGS": "-DA=1"}),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            return environment.batched_bench(self.folder / "build", wanted, 3)

    def test_missing_program_is_compiled_for_this_cpu(self):
        build = self.folder / "build"
        self.assertEqual(self.compiled(), build / "build/bin/llama-batched-bench")
        _, download, configure, compile_ = self.calls.read_text().splitlines()
        self.assertIn(f"{build}/bin/python -m pip download --no-deps", download)
        source = build / "llama_cpp_python-1.0/vendor/llama.cpp"
        self.assertIn(f"bin/cmake -S {source} -B {build}/build -DCMAKE_BUILD_TYPE=Release", configure)
        self.assertIn("-DA=1 -DGGML_NATIVE=ON", configure)
        self.assertIn(f"bin/cmake --build {build}/build --target llama-batched-bench -j 3", compile_)
        self.compiled()
        self.assertEqual(len(self.calls.read_text().splitlines()), 4, "nothing is compiled again")
        self.compiled(wanted=True)
        self.assertEqual(len(self.calls.read_text().splitlines()), 8)

    def test_reports_package_without_sources(self):
        with self.assertRaisesRegex(CompareError, "the package has no sources of llama.cpp"):
            self.compiled(sources=False)


class Environment(Folder):
    """Tests the installation of the llama.cpp package. Shell scripts replace Python."""

    def python(self, about='echo \'{"build_version": "package 1"}\'', pip="true"):
        """A substitute for Python. Its `-m venv` makes a copy of the substitute."""
        text = f"""\
echo "$CMAKE_ARGS|$*" >> {self.calls}
case "$*" in
  *"-m venv"*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
  *pip*) {pip} ;;
  *--about*) {about} ;;
esac"""
        return self.program("python", text)

    def engine_of(self, wanted=False, **how):
        with mock.patch.object(sys, "executable", str(self.python(**how))), contextlib.redirect_stderr(io.StringIO()):
            return environment.llama_cpp_engine(self.folder / "venv", wanted)

    def test_missing_package_is_built_for_this_cpu(self):
        with mock.patch.dict(os.environ, {"CMAKE_ARGS": "-DGGML_BLAS=ON"}):
            engine = self.engine_of()
        self.assertEqual(engine.command, [f"{self.folder}/venv/bin/python", str(environment.BENCH)])
        installed = [line for line in self.calls.read_text().splitlines() if "pip install" in line]
        self.assertEqual(len(installed), 1)
        self.assertTrue(installed[0].startswith("-DGGML_BLAS=ON -DGGML_NATIVE=ON|"), installed[0])
        self.assertIn("--no-binary llama-cpp-python", installed[0])
        self.calls.unlink()
        self.engine_of()
        self.assertNotIn("pip", self.calls.read_text())
        self.engine_of(wanted=True)
        self.assertIn("pip install", self.calls.read_text())

    def test_reports_failed_installation(self):
        with self.assertRaisesRegex(
            CompareError,
            "^installing llama-cpp-python failed: ERROR: no compiler; the installation "
            "needs a C\\+\\+ compiler and the network; full output: .*/venv/setup.log$",
        ):
            self.engine_of(pip="echo ERROR: no compiler; echo bye >&2; exit 1")

    def test_reports_environment_without_package(self):
        (self.folder / "venv").mkdir()
        with self.assertRaisesRegex(CompareError, "venv is not a virtual environment; install it with --setup"):
            self.engine_of()
        with self.assertRaisesRegex(
            CompareError, "No module named llama_cpp.*; install it with --setup, or give another --venv$"
        ):
            self.engine_of(wanted=True, about="echo No module named llama_cpp >&2; exit 1")


class Bytes(Folder):
    U32, STRING, ARRAY = 4, 8, 9

    def per_token(self, tensors, metadata=(), **more):
        return gguf_bytes.read_weights(str(self.write("x.gguf", gguf(tensors, metadata, **more)))).bytes_per_token()

    def test_counts_tied_embedding(self):
        self.assertEqual(self.per_token([("token_embd.weight", 640), ("blk.0.attn_q.weight", 320)]), 960)

    def test_does_not_count_untied_embedding(self):
        self.assertEqual(self.per_token([("token_embd.weight", 640), ("a.weight", 320), ("output.weight", 32)]), 352)

    def test_counts_only_used_experts(self):
        words = struct.pack("<IQ", self.STRING, 2) + string("a") + string("b")
        metadata = [
            ("general.architecture", self.STRING, string("llama")),
            ("tokenizer.words", self.ARRAY, words),
            ("llama.expert_count", self.U32, struct.pack("<I", 8)),
            ("numbers", self.ARRAY, struct.pack("<IQ3I", 4, 3, 1, 2, 3)),
            ("llama.expert_used_count", self.U32, struct.pack("<I", 2)),
        ]
        tensors = [("blk.0.ffn_up_exps.weight", 6400), ("blk.0.attn_q.weight", 320)]
        self.assertEqual(self.per_token(tensors, metadata), 1600 + 320)

    def test_supports_custom_alignment(self):
        metadata = [("general.alignment", self.U32, struct.pack("<I", 128))]
        self.assertEqual(
            self.per_token([("token_embd.weight", 640), ("output.weight", 256)], metadata, alignment=128), 256
        )

    def test_rejects_truncated_files(self):
        whole = gguf([("a.weight", 64)], [("general.architecture", self.STRING, string("llama"))])
        for size in range(whole.index(b"a.weight") + 8 + 24):
            with self.subTest(size), self.assertRaisesRegex(
                CompareError, "^cannot use .*: it .*make_model.py writes models$"
            ):
                gguf_bytes.read_weights(str(self.write("cut.gguf", whole[:size])))

    def test_counts_bytes_of_the_small_model(self):
        # The embedding (1024 x 256 values in Q8_0) is subtracted. The head is a separate tensor.
        self.assertEqual(gguf_bytes.read_weights(str(TINY)).bytes_per_token(), 5_583_872 - 1024 * 256 * 34 // 32)


class Programs(Folder):
    """Tests real programs with the small model."""

    def measured(self, *arguments):
        command = [
            sys.executable,
            SCRIPT,
            "-m",
            TINY,
            "-p",
            "24",
            "-n",
            "6",
            "-d",
            "0,16",
            "-t",
            "1",
            "-r",
            "1",
            "-o",
            "json",
        ]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        data = json.loads(done.stdout)
        tests = [row["test"] for row in data["results"] if row["engine"] == "shoal"]
        self.assertEqual(tests, ["pp24", "tg6", "pp24 @ d16", "tg6 @ d16"])
        self.assertTrue(all(row["ts_median"] > 0 for row in data["results"]))
        return data

    @unittest.skipUnless("SHOAL_PROGRAM" in os.environ, "SHOAL_PROGRAM names no program")
    def test_measures_shoal(self):
        program = os.environ["SHOAL_PROGRAM"]
        data = self.measured(
            "--shoal", program, "--no-llama-cpp", "--shoal-bench", f"2x1={program},--devices CPU0,CPU1"
        )
        self.assertEqual(list(data["engines"]), ["shoal", "2x1"])
        self.assertIn("threads: 1", data["engines"]["shoal"])

    @unittest.skipUnless("SHOAL_PROGRAM" in os.environ, "SHOAL_PROGRAM names no program")
    def test_measures_many_sequences(self):
        peer = self.program("peer", """echo '{"t_pp": 1, "t_tg": 1}'""")
        command = [sys.executable, SCRIPT.with_name("batched.py"), "-m", TINY, "-np", "1,4", "-p", "24", "-n", "6"]
        command += ["-t", "1", "-r", "1", "-o", "json", "--batched-bench", peer, "--shoal", os.environ["SHOAL_PROGRAM"]]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        for row in json.loads(done.stdout):
            self.assertEqual(row["s_pp_llama.cpp"], row["sequences"] * 24)
            self.assertGreater(row["s_tg_shoal"], 0)

    @unittest.skipUnless("SHOAL_PROGRAM" in os.environ, "SHOAL_PROGRAM names no program")
    def test_f16_and_bf16_stay_precise_with_outliers(self):
        script = SCRIPT.with_name("outliers.py")
        flags = ["--types", "f16,bf16", "--shoal", os.environ["SHOAL_PROGRAM"], "--no-llama-cpp"]
        done = subprocess.run([sys.executable, script, *flags], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[4:]]
        self.assertEqual([row[0] for row in rows], ["f16", "f16", "bf16", "bf16"])
        for kind, tokens, *errors in rows:
            self.assertLess(max(map(float, errors)), 1e-6, f"{kind}, {tokens}")

    @unittest.skipUnless(
        {"SHOAL_PROGRAM", "SHOAL_PEERS_VENV"} <= os.environ.keys(), "SHOAL_PEERS_VENV names no environment"
    )
    def test_measures_llama_cpp(self):
        data = self.measured("--shoal", os.environ["SHOAL_PROGRAM"], "--venv", os.environ["SHOAL_PEERS_VENV"])
        self.assertRegex(data["engines"]["llama.cpp"], r"^llama-cpp-python [\d.]+, ggml ")


if __name__ == "__main__":
    unittest.main()
