"""Tests scripts/measuring: runs of the program, journals, tables and charts."""
import contextlib
import fcntl
import importlib.util
import io
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import textwrap
import time
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs start with SIGINT ignored
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))

import hours  # noqa: E402
from measuring import arguments, interference, text  # noqa: E402
from measuring.journal import Journal, JournalError, read  # noqa: E402
from measuring.program import ProgramError, Shoal, ratio_text  # noqa: E402


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def program(self, body: str) -> pathlib.Path:
        path = self.folder / "shoal"
        path.write_text(f"#!{sys.executable}\nimport json, os, sys, time\n{textwrap.dedent(body)}")
        path.chmod(0o755)
        return path


class ArgumentsTest(unittest.TestCase):
    def test_wrong_flag_gives_one_line(self):
        parser = arguments.Parser(prog="measure.py")
        parser.add_argument("-r", "--rounds", type=int, choices=[1, 2], required=True, help="x" * 500)
        parser.add_argument("--more", type=arguments.words)
        for line, message in (("", "are required: -r"), ("-r x", "argument -r/--rounds: invalid int value: 'x'"),
                              ("-r 3", "invalid choice: 3"), ("-r 1 --mo a", "unrecognized arguments: --mo a"),
                              ("-r 1 --more 'x", "argument --more: 'x: a quotation is not closed"),
                              ("-r 1 a\nb", "unrecognized arguments: a"),
                              ("--round 1", "unrecognized arguments: --round 1; did you mean --rounds?"),
                              ("--more a", "are required: -r")):
            stderr = io.StringIO()
            with self.subTest(line), contextlib.redirect_stderr(stderr), self.assertRaises(SystemExit) as ended:
                parser.parse_args(line.split(" ") if line else [])
            self.assertEqual(ended.exception.code, 2)
            self.assertEqual(len(stderr.getvalue().splitlines()), 1, stderr.getvalue())
            self.assertTrue(stderr.getvalue().startswith("measure.py: error: "), stderr.getvalue())
            self.assertTrue(stderr.getvalue().endswith("; see measure.py --help\n"), stderr.getvalue())
            self.assertIn(message, stderr.getvalue())
        self.assertEqual(parser.parse_args(["-r", "1", "--more", "-a 'b c'"]).more, ["-a", "b c"])


class ProcessorsTest(InFolder):
    """Quotas of control groups in a temporary folder."""

    def write(self, path: str, words: str) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(words + "\n")

    def usable(self, *groups: str) -> int:
        self.write("own", "\n".join(groups))
        with unittest.mock.patch.object(os, "sched_getaffinity", return_value=set(range(8))):
            return interference.usable_processors(str(self.folder / "own"), str(self.folder / "two"))

    def test_smallest_quota_is_rounded_up(self):
        group = "0::/outer/inner"
        self.assertEqual(self.usable(group), 8)
        for path, words, found in (("outer/inner", "max 100000", 8), ("outer/inner", "450000 100000", 5),
                                   ("outer", "150000 100000", 2), (".", "50000 100000", 1)):
            self.write(f"two/{path}/cpu.max", words)
            self.assertEqual(self.usable("1:cpuset:/other", group), found)
        self.write("two/cpu.max", "1600000 100000")
        self.assertEqual(self.usable("0::/"), 8)

    def test_affinity_limits_processors_without_control_groups(self):
        none = str(self.folder / "none")
        self.assertEqual(interference.usable_processors(none, none), len(os.sched_getaffinity(0)))


class OthersTest(InFolder):
    STAT = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 50 60 4 5 6 7 8\ncpu1 10 0 0 50 60 0 0 0 0 0\nintr 1 2\n"

    def test_waiting_does_not_count_as_work(self):
        self.assertEqual(interference.busy_seconds(self.STAT, {0}, 10), 2.1)
        self.assertEqual(interference.busy_seconds(self.STAT, {0, 1}, 10), 3.1)
        self.assertIsNone(interference.busy_seconds(self.STAT, {2}, 10))
        self.assertIsNone(interference.busy_seconds("cpu0 1 2", {0}, 10))

    def test_busy_program_is_reported(self):
        others = interference.Others()
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
            with others.watched():
                time.sleep(1)
            busy.kill()
        self.assertGreater(others.cores[0], 0.2)
        self.assertRegex(others.line(), r"^other programs kept up to \d\.\d of \d+ cores busy during 1 of 1 runs: measure ")

    def test_own_children_and_idle_machine_do_not_count(self):
        # `used`: CPU seconds per second that other programs use. `found`: number of cores that the script reports.
        for used, found in ((0.1, 0), (0.9, 0.9)):
            others = interference.Others()
            clock, seconds = iter((100.0, 101.0)), iter((7.0, 7.0 + used))
            with (unittest.mock.patch.object(interference.time, "monotonic", lambda: next(clock)),
                  unittest.mock.patch.object(interference, "_others_seconds", lambda: next(seconds))):
                with others.watched():
                    pass
            self.assertAlmostEqual(others.cores[0], found)
            self.assertEqual(others.line() == "", found == 0)
        own = "import time; end = time.process_time() + 1\nwhile time.process_time() < end: pass"
        with (unittest.mock.patch.object(interference, "_lines", lambda path: self.STAT.splitlines()),
              unittest.mock.patch.object(os, "sched_getaffinity", lambda process: {0, 1})):
            before = interference._others_seconds()
            subprocess.run([sys.executable, "-c", own], check=True)
            after = interference._others_seconds()
        self.assertLess(after - before, -0.9, "what children used is taken off")


class ProgramTest(InFolder):
    def fails(self, call) -> ProgramError:
        with self.assertRaises(ProgramError) as caught:
            call()
        self.assertEqual(len(str(caught.exception).splitlines()), 1)
        return caught.exception

    def test_bench_returns_its_rows(self):
        path = self.program("""
            print(json.dumps({"arguments": sys.argv[1:], "a": os.environ["A"], "b": os.environ["B"]}))
            print(json.dumps({"test": "tg64"}))
        """)
        rows = Shoal(path, {"A": 1, "B": 2}).bench("m.gguf", "CPU0,CPU1", generate=64, tensor_split=[3, 0.25],
                                                   threads=2, repetitions=3, extra=["--comm", "host"], environment={"B": "x"})
        self.assertEqual(" ".join(rows[0]["arguments"]), "bench -m m.gguf --devices CPU0,CPU1 -p 0 -n 64 -d 0 -r 3 "
                         "-o jsonl -t 2 --tensor-split 3,0.25 --comm host")
        self.assertEqual((rows[0]["a"], rows[0]["b"], rows[1]["test"]), ("1", "x", "tg64"))

    def test_failures_give_one_line(self):
        path = self.program("""
            what = sys.argv[sys.argv.index("-m") + 1]
            if what == "message": sys.exit("shoal: note: so\\nshoal: there is no m.gguf; give another")
            if what == "silent": sys.exit(3)
            if what == "killed": os.kill(os.getpid(), 9)
            if what == "text": print("| a table |")
        """)
        shoal = Shoal(path)
        error = self.fails(lambda: shoal.bench("message", "CPU0"))
        self.assertEqual((str(error), error.code), ("there is no m.gguf; give another", 1))
        self.assertIn("exit code 3", str(self.fails(lambda: shoal.bench("silent", "CPU0"))))
        self.assertIn("ended by SIGKILL", str(self.fails(lambda: shoal.bench("killed", "CPU0"))))
        self.assertIn("wrote no JSON object; its output: | a table |", str(self.fails(lambda: shoal.bench("text", "CPU0"))))
        self.assertIn("has measured nothing", str(self.fails(lambda: shoal.bench("nothing", "CPU0"))))
        self.assertIn("wrote no JSON object; its output: nothing", str(self.fails(lambda: shoal.plan("nothing", "CPU0"))))
        self.assertIn("check --shoal", str(self.fails(lambda: Shoal(self.folder / "none"))))

    def test_launcher_gets_flags_and_variables(self):
        path = self.program("""
            if sys.argv[1] == "-n":
                own = {name: os.environ[name] for name in ("PATH",)}
                os.execvpe(sys.argv[3], sys.argv[3:], own)
            if sys.argv[1] == "fails":
                sys.exit("shoal: error: process 1 (b): no\\nshoal: error: process 1 (b): no\\n-----\\nmpirun: it failed\\n-----")
            if sys.argv[1] == "lacks": sys.exit("-----\\nThere are not enough slots\\nSee the manual\\n-----")
            print(json.dumps({"arguments": sys.argv[1:], **{name: os.environ.get(name) for name in ("A", "B", "SHOAL_C", "D")}}))
        """)
        shoal = Shoal(path, {"A": 1}).started_by([path, "-n", 2])
        with unittest.mock.patch.dict(os.environ, {"SHOAL_C": "3", "D": "4"}):
            found = shoal.json(["x"], environment={"B": "2"})
        self.assertEqual(found, {"arguments": ["x"], "A": "1", "B": "2", "SHOAL_C": "3", "D": None})
        self.assertEqual(str(self.fails(lambda: shoal.run(["fails"]))), "process 1 (b): no")
        self.assertEqual(str(self.fails(lambda: shoal.run(["lacks"]))), "There are not enough slots")
        self.assertEqual(Shoal(path).launcher, [])

    def test_timeout_kills_program(self):
        path = self.program("""
            open(sys.argv[2], "w").write(str(os.getpid()))
            open(sys.argv[1], "w").close()
            time.sleep(1e6)
        """)
        begun = self.folder / "begun"
        number = self.folder / "number"
        with hours.hours_pass_while(begun):
            error = self.fails(lambda: Shoal(path).run([begun, number], timeout=3600))
        self.assertEqual((str(error), error.code), ("shoal did not end within 3600 s", None))
        with self.assertRaises(ProcessLookupError):
            os.kill(int(number.read_text()), 0)
        error = self.fails(lambda: Shoal(path).run([begun, number], timeout=0.01))
        self.assertEqual(str(error), "shoal did not end within 0.01 s")

    def test_signals_and_death_kill_program(self):
        path = self.program("""
            open(sys.argv[1] + ".new", "w").write(str(os.getpid()))
            os.rename(sys.argv[1] + ".new", sys.argv[1])
            time.sleep(1e6)
        """)
        script = ("import sys; sys.path.insert(0, sys.argv[1])\n"
                  "from measuring.program import *\n"
                  "try:\n"
                  "    with signals_stop(): Shoal(sys.argv[2]).run([sys.argv[3]])\n"
                  "except Stopped as stopped: sys.exit(stopped.code)\n")
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)):
            with self.subTest(number):
                pid = self.folder / f"pid{number}"
                parent = subprocess.Popen([sys.executable, "-c", script, ROOT / "scripts", path, pid])
                wait_for(pid.exists)
                parent.send_signal(number)
                self.assertEqual(parent.wait(), code)
                wait_for(lambda: not alive(int(pid.read_text())))

    def test_signal_during_fork_stops_run(self):
        """Python drops an exception that a signal handler raises in a fork callback. The run must still stop."""
        path = self.program("time.sleep(1e6)")
        script = ("import os, signal, sys\nfrom measuring.program import Shoal, Stopped, signals_stop\n"
                  "os.register_at_fork(after_in_parent=lambda: signal.raise_signal(signal.SIGINT))\n"
                  "try:\n"
                  "    with signals_stop(): Shoal(sys.argv[1]).run([])\n"
                  "except Stopped as stopped: sys.exit(stopped.code)\n")
        done = subprocess.run([sys.executable, "-c", script, str(path)], cwd=ROOT / "scripts", capture_output=True,
                              text=True)
        self.assertEqual(done.returncode, 130, done.stderr)

    def test_ratio_text_is_short(self):
        self.assertEqual(ratio_text([18, 6]), "18,6")
        self.assertEqual(ratio_text([0.75, 1 / 3]), "0.75,0.333333")


def alive(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition):
    while not condition():  # CTest ends the test if the condition never holds
        time.sleep(0.02)


class JournalTest(InFolder):
    SETTINGS = {"model": "m.gguf", "devices": ["CPU0", "CPU1"]}

    def open(self, **changes):
        return Journal.open(self.folder / "j.jsonl", "test", {**self.SETTINGS, **changes})

    def test_journal_resumes(self):
        for n in range(3):
            with self.open() as journal:
                self.assertEqual(journal.records, [{"n": i} for i in range(n)])
                journal.add({"n": n})

    def test_truncated_line_is_removed(self):
        with self.open() as journal:
            journal.add({"n": 1})
        whole = (self.folder / "j.jsonl").read_bytes()
        first = whole.index(b"\n") + 1
        for length in range(len(whole)):
            (self.folder / "j.jsonl").write_bytes(whole[:length])
            with self.open() as journal:
                self.assertEqual(journal.records, [])
                journal.add({"n": 2})
            self.assertEqual((self.folder / "j.jsonl").read_bytes(), whole[:first] + b'{"n":2}\n')

    def test_rejects_invalid_files(self):
        with self.open(), self.assertRaisesRegex(JournalError, "is in use by another run"):
            self.open()
        with self.assertRaisesRegex(JournalError, 'other settings: model was "m.gguf" and is "x"; remove it'):
            self.open(model="x")
        with self.assertRaisesRegex(JournalError, "is a journal of test, version 1, not of other"):
            Journal.open(self.folder / "j.jsonl", "other", self.SETTINGS)
        (self.folder / "j.jsonl").write_text("# Notes\nof mine\n")
        with self.assertRaisesRegex(JournalError, "j.jsonl:1: this is not a line of a journal"):
            self.open()
        self.assertEqual((self.folder / "j.jsonl").read_text(), "# Notes\nof mine\n")
        with self.assertRaisesRegex(JournalError, "cannot write .*: Is a directory"):
            Journal.open(self.folder, "test", {})
        with self.assertRaisesRegex(JournalError, "/dev/null is not a regular file"):
            Journal.open("/dev/null", "test", {})

    def test_other_files_are_left_unchanged(self):
        path = self.folder / "j.jsonl"
        with self.open():
            header = path.read_bytes()
        others = (b"no newline", b"{}", b"{}\n", b'{"journal":"test"}\n', b"\0", b"\n", b"\n" + header, header[1:],
                  header[:-3] + b"x", header[:20] + b"x" * 3_000_000, b"[" * 100_000 + b"\n", b'{"version": 1,\n "a": 2}')
        for data in others:
            with self.subTest(data[:30]):
                path.write_bytes(data)
                with self.assertRaisesRegex(JournalError, "j.jsonl:1: this is not a line of a journal; move the file"):
                    self.open()
                self.assertEqual(path.read_bytes(), data)
        for data in (header + b'{"n":1}\nmine\n{"n":', header.replace(b"test", b"else") + b'{"n":'):
            path.write_bytes(data)
            with self.assertRaises(JournalError):
                self.open()
            self.assertEqual(path.read_bytes(), data)

    def test_kill_loses_no_record(self):
        script = ("import sys; sys.path.insert(0, sys.argv[1])\n"
                  "from measuring.journal import Journal\n"
                  "journal = Journal.open(sys.argv[2], 'test', {})\n"
                  "for n in range(10**9): journal.add({'n': n}); print(n, flush=True)\n")
        path = self.folder / "k.jsonl"
        command = [sys.executable, "-c", script, ROOT / "scripts", path]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for _ in range(20):
            child.stdout.readline()
        child.kill()
        told = 20 + len(child.stdout.read().splitlines())
        child.wait()
        child.stdout.close()
        records = read(path)[1]
        self.assertGreaterEqual(len(records), told)
        self.assertEqual(records, [{"n": i} for i in range(len(records))])


@unittest.skipUnless(importlib.util.find_spec("rich"), "no rich")
class TextTest(unittest.TestCase):
    COLUMNS, ROWS = ["<split", "t/s"], [["18,6", "9.5"], ["3,1", "101.25"]]

    def test_table_without_terminal_is_plain_text(self):
        stream = io.StringIO()
        text.print_table(self.COLUMNS, self.ROWS, stream, best=1)
        self.assertEqual(stream.getvalue(), "split     t/s\n18,6      9.5\n3,1    101.25\n")
        self.assertEqual(text.markdown_table(self.COLUMNS, self.ROWS),
                         "| split | t/s |\n| --- | --: |\n| 18,6 | 9.5 |\n| 3,1 | 101.25 |")

    def test_progress_without_terminal_prints_only_messages(self):
        stream = io.StringIO()
        with text.progress(3, stream) as progress:
            progress.show(1, "one")
            progress.say("[bold] is no markup")
        self.assertEqual(stream.getvalue(), "[bold] is no markup\n")

    def test_table_on_terminal_is_not_truncated(self):
        """Cells are not truncated on a narrow terminal."""
        master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 8, 0, 0))
        with os.fdopen(slave, "w") as stream, unittest.mock.patch.dict(os.environ, {"TERM": "xterm"}):
            text.print_table(self.COLUMNS, self.ROWS, stream, best=1)
            with text.progress(3, stream) as progress:
                progress.show(2, "[two]")
                progress.say("[bold] is no markup")
        seen = b""
        with contextlib.suppress(OSError), os.fdopen(master, "rb", buffering=0) as reader:  # a read error marks the end
            while piece := reader.read(4096):
                seen += piece
        seen = seen.decode()
        for words in ("101.25", "[bold] is no markup", "2/3", "[two]"):
            self.assertIn(words, seen)


@unittest.skipUnless(importlib.util.find_spec("matplotlib"), "no matplotlib")
class ChartsTest(InFolder):
    def draw(self, name: str) -> bytes:
        from measuring import charts
        figure, axes = charts.figure("Speed by share", "share of CPU0", "tokens/s")
        charts.series(axes, 0, [0, 1, 2], [3, 5, 4], "measured", error=[0.1, 0.2, 0.1])
        charts.series(axes, 1, [0, 1, 2], [3.5, 4.5, 4], "predicted")
        axes.legend()
        charts.save(figure, self.folder / name)
        return (self.folder / name).read_bytes()

    def test_same_data_gives_same_bytes(self):
        self.assertEqual(self.draw("a.svg"), self.draw("a.svg"))
        svg = self.draw("a.svg").decode()
        for words in ("Speed by share", "tokens/s", "predicted"):
            self.assertIn(f">{words}</text>", svg)
        self.assertNotIn("dc:date", svg)
        self.assertLess(len(svg), 30_000)

    def test_gaps_between_points_are_dashed(self):
        from measuring import charts
        _, axes = charts.figure("", "", "")
        charts.series(axes, 0, [0, 1, 2, 12, 24], [5, 4, 3, 2, 1], "measured", nearest=1)
        joined = [line for line in axes.lines if len(line.get_xdata()) == 2]
        solid = [list(line.get_xdata()) for line in joined if line.get_linestyle() == "-"]
        dashed = [list(line.get_xdata()) for line in joined if line.get_linestyle() == "--"]
        self.assertEqual((solid, dashed), ([[0, 1], [1, 2]], [[2, 12], [12, 24]]))
        self.assertEqual([line.get_linestyle() for line in axes.lines if len(line.get_xdata()) == 5], ["None"])
        labels = axes.get_legend_handles_labels()[1]
        self.assertEqual(sorted(labels), ["measured", "no values between"])

    def test_rejects_invalid_files(self):
        from measuring import charts
        with self.assertRaisesRegex(charts.ChartError, "ends in .svg, not '.bmp'"):
            charts.check("a.bmp")
        with self.assertRaisesRegex(charts.ChartError, "cannot write .*: No such file"):
            self.draw("none/a.svg")


class PythonTest(InFolder):
    def test_missing_packages_give_one_line(self):
        code = f"import sys; sys.path.insert(0, {str(ROOT / 'scripts')!r})\nfrom measuring import python\n" \
               "python.use_packages('x', 'sys', 'no_such_package', 'nor_this')\n"
        script = self.folder / "x.py"
        script.write_text(code)
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, "x: the Python packages no_such_package and nor_this are missing; "
                         "run scripts/install_python\n")


if __name__ == "__main__":
    unittest.main()
