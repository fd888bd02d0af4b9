"""scripts/gpu_check: what it makes of output, time limits, missing tools and figures. No GPU and no build is needed."""
import contextlib
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
import unittest
from unittest import mock

sys.dont_write_bytecode = True

from gpu_check_case import FAILING, PASSING, ROOT, Carried, Folder, context, ended, fake_program  # noqa: E402
from gpu import build, gtest, machine, main, pack, programs, shell, steps, tests, text  # noqa: E402
from gpu.report import FAILED, MISSED, OK, SKIPPED, Report, Result  # noqa: E402

SCRIPT = ROOT / "scripts/gpu_check"


class Shell(Folder):
    def test_output_and_status(self):
        outcome = shell.run(["sh", "-c", "echo out; echo err >&2; exit 3"], 10, self.folder / "log")
        self.assertEqual(outcome.status, 3)
        self.assertEqual(outcome.output, "out\nerr\n")
        self.assertEqual(outcome.ending(), "exit status 3")
        self.assertEqual(outcome.last_line(), "err")

    def test_the_environment_is_added_to(self):
        with mock.patch.dict(os.environ, {"FROM_OUTSIDE": "a"}):
            outcome = shell.run(["sh", "-c", "echo $FROM_OUTSIDE$ADDED"], 10, self.folder / "log", {"ADDED": "b"})
        self.assertEqual(outcome.output, "ab\n")

    def test_the_limit_ends_a_program_and_what_it_started(self):
        outcome = shell.run(["sh", "-c", "sleep 100000 & echo $!; wait"], 2, self.folder / "log")
        self.assertTrue(outcome.timed_out)
        self.assertIn("time limit", outcome.ending())
        state = pathlib.Path(f"/proc/{int(outcome.output)}/stat")
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # gone
            while state.read_text().rsplit(")", 1)[1].split()[0] not in "ZX":  # or dead, and CTest ends what stays alive
                time.sleep(0.02)

    def test_what_cannot_be_killed_is_left_behind(self):
        process = mock.Mock(pid=0, wait=mock.Mock(side_effect=subprocess.TimeoutExpired("x", 1)))
        with mock.patch("os.killpg", side_effect=ProcessLookupError):
            shell.end_group(process)  # returns
        process.wait.assert_called_once_with(shell.KILL_SECONDS)

    def test_a_signal_is_named(self):
        self.assertEqual(shell.run(["sh", "-c", "kill -SEGV $$"], 10, self.folder / "log").ending(), "ended by SIGSEGV")

    def test_a_program_that_is_not_there(self):
        with self.assertRaisesRegex(shell.CheckError, "^/no/such/tool cannot be run: No such file or directory$"):
            shell.run(["/no/such/tool"], 1, self.folder / "log")

    def test_logs_are_begun_anew_or_gone_on_with(self):
        log = self.folder / "log"
        shell.run(["echo", "one"], 10, log)
        self.assertEqual(shell.run(["echo", "two"], 10, log, append=True).output, "two\n")
        self.assertEqual(log.read_text(), "$ echo one\none\n$ echo two\ntwo\n")
        shell.run(["echo", "three"], 10, log)
        self.assertEqual(log.read_text(), "$ echo three\nthree\n")


class GoogleTest(unittest.TestCase):
    def verdict(self, output, status):
        return gtest.verdict(gtest.parse(output), ended(output, status))

    def test_passing(self):
        self.assertEqual(self.verdict(PASSING, 0), (True, "2 passed, 1 skipped"))

    def test_failing_and_dying(self):
        self.assertEqual(self.verdict(FAILING, 1), (False, "1 passed, 1 failed: Ops.Run/mul"))
        self.assertEqual(self.verdict(FAILING, -11),
                         (False, "1 passed, 1 failed: Ops.Run/mul, ended by SIGSEGV in Ops.Run/rope"))  # fmt: skip

    def test_out_of_time(self):
        good, detail = self.verdict(FAILING.replace("[  FAILED  ]", "[       OK ]"), None)
        self.assertFalse(good)
        self.assertEqual(detail, "2 passed, time limit of 5 s reached in Ops.Run/rope")

    def test_nothing_ran(self):
        self.assertEqual(self.verdict("[==========] Running 0 tests\n", 0), (False, "0 passed, no test ran"))
        skipped = "[ RUN      ] A.b\n[  SKIPPED ] A.b (0 ms)\n"
        self.assertEqual(self.verdict(skipped, 0), (False, "0 passed, 1 skipped, no test ran"))

    def test_a_broken_program_without_tests(self):
        self.assertEqual(self.verdict("cannot load the plug-in\n", 1), (False, "0 passed, exit status 1"))

    def test_lists(self):
        listed = "Running main() from x.cc\nPlugin/Ops.\n  Run/0  # GetParam() = add\n  Run/1\nOther.\n  One\n"
        self.assertEqual(gtest.names_in_list(listed), ["Plugin/Ops.Run/0", "Plugin/Ops.Run/1", "Other.One"])


class Steps(Folder):
    def run_steps(self, made, seconds=100.0):
        """The time goes on by what a step says that it takes."""
        self.time = 0.0
        report = Report(self.folder / "out", {"commit": "abc"}, out=lambda line: None)
        steps.run_all(made, context(self.folder), steps.Clock(seconds, now=lambda: self.time), report)
        return report

    def step(self, name, takes=1.0, fails=None, **more):
        def work(_, limit):
            self.time += min(takes, limit)
            if fails:
                raise fails
            return steps.good(f"limit {limit:.0f}")

        return steps.Step(name, work, more.pop("limit", 50), **more)

    def test_results_in_order(self):
        report = self.run_steps([self.step("a", takes=2), self.step("b", fails=shell.CheckError("broke")),
                                 self.step("c", fails=shell.Skip("none here"))])  # fmt: skip
        self.assertEqual([one.cells() for one in report.results],
                         [["a", OK, "2.0", "limit 50"], ["b", FAILED, "1.0", "broke"],
                          ["c", SKIPPED, "1.0", "none here"]])  # fmt: skip
        self.assertEqual(report.exit_code(), 1)

    def test_what_needs_a_broken_step_is_skipped_and_the_rest_is_not(self):
        report = self.run_steps([self.step("a", fails=shell.CheckError("broke")), self.step("b", needs=("a",)),
                                 self.step("c", needs=("b",)), self.step("d")])  # fmt: skip
        self.assertEqual([one.result for one in report.results], [FAILED, SKIPPED, SKIPPED, OK])
        self.assertEqual(report.results[2].detail, "needs the step b")

    def test_limits_within_the_time_of_all(self):
        report = self.run_steps([self.step("a", takes=80, limit=90), self.step("b", takes=18), self.step("c")])
        self.assertEqual([one.detail for one in report.results], ["limit 90", "limit 20", "no time: 2 s are left"])
        self.assertEqual(report.results[2].result, SKIPPED)

    def test_time_is_left_to_later_steps(self):
        report = self.run_steps([self.step("a", takes=30), self.step("b", takes=30, reserve=60),
                                 self.step("c", reserve=60)])  # fmt: skip
        self.assertEqual([one.detail for one in report.results],
                         ["limit 50", "limit 10", "no time: 60 s are left, 60 of them for later steps"])  # fmt: skip

    def test_a_broken_file_is_a_failure_and_no_crash(self):
        report = self.run_steps([self.step("a", fails=json.JSONDecodeError("bad", "x", 0)), self.step("b")])
        self.assertEqual([one.result for one in report.results], [FAILED, OK])

    def test_no_error_ends_the_other_steps(self):
        fails = (IndexError("no row"), EOFError("cut off"), subprocess.TimeoutExpired("python3", 30), TypeError("None"))
        report = self.run_steps([self.step(str(i), fails=error) for i, error in enumerate(fails)] + [self.step("last")])
        self.assertEqual([one.result for one in report.results], [FAILED] * 4 + [OK])
        self.assertEqual(report.results[0].detail, "IndexError: no row")

    def test_failed_streams_are_named_beside_what_rests_on_them(self):
        for error in (shell.CheckError("1 of 2"), None):
            report = self.run_steps([self.step("a", fails=error), self.step("d", doubts=("a", "e")),
                                     self.step("b", fails=shell.CheckError("c"), doubts=("a",)),
                                     self.step("f", fails=shell.Skip("g"), doubts=("a",))])  # fmt: skip
            note = "; note that the step a failed" if error else ""
            self.assertEqual([one.detail for one in report.results[1:]], [f"limit 50{note}", f"c{note}", "g"])
        made = {one.name: one for one in main.all_steps(False)}
        self.assertEqual([name for name in made if "streams" in made[name].doubts], ["kernels", "collectives", "reference", "meta"])
        self.assertGreaterEqual(made["streams"].limit, 3 * 6.75 + 3 + 15)  # kernels that all wait in vain, and loading

    def test_chosen_by_name(self):
        made = [self.step(name) for name in ("build", "bench-a", "bench-b", "benchmark")]
        self.assertEqual([one.name for one in steps.choose(made, "bench,build")], ["build", "bench-a", "bench-b"])
        self.assertEqual(len(steps.choose(made, None)), 4)
        with self.assertRaisesRegex(shell.CheckError, "there is no step 'test'; known: build, bench-a"):
            steps.choose(made, "test")

    def test_every_need_is_a_step_before(self):
        for emulated in (False, True):
            before = set()
            for one in main.all_steps(emulated):
                self.assertLessEqual(set(one.needs), before, one.name)
                self.assertNotIn(one.name, before)
                before.add(one.name)

    def test_two_parts_have_all_steps(self):
        def names(part):
            return [one.name for one in main.of_part(main.all_steps(False), part)]

        every, first, second = names(None), names(1), names(2)
        self.assertEqual(set(first) | set(second), set(every))
        prepared = {"environment", "models-start", "programs", "googletest", "configure", "build-streams", "build"}
        self.assertEqual(set(first) & set(second), {*prepared, "streams", "bench-comm", "models-later"})
        for names_of_part in (first, second):  # should they fail, nothing that waits on the GPU can be believed
            before = names_of_part[: names_of_part.index("streams")]
            self.assertEqual(set(before), {*prepared, *({"models-start-f16"} & set(names_of_part))} - {"build"})
        tested = [name for name in first if name not in prepared and "bench" not in name and "models" not in name]
        self.assertEqual(tested, ["streams", "devices", "ops", "kernels", "collectives", "nccl-one-rank"])
        self.assertEqual([name for name in first if "bench" in name], ["first-bench", "bench-comm"])
        for name in ("ceilings", "registers", "meta", "sched", "reference", "bench-q8_0-meta", "ncu"):
            self.assertIn(name, second)
        self.assertEqual(first[-1], "models-later")  # for the second part
        # On another machine the second part begins to write the models anew; its figures come before its tests.
        order = ["models-start", "models-start-f16", "text", "ceilings", "models-later", "bench-q4_k_m", "models-f16",
                 "bench-f16", "times-token", "ncu", "reference", "meta", "sched", "sanitizer-ops"]  # fmt: skip
        self.assertEqual([name for name in second if name in order], order)
        emulated = {one.name for one in main.all_steps(True)}
        self.assertLess(emulated, set(every))

    def test_the_first_part_keeps_time_for_its_figures(self):
        made = main.of_part(main.all_steps(False), 1)
        at = [one.name for one in made].index("models")
        figures = sum(one.limit for one in made[at:] if one.name in ("first-bench", "bench-comm"))
        for one in made:
            if one.name in ("devices", "ops", "kernels", "collectives", "nccl-one-rank"):
                self.assertGreaterEqual(one.reserve, figures, one.name)


class Reports(Folder):
    def report(self):
        report = Report(self.folder, {"commit": "abc", "machine": {"cores": 16}}, out=lambda line: None)
        log = self.folder / "step.log"
        log.write_text("what it said\n")
        report.add(Result("devices", OK, 1.25, "65 passed", {"passed": 65}), log)
        report.add(Result("sanitizer-ops", SKIPPED, 0.0, "no tool"))
        return report

    def test_the_table_is_aligned(self):
        lines = self.report().summary().splitlines()
        self.assertEqual(lines[0], "step           result   seconds  detail")
        self.assertEqual(lines[2], "devices        ok           1.2  65 passed")
        self.assertEqual(lines[3], "sanitizer-ops  skipped      0.0  no tool")
        self.assertEqual(lines[-1], "commit abc: 1 ok, 1 skipped")

    def test_json_is_there_after_every_step(self):
        report = self.report()
        found = json.loads((self.folder / "gpu_check.json").read_text())
        self.assertEqual([one["step"] for one in found["steps"]], ["devices", "sanitizer-ops"])
        self.assertEqual(found["steps"][0]["data"], {"passed": 65})
        self.assertEqual((found["commit"], found["machine"], found["good"]), ("abc", {"cores": 16}, True))
        self.assertRegex(found["date"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00$")
        report.add(Result("ops", FAILED, 3.0, "broke"))
        self.assertFalse(json.loads((self.folder / "gpu_check.json").read_text())["good"])
        self.assertIn("broke", (self.folder / "summary.txt").read_text())

    def test_logs_are_in_one_file_and_not_endless(self):
        report = self.report()
        log = self.folder / "long.log"
        log.write_text("begin" + "x" * 3_000_000 + "end")
        report.add(Result("long", OK), log)
        text = (self.folder / "log.txt").read_text()
        self.assertIn("===== devices\nwhat it said\n", text)
        self.assertTrue(text.endswith("end"))
        self.assertLess(len(text), 1_100_000)

    def test_all_logs_together_stay_below_what_travels(self):
        report = self.report()
        log = self.folder / "long.log"
        log.write_text("x" * 3_000_000)
        for i in range(40):
            report.add(Result(f"long{i}", OK, data={"failed_tests": [str(n) for n in range(100_000)]}), log)
        self.assertLess(sum(file.stat().st_size for file in self.folder.iterdir() if file != log), 12_000_000)
        self.assertIn("===== long39\n", (self.folder / "log.txt").read_text())

    def test_what_was_going_on_is_known_when_all_is_killed(self):
        report = self.report()
        report.begin("ops")
        self.assertEqual(json.loads((self.folder / "gpu_check.json").read_text())["running"], "ops")
        self.assertIn("was in ops when this was written", (self.folder / "summary.txt").read_text())
        report.add(Result("ops", OK))
        self.assertNotIn("running", json.loads((self.folder / "gpu_check.json").read_text()))
        self.assertNotIn("was in", (self.folder / "summary.txt").read_text())

    def test_a_missed_target_fails_nothing(self):
        report = self.report()
        report.add(Result("ratio prompt q8_0", MISSED))
        self.assertEqual(report.exit_code(), 0)
        self.assertIn("1 missed", report.summary())


class Suites(Folder):
    def test_a_suite_sees_plugin_and_environment(self):
        one = self.built(test_ops='echo "$SHOAL_TEST_PLUGIN $SHOAL_CUDA_DEVICES_PER_GPU $1"\n'
                                  'echo "[ RUN      ] A.b"; echo "[       OK ] A.b (0 ms)"\n')  # fmt: skip
        suite = tests.Suite("test_ops", "A.*", {"SHOAL_CUDA_DEVICES_PER_GPU": "8"})
        result = tests.run_suite(one, suite, "ops", 20)
        self.assertEqual((result.result, result.detail), (OK, "1 passed"))
        self.assertIn(f"{one.plugin} 8 --gtest_filter=A.*", one.log("ops").read_text())

    def test_collectives_that_hang_end_before_their_step_does(self):
        one = self.built(test_ops='echo "$SHOAL_COMM_TIMEOUT $CUDA_DEVICE_MAX_CONNECTIONS $CUDA_MODULE_LOADING"; '
                                  'echo "[ RUN      ] A.b"; echo "[       OK ] A.b (0 ms)"\n')  # fmt: skip
        tests.run_suite(one, tests.Suite("test_ops", "*"), "ops", 20)
        self.assertIn("\n5 32 EAGER\n", one.log("ops").read_text())
        self.assertEqual(one.environment(SHOAL_COMM_TIMEOUT="30")["SHOAL_COMM_TIMEOUT"], "30")
        self.assertNotIn("SHOAL_COMM_TIMEOUT", context(self.folder, True).environment())

    def test_with_models_collectives_are_more_patient(self):
        said = 'echo "$1 waits $SHOAL_COMM_TIMEOUT"; '
        passes = said + 'echo "[ RUN      ] A.b"; echo "[       OK ] A.b (0 ms)"\n'
        one = self.built(test_models=passes, test_cuda_gpu=passes, shoal=said + 'echo "{\\"tokens\\": [1]}"\n')
        made = {step.name: step for step in main.all_steps(False)}
        for name, expected in [("reference", "=*Reference* waits 15\n"), ("text", "run waits 15\n"),
                               ("kernels", "=*-NcclOneRank.* waits 5\n")]:  # fmt: skip
            self.assertEqual(made[name].work(one, 20).result, OK)
            self.assertIn(expected, one.log(name).read_text())

    def test_the_emulator_has_an_nccl_of_its_own(self):
        one = context(self.folder, True)
        file = one.environment()["SHOAL_NCCL_LIBRARY"]
        self.assertEqual(pathlib.Path(file), build.file_of(one, "nccl-standin"))
        self.assertIn("nccl-standin", build.targets(one))
        self.assertNotIn("SHOAL_NCCL_LIBRARY", context(self.folder).environment())

    def test_streams_that_do_not_run_at_once(self):
        output = "at once: launches 2 of 2\nat once: launches 3 of 3\nat once: graphs 1 of 2\n"
        one = self.built(test_cuda_streams=f"cat <<'X'\n{output}{FAILING}X\nexit 1\n")
        one.plugin.unlink()  # is not needed
        result = tests.run_streams(one, 20)
        self.assertEqual(result.result, FAILED)
        self.assertTrue(result.detail.startswith("at once: launches 3; 1 passed, 1 failed"), result.detail)

    def test_nccl_with_one_rank_is_run_with_any_version(self):
        one = self.built(test_cuda_gpu='echo "$1 $SHOAL_NCCL_LIBRARY"; '
                                       'echo "[ RUN      ] A.b"; echo "[       OK ] A.b (0 ms)"\n')  # fmt: skip
        one.machine["nccl"] = "/x/libnccl.so.2"
        with mock.patch.object(tests, "nccl_version", return_value=22809):
            result = tests.run_nccl_one_rank(one, 20)
        self.assertEqual((result.result, result.detail), (OK, "NCCL 2.28.9: 1 passed"))
        self.assertIn("--gtest_filter=NcclOneRank.* /x/libnccl.so.2", one.log("nccl-one-rank").read_text())
        with mock.patch.object(tests, "library_in_packages", return_value=None):
            one.machine["nccl"] = None
            with self.assertRaisesRegex(shell.Skip, "^no libnccl.so.2 in Python's packages"):
                tests.run_nccl_one_rank(one, 20)

    def test_what_did_not_pass_runs_alone(self):
        one = self.built(test_ops=f"""
case "$*" in
*list_tests*) printf 'Ops.\\n  Run/add\\n  Run/mul\\n  Run/rope\\n'; exit 0;;
*=Ops.Run/mul*) exit 1;;
*=Ops.Run/rope*) exit 0;;
esac
cat <<'X'
{FAILING}
X
exit 1
""")
        result = tests.run_suite(one, tests.Suite("test_ops", "Ops.*"), "ops", 60)
        self.assertEqual(result.result, FAILED)
        self.assertEqual(result.data["alone"], {"Ops.Run/mul": "exit status 1", "Ops.Run/rope": "passed"})
        self.assertTrue(result.detail.endswith("each alone: 1 passed, not Ops.Run/mul"), result.detail)

    def test_a_test_that_hangs_does_not_hide_the_others(self):
        one = self.built(test_ops="""
case "$*" in
*list_tests*) printf 'Ops.\\n  Run/hang\\n  Run/mul\\n'; exit 0;;
*=Ops.Run/mul*) exit 0;;
esac
echo "[ RUN      ] Ops.Run/hang"
sleep 60
""")
        # Times that a busy machine keeps, too: 6 s for all, then 6 s for each.
        with mock.patch.multiple(tests, ALONE_LIMIT=6.0, ALONE_SHARE=0.8):
            result = tests.run_suite(one, tests.Suite("test_ops", "Ops.*"), "ops", 30)
        self.assertEqual(result.result, FAILED)
        self.assertRegex(result.detail, r"time limit of \d+ s reached in Ops.Run/hang")
        self.assertTrue(result.detail.endswith("; each alone: 1 passed, not Ops.Run/hang"), result.detail)

    def test_a_suite_that_was_not_built(self):
        one = self.built(test_ops="exit 0\n")
        one.broken = {"test_ops"}
        with self.assertRaisesRegex(shell.Skip, "^test_ops was not built$"):
            tests.run_suite(one, tests.Suite("test_ops", "*"), "ops", 5)
        with self.assertRaisesRegex(shell.CheckError, "run the step build first"):
            tests.run_suite(one, tests.Suite("test_devices", "*"), "devices", 5)

    def test_the_text_of_devices_is_compared(self):
        same = 'echo "starting"; echo "{\\"tokens\\": [1, 2, 3]}"\n'
        result = text.same_text(self.built(True, shoal=same), 60)
        self.assertEqual(result.result, OK, result.detail)
        other = 'case "$*" in *CUDA0.0,CUDA0.1*) echo "{\\"tokens\\": [1, 9, 3]}"; exit;; esac\n' + same
        top = 'case "$*" in *--top-logits*) echo "{\\"top_logits\\": [[2, 5.0], [7, 4.9], [9, 4.5]]}"; exit;; esac\n'
        result = text.same_text(self.built(True, shoal=top + other), 60)
        self.assertEqual(result.result, FAILED)
        self.assertEqual(result.detail, "differs from CPU0: q8_0 on CUDA0.0,CUDA0.1 from token 1, 0.500 apart")
        with self.assertRaisesRegex(shell.CheckError, "q8_0 on CPU0: exit status 2; no such device"):
            text.same_text(self.built(True, shoal="echo no such device; exit 2\n"), 60)

    def test_ties_are_no_difference(self):
        top = 'case "$*" in *--top-logits*) echo "{\\"top_logits\\": [[2, 5.0], [9, 4.995]]}"; exit;; esac\n'
        other = 'case "$*" in *CUDA0.0,CUDA0.1*) echo "{\\"tokens\\": [1, 9, 3]}"; exit;; esac\n'
        one = self.built(True, shoal=top + other + 'echo "{\\"tokens\\": [1, 2, 3]}"\n')
        result = text.same_text(one, 60)
        self.assertEqual(result.result, OK)
        self.assertTrue(result.detail.endswith("; up to ties: q8_0 on CUDA0.0,CUDA0.1 from token 1, 0.0050 apart"))
        # The prompt of the question ends with what both have written.
        asked = next(line for line in one.log("text").read_text().splitlines() if "--top-logits" in line)
        self.assertRegex(asked, r"--prompt-tokens [\d,]+,1 --temp")
        self.assertIn("--devices CPU0", asked)


class Sanitizer(unittest.TestCase):
    CLEAN = PASSING + "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
    BROKEN = (PASSING + "========= COMPUTE-SANITIZER\n========= Invalid __global__ write of size 4 bytes\n"
              "=========     at kernel+0x10\n=========     by thread (0,0,0)\n========= ERROR SUMMARY: 1 error\n")  # fmt: skip

    def judge(self, output, status):
        return tests.sanitizer_verdict(ended(output, status), gtest.parse(output))

    def test_clean(self):
        result = self.judge(self.CLEAN, 0)
        self.assertEqual((result.result, result.detail), (OK, "0 errors; 2 passed, 1 skipped"))

    def test_an_error_fails_whatever_the_tests_say(self):
        result = self.judge(self.BROKEN, 86)
        self.assertEqual((result.result, result.detail), (FAILED, "Invalid __global__ write of size 4 bytes (1 error)"))
        self.assertEqual(result.data["errors"], ["Invalid __global__ write of size 4 bytes"])
        self.assertEqual(self.judge(self.BROKEN.replace("========= ERROR SUMMARY: 1 error\n", ""), None).result, FAILED)

    def test_races_and_other_lines(self):
        text = PASSING + "========= Warning: cannot read symbols\n========= Target application returned an error\n"
        self.assertEqual(self.judge(text + "========= RACECHECK SUMMARY: 0 hazards displayed\n", 0).result, OK)
        race = text + "========= Warning: Race reported between Write and Read\n========= RACECHECK SUMMARY: 1 hazard\n"
        self.assertEqual(self.judge(race, 0).result, FAILED)

    def test_out_of_time(self):
        result = self.judge(PASSING, None)
        self.assertEqual(result.detail, "nothing found in the 2 tests that ended within the limit")
        with self.assertRaisesRegex(shell.Skip, "no test ended within 5 s"):
            self.judge("[ RUN      ] A.b\n", None)

    def test_slow_collectives_are_not_what_is_looked_for(self):
        error = "CommError: [all_reduce x] rank 1 (CUDA0.1) of 2 did not arrive within 5.0 s\n"
        late = "".join(f"[ RUN      ] C.{name}\n{error}[  FAILED  ] C.{name} (9 ms)\n" for name in "ab")
        with self.assertRaisesRegex(shell.Skip, "^nothing found, but collectives were too slow under compute-sanitizer"):
            self.judge(late + "========= ERROR SUMMARY: 0 errors\n", 1)
        self.assertEqual(self.judge(late + self.BROKEN, 1).result, FAILED)
        for other in (FAILING, FAILING + error, "[ RUN      ] C.c\na.cpp:3: Failure\n[  FAILED  ] C.c (1 ms)\n"):
            self.assertEqual(self.judge(late + other + "========= ERROR SUMMARY: 0 errors\n", 1).result, FAILED)
            self.assertEqual(self.judge(other + late + "========= ERROR SUMMARY: 0 errors\n", 1).result, FAILED)
        died = late + "[ RUN      ] C.c\n========= ERROR SUMMARY: 0 errors\n"
        self.assertEqual(self.judge(died, -11).result, FAILED)
        with self.assertRaises(shell.Skip):
            self.judge(died, None)
        commands = []
        with mock.patch.object(tests, "cuda_tool", return_value="sanitizer"), \
             mock.patch.object(tests, "run_gtest", side_effect=lambda c, suite, *rest: commands.append((suite, rest)) or (
                 ended("Unable to find injection library"), gtest.parse(""))):  # fmt: skip
            for step in tests.later_steps():
                if step.name.startswith("sanitizer"):
                    with self.assertRaises(shell.Skip):
                        step.work(context("/nonexistent"), 5)
        raced = [suite.program for suite, rest in commands if "racecheck" in rest[-1]]
        self.assertEqual((len(commands), raced), (3, ["test_ops"]))

    def test_it_must_have_looked(self):
        self.assertEqual(self.judge(PASSING, 0).result, FAILED)


class Machine(Folder):
    def test_a_gpu(self):
        gpu = machine.parse_gpu("NVIDIA H200, 580.159.03, 143771 MiB, 9.0, 1980 MHz, 3201 MHz, 345 MHz, 700.00 W")
        self.assertEqual((gpu["name"], gpu["compute_cap"]), ("NVIDIA H200", "9.0"))
        self.assertEqual(machine.architecture([gpu]), "90")
        with self.assertRaisesRegex(shell.CheckError, "nvidia-smi says 'No devices were found'"):
            machine.parse_gpu("No devices were found\n")

    def test_versions_of_nccl(self):
        self.assertEqual(machine.version_text(23004), "2.30.4")
        self.assertEqual(machine.version_text(22809), "2.28.9")

    def test_a_library_in_python_packages(self):
        file = self.folder / "nvidia/nccl/lib/libnccl.so.2"
        file.parent.mkdir(parents=True)
        file.touch()
        self.assertEqual(machine.library_in_packages("libnccl.so.2", [self.folder]), str(file))
        self.assertIsNone(machine.library_in_packages("libcublas.so.13", [self.folder]))

    def test_a_python_that_hangs_has_no_packages(self):
        python = fake_program(self.folder / "python3", "sleep 60\n")
        with mock.patch.object(machine.shutil, "which", return_value=str(python)), \
             mock.patch.object(machine, "PYTHON_SECONDS", 0.1):  # fmt: skip
            self.assertIsNone(machine.library_in_packages("libnone.so.1"))

    def test_old_nccl_is_left_out(self):
        one = context(self.folder)
        one.machine["nccl"] = "/x/libnccl.so.2"
        with mock.patch.object(tests, "nccl_version", return_value=22809):
            with self.assertRaisesRegex(shell.Skip, r"^NCCL 2\.28\.9 cannot have several ranks on one GPU; 2\.30 can$"):
                tests.run_nccl(one, 5)

    def test_missing_tools_are_said_in_one_line(self):
        one = context(self.folder)
        with mock.patch.object(machine, "cuda_tool", return_value=None):
            with self.assertRaisesRegex(shell.CheckError, "^no nvidia-smi: there is no NVIDIA driver here; .*$"):
                machine.examine(one, 30)
        smi = fake_program(self.folder / "smi", 'echo "A GPU, 1, 2 MiB, 9.0, 1 MHz, 1 MHz, 1 MHz, 1 W"\n')
        with mock.patch.object(machine, "cuda_tool", side_effect={"nvidia-smi": str(smi)}.get):
            self.assertTrue(machine.examine(one, 30).detail.endswith("; no nvcc"))
            with self.assertRaisesRegex(shell.CheckError, "^no nvcc in PATH, CUDA_PATH or /usr/local/cuda/bin: .*$"):
                build.build_googletest(one, 30)
            with mock.patch.object(machine.shutil, "which", return_value=None):
                machine.examine(one, 30)
                with self.assertRaisesRegex(shell.CheckError, r"^no C\+\+ compiler \(c\+\+ or g\+\+\) in PATH$"):
                    build.build_googletest(one, 30)
                one.carried = True
                self.assertEqual(build.build_googletest(one, 30).result, OK)
        with mock.patch.object(tests, "cuda_tool", return_value=None):
            step = next(step for step in tests.later_steps() if step.name == "sanitizer-ops")
            with self.assertRaisesRegex(shell.Skip, "^no compute-sanitizer here$"):
                step.work(one, 5)
        with mock.patch.object(pack, "find_tool", return_value=None):
            with self.assertRaisesRegex(shell.CheckError, "^--pack needs apt-get: run it on Debian 12$"):
                pack.pack(self.folder / "pack")


class Build(Folder):
    def test_configured_for_the_gpu_and_for_the_emulator(self):
        one = context(self.folder)
        one.deps = self.folder / "deps"
        (one.deps / "usr/lib/x86_64-linux-gnu/cmake").mkdir(parents=True)
        words = build.configure_command(one, "90")
        self.assertIn("-DSHOAL_CUDA_ARCHITECTURES=90", words)
        self.assertIn("-DSHOAL_CUDA_EMULATED=OFF", words)
        prefixes = next(word for word in words if word.startswith("-DCMAKE_PREFIX_PATH=")).split("=")[1].split(";")
        self.assertEqual(prefixes[0], str(one.prefix))
        self.assertIn(str(one.deps / "usr/lib/x86_64-linux-gnu/cmake"), prefixes)
        self.assertFalse(any("SHOAL_CUDA" in word for word in build.configure_command(context(self.folder, True), None)))

    def test_errors_are_found_in_long_output(self):
        output = "-- Found\nCMake Error at cmake/options.cmake:10 (find_package):\n  Could not find fmt\n\nCall Stack\n"
        self.assertEqual(build.cmake_error(output), "Could not find fmt")
        self.assertEqual(build.cmake_error("-- a\nCMake Error: x includes y\n-- b\n"), "x includes y")
        self.assertEqual(build.cmake_error("no\nmarks\n"), "no marks")
        self.assertEqual(build.first_error("[1/3] a\nx.cu(3): error: no such thing\nmore\n"), "x.cu(3): error: no such thing")

    def test_what_was_not_built_is_known(self):
        cmake = fake_program(self.folder / "tools/cmake",
                             'case "$*" in *test_ops*) echo "ops.cpp:1: error: bad"; exit 1;; esac\n')  # fmt: skip
        one = context(self.folder / "build")
        with mock.patch.dict(os.environ, {"PATH": f"{cmake.parent}:{os.environ['PATH']}"}):
            result = build.build(one, 30)
        self.assertEqual((result.result, one.broken), (FAILED, {"test_ops"}))
        self.assertIn("not built: test_ops; ops.cpp:1: error: bad", result.detail)

    def test_streams_are_tried_without_a_build_of_the_rest(self):
        cmake = fake_program(self.folder / "tools/cmake", 'case "$*" in *test_cuda_gpu*) exit 1;; esac\n')
        one = context(self.folder / "build")
        with mock.patch.dict(os.environ, {"PATH": f"{cmake.parent}:{os.environ['PATH']}"}):
            self.assertEqual(build.build_streams(one, 30).result, OK)
            fake_program(cmake, "echo 'streams_test.cpp:1: error: bad'; exit 1\n")
            with self.assertRaisesRegex(shell.CheckError, "^exit status 1; streams_test.cpp:1: error: bad$"):
                build.build_streams(one, 30)

    def test_what_is_there_when_the_time_is_over_is_used(self):
        cmake = fake_program(self.folder / "tools/cmake", f"""
case "$*" in
*test_ops*) touch {self.folder}/build/bin/test_devices; sleep 60;;
*) cd {self.folder}/build; mkdir bin; touch bin/shoal bin/libshoal-cuda.so;;
esac
""")  # fmt: skip
        one = context(self.folder / "build")
        with mock.patch.dict(os.environ, {"PATH": f"{cmake.parent}:{os.environ['PATH']}"}):
            result = build.build(one, 4)
        self.assertEqual(result.result, FAILED)
        made = {"shoal", "shoal_cuda", "test_devices"}
        self.assertEqual(set(build.targets(one)) - one.broken, made)
        words = [line.split() for line in one.log("build").read_text().splitlines() if "--target" in line]
        self.assertEqual(words[0][words[0].index("--target") + 1 :][:2], ["shoal", "shoal_cuda"])
        self.assertRegex(result.detail, r"^time limit of \d+ s reached; not built: cuda_ceilings, .*test_cuda_gpu")

    def test_resources_of_kernels(self):
        text = ("Resource usage:\n Common:\n  GLOBAL:0\n Function _Z1av:\n  REG:40 STACK:0 SHARED:1024 LOCAL:0 CONSTANT[0]:560\n"
                " Function _Z1bv:\n  REG:255 STACK:16 SHARED:0 LOCAL:0 CONSTANT[0]:560\n")  # fmt: skip
        found = build.parse_resources(text)
        self.assertEqual(found[1], {"kernel": "_Z1bv", "registers": 255, "stack": 16, "shared": 0, "local": 0})
        self.assertEqual(len(found), 2)


class Programs(Carried):
    def test_they_take_the_place_of_a_build(self):
        one = self.other(self.packed())
        result = programs.unpack(one, 30)
        self.assertEqual(result.result, OK)
        self.assertTrue(result.detail.startswith("of commit abc123, nvcc V13.0.88"), result.detail)
        self.assertNotIn(", not ", result.detail)
        for name in build.targets(one)[2:]:
            self.assertTrue(os.access(one.program(name), os.X_OK), name)
        self.assertTrue((one.build / "tests/models/x-q4_0.gguf").exists())
        for step in (build.build_googletest, build.configure, build.build_streams, build.build):
            self.assertEqual(step(one, 5).result, OK)  # without cmake

    def test_another_compiler_than_that_of_the_machine_is_told(self):
        one = self.other(self.packed())
        one.machine["nvcc"] = "V13.0.48"
        self.assertTrue(programs.unpack(one, 30).detail.startswith("of commit abc123, nvcc V13.0.88, not V13.0.48 as is here"))
        self.assertTrue(one.carried)

    def test_tests_find_their_data_where_they_were_built(self):
        deps = self.packed()
        self.root.rename(self.folder / "moved")
        one = self.other(deps)
        programs.unpack(one, 30)
        self.assertEqual(self.root.resolve(), one.root.resolve())

    def test_what_cannot_be_used_is_built(self):
        deps = self.packed()
        other = self.other(deps, "def456")
        self.assertEqual(programs.unpack(other, 30).detail, "those carried are of commit abc123, not def456: they are built here")
        other = self.other(deps)
        other.machine["gpus"][0]["compute_cap"] = "8.0"
        self.assertIn("are for sm_90, not sm_80", programs.unpack(other, 30).detail)
        self.assertFalse(other.carried)
        self.assertIn("none carried", programs.unpack(self.other(None), 30).detail)

    def test_a_broken_archive_is_no_reason_not_to_build(self):
        deps = self.packed()
        whole = (deps / programs.ARCHIVE).read_bytes()
        broken = {"cut": whole[: len(whole) // 2], "empty": b"", "other": b"not an archive",
                  "changed": whole[:-80] + b"x" * 80}  # fmt: skip
        for name, data in broken.items():
            (deps / programs.ARCHIVE).write_bytes(data)
            one = self.other(deps)
            detail = programs.unpack(one, 30).detail
            self.assertRegex(detail, r"^those carried cannot be read \(.+\): they are built here$", name)
            self.assertFalse(one.carried or (one.build / "bin").exists(), name)

    def test_a_second_run_leaves_them_as_they_are(self):
        deps = self.packed()
        one = self.other(deps)
        programs.unpack(one, 30)
        mark, shoal = one.build / "bin/mark", one.build / "bin/shoal"
        mark.touch()
        again = self.other(deps)
        self.assertTrue(programs.unpack(again, 30).detail.startswith("of commit abc123, nvcc V13.0.88, unpacked before"))
        self.assertTrue(again.carried and mark.exists())
        shoal.write_text("built here")  # and those of another archive
        for change in (lambda: None, lambda: os.utime(deps / programs.ARCHIVE, (1, 1))):
            change()
            self.assertNotIn("before", programs.unpack(self.other(deps), 30).detail)
            self.assertIn("carried", shoal.read_text())

    def test_programs_that_still_run_are_no_hindrance(self):
        deps = self.packed()
        one = self.other(deps)
        one.plugin.parent.mkdir(parents=True)
        shutil.copy(shutil.which("sleep"), one.plugin)
        with subprocess.Popen([one.plugin, "60"]) as left_behind:
            result = programs.unpack(one, 30)
            left_behind.kill()
        self.assertTrue(one.carried, result.detail)

    def test_what_does_not_find_the_gpu_is_built(self):
        one = self.other(self.packed())
        with mock.patch.object(programs, "run", return_value=ended("CPU0  CPU\nCUDA: no_devices=old driver\n")):
            detail = programs.unpack(one, 30).detail
        self.assertEqual(detail, "those carried do not find the GPU (CUDA: no_devices=old driver): they are built here")
        self.assertFalse(one.carried)

    def test_what_does_not_run_there_is_built(self):
        deps = self.packed()
        one = self.other(deps)
        with mock.patch.object(programs, "run", return_value=ended("shoal: version `GLIBC_2.36' not found\n", 1)):
            detail = programs.unpack(one, 30).detail
        self.assertIn("those carried do not run (exit status 1; shoal: version `GLIBC_2.36' not found)", detail)
        self.assertFalse(one.carried or (one.build / "bin").exists())
        built = fake_program(one.build / "bin/shoal", "echo built\n")
        self.assertEqual(programs.unpack(one, 30).detail, detail)  # without another try
        self.assertTrue(built.exists() and not one.carried)


class Program(Folder):
    def call(self, *arguments):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), mock.patch("signal.signal"):
            status = main.main([str(word) for word in arguments], "text")
        return status, out.getvalue()

    def test_the_script_lists_its_steps(self):
        outcome = shell.run([sys.executable, SCRIPT, "--list"], 60, self.folder / "log")
        self.assertEqual(outcome.status, 0, outcome.output)
        self.assertRegex(outcome.output, r"(?m)^sanitizer-races +30 s  part 2$")
        outcome = shell.run([sys.executable, SCRIPT, "--list", "--part", "1"], 60, self.folder / "log")
        self.assertIn("streams", outcome.output)
        self.assertNotIn("part 2", outcome.output)
        self.assertTrue(os.access(SCRIPT, os.X_OK))

    def test_without_a_gpu_all_is_said_in_one_table(self):
        with mock.patch.object(machine, "cuda_tool", return_value=None):
            status, out = self.call("--build", self.folder / "build", "--out", self.folder / "out", "--only",
                                    "environment,build,devices,registers")  # fmt: skip
        self.assertEqual(status, 1)
        self.assertRegex(out, r"(?m)^environment +failed +0\.\d  no nvidia-smi: there is no NVIDIA driver here")
        self.assertRegex(out, r"(?m)^registers +skipped +0\.0  no cuobjdump here")
        found = json.loads((self.folder / "out/gpu_check.json").read_text())
        self.assertEqual(found["steps"][0]["result"], FAILED)

    def test_wrong_arguments(self):
        self.assertEqual(self.call("--only", "nonsense")[0], 2)
        status, out = self.call("--deps", self.folder / "none", "--only", "environment")
        self.assertEqual((status, out), (2, f"gpu_check: --deps: there is no folder {self.folder / 'none'}\n"))
        status, out = self.call("--programs", "90", "--only", "nonsense")
        self.assertEqual(status, 2)
        self.assertRegex(out, r"^gpu_check: --programs goes with --pack DIR, .*\n$")
        (self.folder / "full").mkdir()
        (self.folder / "full/file").touch()
        out = self.call("--pack", self.folder / "full")[1]
        self.assertEqual(out, f"gpu_check: --pack: {self.folder / 'full'} is not empty\n")

    def test_emulated_runs_of_a_build(self):
        one = self.built(True, test_devices=f"cat <<'X'\n{PASSING}X\n", test_ops="exit 139\n")
        status, out = self.call("--emulated", "--build", one.build, "--out", self.folder / "out", "--only", "devices,ops",
                                "--commit", "abc1")  # fmt: skip
        self.assertEqual(status, 1)
        self.assertRegex(out, r"(?m)^devices +ok +\d+\.\d  2 passed, 1 skipped$")
        self.assertRegex(out, r"(?m)^ops +failed +\d+\.\d  0 passed, exit status 139")
        self.assertTrue(out.endswith("commit abc1: 1 ok, 1 failed\n"), out)


if __name__ == "__main__":
    unittest.main()
