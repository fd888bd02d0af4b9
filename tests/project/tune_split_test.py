"""Tests scripts/tune_split.py on a simulated machine with a known best split (fake_shoal.py). Without the packages of
scripts/requirements.txt, the test is skipped. tune_split_program_test.py uses the real program."""
import errno
import importlib.util
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts/tune_split.py"
FAKE = ROOT / "tests/project/fake_shoal.py"
if any(importlib.util.find_spec(name) is None for name in ("matplotlib", "rich")):
    print("skipped: run scripts/install_python")
    sys.exit(77)  # exit code that CTest treats as skipped

signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs start with SIGINT ignored
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))
import hours  # noqa: E402
import tune_split  # noqa: E402

UNITS = 24


def seconds(config, split, phase="generation"):
    speeds = config.get(f"{phase}_speeds", config["speeds"])
    return config.get("wait", 0.0) + max(part / sum(split) / speed for part, speed in zip(split, speeds))


def distance(a, b):
    return sum(abs(x - y) for x, y in zip(a, b)) // 2


class TuneSplit(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "model.gguf").write_bytes(b"GGUF")
        self.program = self.folder / "shoal"
        self.program.write_text(f"#!{sys.executable} -IS\n{FAKE.read_text()}")
        self.program.chmod(0o755)
        self.machine(speeds=[1, 3], wait=0.05)

    def machine(self, **config):
        self.config = {"units": UNITS, "log": str(self.folder / "log"), **config}
        (self.folder / "fake.json").write_text(json.dumps(self.config))

    def command(self, *arguments, devices="CPU0,CPU1"):
        return [sys.executable, SCRIPT, "-m", "model.gguf", "--devices", devices, "--shoal", self.program,
                *map(str, arguments)]

    def environment(self):
        others = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        return {**others, "FAKE_SHOAL": str(self.folder / "fake.json")}

    def run_script(self, *arguments, stdout="stdout", **options):
        """Runs the script in a fork of this process, which has already loaded the packages."""
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            self.be_script([str(one) for one in self.command(*arguments, **options)[1:]], stdout)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        stdout = (self.folder / stdout).read_text() if stdout == "stdout" else ""
        stderr = (self.folder / "stderr").read_text()
        return subprocess.CompletedProcess(arguments, code, stdout, stderr)

    def be_script(self, arguments, stdout):
        code = 1
        try:
            os.chdir(self.folder)
            os.environ.clear()
            os.environ.update(self.environment())
            sys.argv = arguments
            with (open(stdout, "w") as sys.stdout, open("stderr", "w") as sys.stderr,
                  hours.hours_pass_while(self.folder / "log.hangs")):
                try:
                    code = tune_split.main()
                except SystemExit as end:
                    code = end.code
                except BaseException:
                    traceback.print_exc()
        finally:
            os._exit(code)

    def tune(self, *arguments, **options):
        """The JSON output of a successful run."""
        done = self.run_script("--output", "json", "--chart", "none", *arguments, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def fails(self, words, *arguments, code=1, **options):
        done = self.run_script(*arguments, **options)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertIn(words, done.stderr.splitlines()[-1])
        self.assertNotIn("Traceback", done.stderr)
        return done

    def log(self):
        path = self.folder / "log"
        return path.read_text().splitlines() if path.exists() else []

    def again(self):
        for name in ("log", "model.split.json", "model.split.journal.jsonl"):
            (self.folder / name).unlink(missing_ok=True)

    def profile(self):
        return json.loads((self.folder / "model.split.json").read_text())


class SearchTest(TuneSplit):
    def best(self, wait=0.0, **config):
        config["wait"] = wait
        return min(((a, UNITS - a) for a in range(UNITS + 1)), key=lambda split: seconds(config, split))

    def test_finds_the_best_split_in_few_runs(self):
        """The search measures at most `most` splits, as many as an earlier search with Gaussian processes measured."""
        machines = ([1, 3], 0.05, 0.01, 6), ([3, 1], 0.0, 0.02, 6), ([1, 1], 0.3, 0.01, 5), ([1, 7], 0.1, 0.005, 6)
        for number, (speeds, wait, noise, most) in enumerate(machines):
            with self.subTest(speeds=speeds, wait=wait, noise=noise):
                self.again()
                self.machine(speeds=speeds, wait=wait, noise=noise, seed=number)
                tuned = self.tune()
                self.assertLessEqual(distance(tuned["best"]["split"], self.best(wait, speeds=speeds)), 1, tuned)
                self.assertLessEqual(tuned["trials"], most)
                self.assertLessEqual(tuned["runs"], most + 1, tuned)
                self.assertEqual(len(self.log()), tuned["runs"])
                self.assertTrue(tuned["complete"])

    def test_noise_needs_more_runs_but_not_more_splits(self):
        for seed, noise, run_noise in (0, 0.05, 0.02), (1, 0.05, 0.02), (3, 0.1, 0.2):
            with self.subTest(seed=seed):
                self.again()
                self.machine(speeds=[1, 3], wait=0.05, noise=noise, run_noise=run_noise, drift=0.003, seed=seed)
                done = self.run_script("--output", "json", "--chart", "none", "--tolerance", "0.02")
                tuned = json.loads(done.stdout)
                if noise < 0.1:  # with more noise, the profile may be refused
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertLessEqual(distance(tuned["best"]["split"], (6, 18)), 1, tuned)
                self.assertLessEqual(tuned["trials"], (UNITS + 1) / 3)
                self.assertLessEqual(tuned["runs"], 2 * (UNITS + 1) / 3)

    def test_trials_limit_number_of_splits(self):
        self.machine(speeds=[1, 3], wait=0.05)
        tuned = self.tune("--trials", 4)
        self.assertIn("4 splits have been measured (--trials); no other split is significantly", tuned["ended"])
        self.assertFalse(tuned["complete"])
        self.assertEqual(len(set(self.log())), 4)
        self.assertTrue(self.tune()["complete"])

    def test_noise_prevents_profile(self):
        self.machine(speeds=[1, 3], wait=0.05, noise=1.5, run_noise=1.5)
        done = self.fails("no profile, because the speed of the best split is uncertain by ", "--chart", "none")
        self.assertRegex(done.stdout, r"best: --tensor-split \d+,\d+; (\d+,\d+, )*\d+,\d+ may be better")
        self.assertFalse((self.folder / "model.split.json").exists())

    def test_reports_other_programs(self):
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
            self.machine(speeds=[1, 3], wait=0.05, seconds=0.5)
            done = self.run_script("--chart", "none", "--trials", "2")
            busy.kill()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"tune_split: other programs kept up to \d\.\d of \d+ cores busy during \d+ of ")

    def test_equivalent_splits_are_measured_once(self):
        for units, most in ((24, None), (8, 9), (5, 6)):
            with self.subTest(units=units):
                self.again()
                self.machine(speeds=[2, 3], wait=0.1, units=units)
                tuned = self.tune("--units", 24)
                splits = [tuple(trial["split"]) for trial in tuned["all"]]
                self.assertEqual(len(splits), len(set(splits)))
                layouts = [tuple(round(units * part / 24) for part in split[:1]) for split in splits]
                self.assertEqual(len(layouts), len(set(layouts)), splits)
                self.assertLessEqual(len(layouts), most or 25)
                # Several splits can be equally fast.
                fastest = min(seconds(self.config, (a, units - a)) for a in range(units + 1))
                found = round(units * tuned["best"]["split"][0] / 24)
                self.assertAlmostEqual(seconds(self.config, (found, units - found)), fastest)

    def test_search_starts_at_prediction(self):
        self.machine(speeds=[1, 3], wait=0.05, prediction=[1, 3.1])
        tuned = self.tune()
        self.assertEqual(self.log()[:2], ["6,18", "12,12"])
        self.assertEqual(tuned["best"]["split"], [6, 18])
        self.assertLessEqual(tuned["runs"], 6)
        self.assertEqual(self.profile()["prediction"]["tensor_split"], [1, 3.1])
        self.again()
        self.machine(speeds=[3, 1], wait=0.05, prediction=[1, 3])  # a wrong prediction
        self.assertEqual(self.tune()["best"]["split"], [18, 6])

    def test_finds_good_splits_for_three_and_four_devices(self):
        self.machine(speeds=[1, 3, 2], wait=0.05, noise=0.005)
        tuned = self.tune(devices="A,B,C")
        self.assertLessEqual(distance(tuned["best"]["split"], (4, 12, 8)), 1)
        self.again()
        self.machine(speeds=[1, 3, 2, 2], wait=0.05, noise=0.005, units=32)
        tuned = self.tune(devices="A,B,C,D")
        self.assertLess(seconds(self.config, tuned["best"]["split"]), 1.06 * seconds(self.config, (4, 12, 8, 8)))
        self.assertLessEqual(tuned["runs"], 20)

    def test_best_split_depends_on_objective(self):
        self.machine(speeds=[1, 1], generation_speeds=[1, 3], prompt_speeds=[3, 1], wait=0.02)
        best = {}
        for name, more in (("generation", []), ("prompt", []), ("mix", ["-p", "1000", "-n", "40"])):
            self.again()
            found = self.tune("--objective", name, *more)
            best[name] = found["best"]["split"][0]
            self.assertEqual(sorted({"prompt", "generation"} & set(found["best"])),
                             ["generation", "prompt"] if name == "mix" else [name])
        self.assertEqual((best["generation"], best["prompt"]), (6, 18))
        splits = [(a, 24 - a) for a in range(25)]
        time = {split[0]: 40 * seconds(self.config, split) + 1000 / 50 * seconds(self.config, split, "prompt")
                for split in splits}
        self.assertLessEqual(abs(best["mix"] - min(time, key=time.get)), 1)


class FailureTest(TuneSplit):
    def test_failed_trials_are_recorded_and_skipped(self):
        self.machine(speeds=[1, 3], wait=0.05, failures=[
            {"share": [0, 0.9, 1.1], "how": "message"}, {"share": [0, 0.45, 0.55], "how": "kill"},
            {"share": [1, 0.9, 1.1], "how": "garbage"}, {"share": [0, 0.2, 0.24], "how": "hang"}])
        tuned = self.tune("--timeout", 3600)
        self.assertEqual(tuned["best"]["split"], [6, 18])
        failed = {tuple(trial["split"]): trial["failed"] for trial in tuned["all"] if "failed" in trial}
        self.assertIn("CPU1 has too little memory", failed[24, 0])
        self.assertIn("ended by SIGKILL", failed[12, 12])
        self.assertIn("no JSON", failed[0, 24])
        self.assertEqual(failed[5, 19], "shoal did not end within 3600 s")
        runs = len(self.log())
        self.assertEqual(self.tune("--timeout", 3600)["best"]["split"], [6, 18])
        self.assertEqual(len(self.log()), runs)  # nothing was measured again
        self.machine(speeds=[1, 3], wait=0.05)
        retried = self.tune("--retry-failed")
        self.assertFalse([trial for trial in retried["all"] if "failed" in trial])
        self.assertEqual(len(self.log()), runs + 4)

    def test_splits_that_do_not_fit_are_not_run(self):
        self.machine(speeds=[1, 3], wait=0.05, memory=[10**6, 14])
        tuned = self.tune()
        self.assertEqual(tuned["best"]["split"][1], 13)
        self.assertTrue(all(int(line.split(",")[1]) <= 13 for line in self.log()))
        failed = [trial for trial in tuned["all"] if "failed" in trial]
        self.assertIn("does not fit: CPU1 needs 24.05 MiB and has 14 MiB", [trial["failed"] for trial in failed])

    def test_reports_error_if_all_splits_fail(self):
        self.machine(speeds=[1, 3], failures=[{"share": [0, 0, 2], "how": "message"}])
        self.fails("tune_split: no split could be measured; the last split failed with: CPU1 has too little memory")
        self.assertLessEqual(len(self.log()), 8)
        self.assertFalse((self.folder / "model.split.json").exists())

    def test_unknown_flags_of_program_stop_script(self):
        self.machine(speeds=[1, 3], failures=[{"share": [0, 0, 2], "how": "usage"}])
        self.fails("tune_split: there is no flag --x", "--", "--x")
        self.assertEqual(len(self.log()), 1)

    def test_rejects_wrong_arguments(self):
        """Each error is one line with the reason."""
        for code, words, arguments in (
                (1, "there is no model none.gguf", ["-m", "none.gguf"]),
                (1, "there is no program", ["--shoal", "none"]),
                (1, "there is no folder", ["-o", "none/a.json"]),
                (1, "a chart ends in .svg, not '.bmp'", ["--chart", "a.bmp"]),
                (2, "is not a list of two devices or more", ["--devices", "CPU0"]),
                (2, "is not a list of two devices or more", ["--devices", "CPU0,,CPU1"]),
                (2, "invalid choice: 'speed'", ["--objective", "speed"]),
                (2, "1.5 is not between 0 and 1", ["--tolerance", "1.5"]),
                (2, "0 is not above 0", ["--trials", "0"]),
                (2, "4097 is more than 4096", ["--units", "4097"]),
                (2, "invalid int value: 'x'", ["--units", "x"]),
                (1, "--units 1 is less than the number of devices, 2", ["--units", "1"]),
                (2, "unrecognized arguments: --trial; did you mean --trials?; see tune_split", ["--trial", "5"]),
                (2, "argument -p: the objective mix needs more than 0 tokens", ["--objective", "mix", "-p", "0"]),
                (2, "argument -n: the objective generation needs", ["--objective", "generation", "-n", "0"]),
                (2, "argument -p: the objective prompt needs", ["-p", "0", "-n", "0"]),
                (2, "argument -p/--n-prompt: -1 is below 0", ["-p", "-1"])):
            with self.subTest(arguments):
                done = self.fails(words, *arguments, code=code)
                self.assertEqual(len(done.stderr.splitlines()), 1)
        self.assertEqual(self.log(), [])

    def test_zero_tokens_skip_prompt_or_generation(self):
        """-p 0 and -n 0 have the same meaning as in `shoal bench`."""
        self.machine(speeds=[1, 3])
        self.assertEqual(self.tune("-p", "0", "--trials", "2")["objective"], "generation")
        self.again()
        self.assertEqual(self.tune("-n", "0", "--trials", "2")["objective"], "prompt")

    def test_unwritable_files_are_rejected_before_first_run(self):
        os.mkfifo(self.folder / "pipe.svg")
        (self.folder / "circle").symlink_to("circle")
        (self.folder / "link").symlink_to("none/a.json")
        (self.folder / "folder.svg").mkdir()
        for words, arguments in (
                ("cannot write the profile pipe.svg: it is not a regular file", ["-o", "pipe.svg", "--chart", "a.svg"]),
                ("cannot write the profile circle: ", ["-o", "circle"]),
                ("cannot write the profile link: there is no folder", ["-o", "link"]),
                ("cannot write the chart pipe.svg: it is not a regular file", ["--chart", "pipe.svg"]),
                ("cannot write the chart folder.svg: it is a folder", ["--chart", "folder.svg"]),
                ("cannot write the chart none/a.svg: there is no folder", ["--chart", "none/a.svg"]),
                ("cannot write the profile /dev/null: it is not a regular file", ["-o", "/dev/null", "--force"]),
                ("cannot write the journal /dev/null: it is not a regular file", ["--journal", "/dev/null"]),
                ("cannot write the journal none/a: there is no folder", ["--journal", "none/a"]),
                ("are the same file", ["-o", "a.json", "--journal", "a.json"])):
            with self.subTest(arguments):
                self.fails(words, *arguments)
        self.assertEqual(self.log(), [])
        self.assertEqual(sorted(path.name for path in self.folder.glob("*.j*")), ["fake.json"])

    def test_symbolic_links_are_followed(self):
        (self.folder / "link.json").symlink_to("real.json")
        self.tune("-o", "link.json")
        self.assertTrue((self.folder / "link.json").is_symlink())
        self.assertEqual(json.loads((self.folder / "real.json").read_text())["tensor_split"], [6, 18])

    def test_full_disk_loses_no_measurement(self):
        full = "cannot write to stdout: No space left on device; check the disk or pipe of stdout"
        with open("/dev/full", "w") as stdout:
            done = subprocess.run(self.command("--chart", "none"), cwd=self.folder, check=False, stdout=stdout,
                                  env=self.environment(), stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr.splitlines()[-1], f"tune_split: {full}")
        self.assertNotIn("Traceback", done.stderr)
        self.assertEqual(self.profile()["tensor_split"], [6, 18])
        for arguments in ["--output", "json", "--chart", "none"], ["--help"]:
            self.fails(f"tune_split: {full}", *arguments, stdout="/dev/full")
        runs = len(self.log())
        journal = ["--journal", "model.split.journal.jsonl", "--chart", "a.svg"]
        with mock.patch("os.replace", side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))):
            done = self.fails("tune_split: cannot write the profile full.json: No space left on device; the same command "
                              "with another -o and --journal model.split.journal.jsonl writes the profile", "-o", "full.json",
                              *journal)
        self.assertIn("best: --tensor-split 6,18", done.stdout)
        self.assertTrue((self.folder / "a.svg").exists())
        self.assertEqual(list(self.folder.glob("*full.json*")), [])
        self.assertEqual(self.tune("-o", "b.json", *journal)["best"]["split"], [6, 18])
        self.assertEqual(json.loads((self.folder / "b.json").read_text())["tensor_split"], [6, 18])
        self.assertEqual(len(self.log()), runs)

    def test_closed_stdout_loses_no_measurement(self):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(self.command("--chart", "none", "--trials", 3), cwd=self.folder, check=False,
                              stdout=writer, env=self.environment(), stderr=subprocess.PIPE, text=True)
        os.close(writer)
        self.assertEqual(done.returncode, 141)
        self.assertRegex(done.stderr.splitlines()[-1], "^tune_split: wrote profile model.split.json, journal")
        self.assertTrue((self.folder / "model.split.json").exists())

    def test_rejects_journal_of_other_settings(self):
        self.tune()
        self.fails("was made with other settings: workload was", "-n", 64)
        self.fails("remove it to start again, or name another", "-n", 64)
        self.machine(speeds=[1, 3], descriptions=["fake, CPU0", "newer, CPU1"])
        self.fails('descriptions was ["fake, CPU0", "fake, CPU1"] and is ["fake, CPU0", "newer, CPU1"]')
        (self.folder / "notes").write_text("mine\n")
        self.fails("this is not a line of a journal", "--journal", "notes")


class InterruptionTest(TuneSplit):
    def interrupted(self, number, *arguments):
        """Sends the signal during the third run, which does not end by itself."""
        self.machine(speeds=[1, 3], wait=0.05, noise=0.01, hangs_at=3)
        child = subprocess.Popen(self.command("--chart", "none", *arguments), cwd=self.folder, env=self.environment(),
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while len(self.log()) < 3 and child.poll() is None:
            time.sleep(0.02)
        child.send_signal(number)
        stdout, stderr = child.communicate()
        self.assertEqual(len(self.log()), 3, stderr)
        return child.returncode, stdout, stderr

    def resumed(self):
        """Resumes the script, and checks that the result is the same as without an interruption."""
        self.machine(speeds=[1, 3], wait=0.05, noise=0.01)
        tuned = self.tune()
        self.assertEqual(self.log()[:2], ["12,12", "24,0"])
        self.assertEqual(self.log()[2], self.log()[3])
        self.assertEqual(len(self.log()), tuned["runs"] + 1)
        finished = [json.loads(line) for line in
                    (self.folder / "model.split.journal.jsonl").read_text().splitlines()[1:]]
        self.assertEqual(len(finished), tuned["runs"])
        self.assertLessEqual(distance(tuned["best"]["split"], (6, 18)), 1)

    def test_signals_keep_finished_runs(self):
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with self.subTest(number):
                self.again()
                returned, stdout, stderr = self.interrupted(number)
                self.assertEqual(returned, code, stderr)
                self.assertIn("12,12", stdout)
                self.assertIn("2 splits in 2 runs", stdout)
                self.assertIn("the same command resumes from", stderr.splitlines()[-1])
                self.resumed()

    def test_kill_loses_no_finished_run(self):
        self.assertEqual(self.interrupted(signal.SIGKILL)[0], -signal.SIGKILL)
        self.resumed()


class OutputTest(TuneSplit):
    def test_writes_profile(self):
        self.machine(speeds=[1, 3], wait=0.05, noise=0.01)
        self.tune()
        profile = self.profile()
        self.assertEqual(profile["version"], 1)
        self.assertEqual(profile["model"], {"file": "model.gguf", "type": "fake 1B Q8_0"})
        self.assertEqual((profile["devices"], profile["tensor_split"]), (["CPU0", "CPU1"], [6, 18]))
        self.assertEqual(profile["objective"], {"name": "generation"})
        self.assertAlmostEqual(profile["measured"]["generation"], 1 / seconds(self.config, (6, 18)), delta=0.1)
        self.assertAlmostEqual(profile["even"]["generation"], 1 / seconds(self.config, (12, 12)), delta=0.1)
        self.assertEqual(profile["even"]["tensor_split"], [12, 12])
        self.assertIsNone(profile["prediction"])
        self.assertEqual(profile["shoal"], {"commit": "0123abc"})
        self.assertEqual(profile["descriptions"], ["fake, CPU0", "fake, CPU1"])
        self.again()
        self.tune("-t", 2)
        self.assertEqual(self.profile()["workload"], {"generate": 128, "threads": 2})

    def test_rates_and_scores_agree(self):
        self.machine(speeds=[1, 2], wait=0.05, noise=0.3)  # the arithmetic mean exceeds the median by some per cent
        for trial in self.tune("--objective", "mix", "--trials", 5)["all"]:
            score = 640 / (512 / trial["prompt"] + 128 / trial["generation"])
            # The mean of the scores differs slightly from the score of the mean rates.
            self.assertAlmostEqual(trial["score"] / score, 1, delta=0.02)
        self.again()
        for trial in self.tune("--trials", 3)["all"]:
            self.assertAlmostEqual(trial["generation"] / trial["score"], 1, delta=1e-3)

    def test_uneven_reference_split_is_named_by_numbers(self):
        done = self.run_script("--units", 3)
        self.assertIn(" vs 2,1 ", done.stdout.splitlines()[0])
        self.assertNotIn("even", done.stdout)
        svg = (self.folder / "model.split.svg").read_text()
        self.assertIn(">2,1</text>", svg)
        self.assertNotIn(">even</text>", svg)

    def test_writes_table_and_chart(self):
        self.machine(speeds=[1, 3], wait=0.05, noise=0.01, failures=[{"share": [0, 0.9, 2], "how": "message"}])
        done = self.run_script()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("\x1b", done.stdout + done.stderr)
        lines = done.stdout.splitlines()
        self.assertEqual(lines[0].split()[:2], ["split", "shares"])
        self.assertRegex(lines[1], r"^6,18 +25% 75% +3\.\d\d ± 0\.0\d +\+[78]\d\.\d % +2 +speeds +best$")
        self.assertIn("CPU1 has too little memory", lines[-2])
        self.assertIn("no neighbour is significantly better", lines[-1])
        self.assertIn("--tensor-split 6,18", lines[-1])
        svg = (self.folder / "model.split.svg").read_text()
        for words in ("best: 6,18", "even", "generation t/s"):
            self.assertIn(words, svg)
        self.assertIn("stroke-dasharray: 3.6,2.7", svg, "between shares with others in between, which were not measured")
        self.run_script("--chart", "a.svg", "--objective", "mix", "--journal", "b.jsonl")
        self.assertIn("prompt t/s", (self.folder / "a.svg").read_text())

    def test_chart_of_three_devices(self):
        self.machine(speeds=[1, 3, 2], wait=0.05)
        self.assertEqual(self.run_script(devices="A,B,C").returncode, 0)
        svg = (self.folder / "model.split.svg").read_text()
        for words in ("A", "B", "C", "measured", "best: 4,12,8", "even", "model.gguf on A,B,C: best 4,12,8 of 24"):
            self.assertEqual(svg.count(f">{words}</text>"), 1, words)
        self.assertGreaterEqual(svg.count(">100</text>"), 3)  # all panels have the same range


if __name__ == "__main__":
    unittest.main()
