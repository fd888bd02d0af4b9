"""Tests scripts/gpu_check: output, time limits, missing tools, packed programs. Needs no GPU and no build."""
import contextlib
import fnmatch
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import unittest
from unittest import mock

sys.dont_write_bytecode = True

from gpu_check_case import FAILING, PASSING, ROOT, Carried, Folder, context, ended, fake_program  # noqa: E402
from gpu import build, gtest, machine, main, programs, shell, steps, tests  # noqa: E402
from gpu.report import FAILED, OK, SKIPPED, Report, Result  # noqa: E402

SCRIPT = ROOT / "scripts/gpu_check"


class Shell(Folder):
    def test_time_limit_kills_program_and_children(self):
        outcome = shell.run(["sh", "-c", "sleep 100000 & echo $!; wait"], 2, self.folder / "log")
        self.assertTrue(outcome.timed_out)
        self.assertIn("time limit", outcome.ending())
        state = pathlib.Path(f"/proc/{int(outcome.output)}/stat")
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # raised if the child no longer exists
            # Waits until the child is a zombie or dead. CTest limits this wait.
            while state.read_text().rsplit(")", 1)[1].split()[0] not in "ZX":
                time.sleep(0.02)


class GoogleTest(unittest.TestCase):
    def verdict(self, output, status):
        return gtest.verdict(gtest.parse(output), ended(output, status))

    def test_counts_passed_and_skipped_tests(self):
        self.assertEqual(self.verdict(PASSING, 0), (True, "2 passed, 1 skipped"))

    def test_names_failed_and_crashed_tests(self):
        self.assertEqual(self.verdict(FAILING, 1), (False, "1 passed, 1 failed: Ops.Run/mul"))
        self.assertEqual(self.verdict(FAILING, -11),
                         (False, "1 passed, 1 failed: Ops.Run/mul, ended by SIGSEGV in Ops.Run/rope"))  # fmt: skip

    def test_time_limit_fails_and_names_running_test(self):
        good, detail = self.verdict(FAILING.replace("[  FAILED  ]", "[       OK ]"), None)
        self.assertFalse(good)
        self.assertEqual(detail, "2 passed, time limit of 5 s reached in Ops.Run/rope")


class Steps(Folder):
    def run_steps(self, made, seconds=100.0):
        """Runs steps with a simulated clock, which each step advances by its own duration."""
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

    def test_only_dependents_of_failed_step_are_skipped(self):
        report = self.run_steps([self.step("a", fails=shell.CheckError("broke")), self.step("b", needs=("a",)),
                                 self.step("c", needs=("b",)), self.step("d")])  # fmt: skip
        self.assertEqual([one.result for one in report.results], [FAILED, SKIPPED, SKIPPED, OK])
        self.assertEqual(report.results[2].detail, "needs the step b")

    def test_step_limits_stay_within_total_limit(self):
        report = self.run_steps([self.step("a", takes=80, limit=90), self.step("b", takes=18), self.step("c")])
        self.assertEqual([one.detail for one in report.results], ["limit 90", "limit 20", "no time: 2 s are left"])
        self.assertEqual(report.results[2].result, SKIPPED)

    def test_error_does_not_stop_other_steps(self):
        fails = (IndexError("no row"), EOFError("cut off"), subprocess.TimeoutExpired("python3", 30), TypeError("None"))
        report = self.run_steps([self.step(str(i), fails=error) for i, error in enumerate(fails)] + [self.step("last")])
        self.assertEqual([one.result for one in report.results], [FAILED] * 4 + [OK])
        self.assertEqual(report.results[0].detail, "IndexError: no row")

    def test_results_mention_doubts_and_disabled_features(self):
        one = context(self.folder)
        made = steps.Step("bench", lambda *_: None, 5, doubts=("smoke", "logits"))
        one.doubts.update(smoke="the output was wrong (step smoke)", streams="note that the step streams failed")
        one.off = ("early", "graphs")
        self.assertEqual(steps.with_notes(Result("a", OK, detail="700 tokens/s"), made.doubts, one).detail,
                         "700 tokens/s; the output was wrong (step smoke); with SHOAL_CUDA_OFF=early,graphs")  # fmt: skip
        self.assertEqual(steps.with_notes(Result("a", SKIPPED, detail="x"), made.doubts, one).detail, "x")
        every = {step.name: step for step in main.all_steps(False)}
        self.assertEqual([name for name in every if "streams" in every[name].doubts],
                         ["kernels-first", "bench-q4_k_m-meta", "bench-comm", "kernels", "collectives", "reference",
                          "meta"])  # fmt: skip
        # The limit is long enough for loading and for the time-outs of all kernels.
        self.assertGreaterEqual(every["streams"].limit, 3 * 6.75 + 3 + 15)

    def test_steps_are_chosen_by_name(self):
        made = [self.step(name) for name in ("build", "bench-a", "bench-b", "benchmark")]
        self.assertEqual([one.name for one in steps.choose(made, "bench,build")], ["build", "bench-a", "bench-b"])
        self.assertEqual(len(steps.choose(made, None)), 4)
        with self.assertRaisesRegex(shell.CheckError, "there is no step 'test'; known: build, bench-a"):
            steps.choose(made, "test")

    def test_chosen_steps_include_required_steps(self):
        chosen = [one.name for one in steps.choose(main.all_steps(False), "smoke,bench")]
        self.assertEqual(chosen[:4], ["environment", "models", "smoke", "smoke-two"])
        self.assertEqual((chosen[4], chosen[-1]), ("models-rest", "bench-f16"))
        self.assertEqual([one.name for one in steps.choose(main.all_steps(False), "logits-two")],
                         ["environment", "models", "logits-two"])  # fmt: skip

    def test_most_important_steps_come_first(self):
        names = [one.name for one in main.all_steps(False)]
        order = ["environment", "programs", "streams", "smoke", "smoke-two", "kernels-first", "logits",
                 "models-rest", "bench-q4_k_m", "bench-q4_k_m-meta", "ceilings", "bench-comm", "times-token", "bench-f16",
                 "devices", "sched", "sanitizer-races"]  # fmt: skip
        self.assertEqual([name for name in names if name in order], order)
        first = sum(one.limit for one in main.all_steps(False)[: names.index("models-rest")] if one.name != "build")
        self.assertLess(first, 560)  # default limit in seconds; `logits` runs even if earlier steps hang
        self.assertLess({one.name for one in main.all_steps(True)}, set(names))


class Reports(Folder):
    def report(self):
        report = Report(self.folder, {"commit": "abc", "machine": {"cores": 16}}, out=lambda line: None)
        log = self.folder / "step.log"
        log.write_text("what it said\n")
        report.add(Result("devices", OK, 1.25, "65 passed", {"passed": 65}), log)
        report.add(Result("sanitizer-ops", SKIPPED, 0.0, "no tool"))
        return report

    def test_json_is_written_after_every_step(self):
        report = self.report()
        found = json.loads((self.folder / "gpu_check.json").read_text())
        self.assertEqual([one["step"] for one in found["steps"]], ["devices", "sanitizer-ops"])
        self.assertEqual(found["steps"][0]["data"], {"passed": 65})
        self.assertEqual((found["commit"], found["machine"], found["good"]), ("abc", {"cores": 16}, True))
        self.assertRegex(found["date"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00$")
        report.add(Result("ops", FAILED, 3.0, "broke"))
        self.assertFalse(json.loads((self.folder / "gpu_check.json").read_text())["good"])
        self.assertIn("broke", (self.folder / "summary.txt").read_text())

    def test_logs_stay_below_size_limit(self):
        report = self.report()
        log = self.folder / "long.log"
        log.write_text("x" * 3_000_000)
        for i in range(40):
            report.add(Result(f"long{i}", OK, data={"failed_tests": [str(n) for n in range(100_000)]}), log)
        self.assertLess(sum(file.stat().st_size for file in self.folder.iterdir() if file != log), 12_000_000)
        self.assertIn("===== long39\n", (self.folder / "log.txt").read_text())

    def test_running_step_is_known_after_kill(self):
        report = self.report()
        report.begin("ops")
        self.assertEqual(json.loads((self.folder / "gpu_check.json").read_text())["running"], "ops")
        self.assertIn("the step ops was still running", (self.folder / "summary.txt").read_text())
        report.add(Result("ops", OK))
        self.assertNotIn("running", json.loads((self.folder / "gpu_check.json").read_text()))
        self.assertNotIn("was still running", (self.folder / "summary.txt").read_text())


class Suites(Folder):
    def test_reports_streams_that_do_not_overlap(self):
        output = "at once: launches 2 of 2\nat once: launches 3 of 3\nat once: graphs 1 of 2\n"
        one = self.built(test_cuda_streams=f"cat <<'X'\n{output}{FAILING}X\nexit 1\n")
        one.plugin.unlink()  # this step needs no plug-in
        result = tests.run_streams(one, 20)
        self.assertEqual(result.result, FAILED)
        self.assertIn("streams", one.doubts)
        self.assertTrue(result.detail.startswith("at once: launches 3; 1 passed, 1 failed"), result.detail)

    def test_failed_tests_are_repeated_alone(self):
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
        self.assertTrue(result.detail.endswith("run one by one: 1 passed, but not Ops.Run/mul"), result.detail)

    def test_failures_of_timing_tests_count_as_noise(self):
        noise = "P2pFailure.EndsLaterWorkAtOnce"
        for names, expected in (([noise], OK), ([noise, "P2pFailure.Other"], FAILED)):
            lines = "".join(f"[ RUN      ] {name}\n[  FAILED  ] {name} (9 ms)\n" for name in names)
            one = self.built(test_cuda_gpu=f"cat <<'X'\n{PASSING}{lines}X\nexit 1\n")
            result = tests.run_suite(one, tests.Suite("test_cuda_gpu", "*"), "kernels", 20)
            self.assertEqual(result.result, expected, result.detail)
            self.assertIn(noise, result.detail)
        files = "".join((ROOT / f"tests/cuda/p2p_{name}_test.cpp").read_text() for name in ("failure", "product"))
        for name in tests.NOISE:
            self.assertIn(f"TEST({name.replace('.', ', ')})", files)

    def test_only_single_device_suites_load_lazily(self):
        said = 'echo "loading=$CUDA_MODULE_LOADING"; echo "[ RUN      ] A.b"; echo "[       OK ] A.b (0 ms)"\n'
        one = self.built(test_devices=said, test_ops=said, test_collectives=said, test_cuda_gpu=said, sanitizer=said)
        made = {step.name: step for step in main.all_steps(False)}
        with mock.patch.object(tests, "cuda_tool", return_value=str(one.build / "bin/sanitizer")):
            for name, expected in [("devices", "LAZY"), ("ops", "LAZY"), ("sanitizer-ops", "LAZY"), ("sanitizer-races", "LAZY"),
                                   ("collectives", "EAGER"), ("kernels", "EAGER"), ("kernels-first", "EAGER")]:  # fmt: skip
                made[name].work(one, 20)
                self.assertIn(f"loading={expected}\n", one.log(name).read_text(), name)

    def test_missing_suite_is_skipped(self):
        one = self.built(test_ops="exit 0\n")
        one.broken = {"test_ops"}
        with self.assertRaisesRegex(shell.Skip, "^there is no test_ops$"):
            tests.run_suite(one, tests.Suite("test_ops", "*"), "ops", 5)
        with self.assertRaisesRegex(shell.CheckError, "run the step 'build' first"):
            tests.run_suite(one, tests.Suite("test_devices", "*"), "devices", 5)


class Filters(Folder):
    SOURCES = {"test_cuda": "cuda", "test_cuda_gpu": "cuda", "test_cuda_streams": "cuda", "test_ops": "ops",
               "test_devices": "devices", "test_collectives": "collectives", "test_models": "models",
               "test_property": "property"}  # fmt: skip

    def names(self, program):
        """Names of all tests, with a prefix and a slash for parametrised tests."""
        files = [file.read_text() for file in sorted((ROOT / "tests" / self.SOURCES[program]).rglob("*.[ch]*"))]
        if program == "test_cuda_gpu":
            files = [text for text in files if '#include "tests/cuda/emulator/' not in text]
        text = "".join(files)
        prefixes = re.findall(r"\bINSTANTIATE_TEST_SUITE_P\((\w*), (\w+),", text)
        by_macro = re.findall(r"^SHOAL_INSTANTIATE_\w+\((\w+),", text, re.MULTILINE)
        prefixes += [(prefix, suite) for name, suite in prefixes if name == "prefix" for prefix in by_macro]
        for kind, suite, name in re.findall(r"^(TEST|TEST_F|TEST_P)\((\w+), (\w+)\)", text, re.MULTILINE):
            if kind != "TEST_P":
                yield f"{suite}.{name}"
            for prefix in [prefix for prefix, of in prefixes if kind == "TEST_P" and of == suite]:
                yield f"{prefix}/{suite}.{name}/".removeprefix("/")

    def test_every_filter_matches_existing_tests(self):
        used = []

        def run_gtest(context, suite, *_, **__):
            used.append((suite.program, suite.tests))
            raise shell.Skip

        one, emulated = context(self.folder), context(self.folder, True)
        one.machine["nccl"] = "x"
        with mock.patch.multiple(tests, run_gtest=run_gtest, cuda_tool=lambda _: "x"):
            for step in [tests.streams_step(), tests.first_step(), *tests.later_steps()]:
                for chosen in [one, *([emulated] if step.emulated else [])]:
                    with self.assertRaises(shell.Skip):
                        step.work(chosen, 5)
        self.assertGreater(len(used), 15)
        for program, filters in used:
            names = list(self.names(program))
            for pattern in filters.replace("-", ":").split(":"):
                suite = re.sub(r"\..*$", ".*", pattern) if "." in pattern else re.sub(r"/[^/]*$", "/*", pattern)
                self.assertTrue(any(fnmatch.fnmatchcase(name, suite) for name in names), f"{program}: {pattern}")


class Sanitizer(unittest.TestCase):
    CLEAN = PASSING + "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
    BROKEN = (PASSING + "========= COMPUTE-SANITIZER\n========= Invalid __global__ write of size 4 bytes\n"
              "=========     at kernel+0x10\n=========     by thread (0,0,0)\n========= ERROR SUMMARY: 1 error\n")  # fmt: skip

    def judge(self, output, status):
        return tests.sanitizer_verdict(ended(output, status), gtest.parse(output))

    def test_clean_output_passes(self):
        result = self.judge(self.CLEAN, 0)
        self.assertEqual((result.result, result.detail), (OK, "0 errors; 2 passed, 1 skipped"))

    def test_sanitizer_error_fails_even_if_tests_pass(self):
        result = self.judge(self.BROKEN, 86)
        self.assertEqual((result.result, result.detail), (FAILED, "Invalid __global__ write of size 4 bytes (1 error)"))
        self.assertEqual(result.data["errors"], ["Invalid __global__ write of size 4 bytes"])
        self.assertEqual(self.judge(self.BROKEN.replace("========= ERROR SUMMARY: 1 error\n", ""), None).result, FAILED)

    def test_time_limit_passes_after_one_clean_test(self):
        result = self.judge(PASSING, None)
        self.assertEqual(result.detail, "nothing found in the 2 tests that ended within the limit")
        with self.assertRaisesRegex(shell.Skip, "no test ended within 5 s"):
            self.judge("[ RUN      ] A.b\n", None)


class Machine(Folder):
    def test_missing_tools_are_reported_in_one_line(self):
        one = context(self.folder)
        with mock.patch.object(machine, "cuda_tool", return_value=None):
            with self.assertRaisesRegex(shell.CheckError, "^no nvidia-smi: this machine has no NVIDIA driver; .*$"):
                machine.examine(one, 30)
        smi = fake_program(self.folder / "smi", 'echo "A GPU, 1, 2 MiB, 9.0, 1 MHz, 1 MHz, 1 MHz, 1 W"\n')
        with mock.patch.object(machine, "cuda_tool", side_effect={"nvidia-smi": str(smi)}.get):
            self.assertTrue(machine.examine(one, 30).detail.endswith("; no nvcc"))
            with self.assertRaisesRegex(shell.CheckError, "^no nvcc in PATH, CUDA_PATH or /usr/local/cuda/bin; install it$"):
                build.build(one, 30)
            self.assertEqual(one.broken, set(build.targets(one)))
            with mock.patch.object(machine.shutil, "which", return_value=None):
                machine.examine(one, 30)
                with self.assertRaisesRegex(shell.CheckError, "^no compiler in PATH; install it$"):
                    build.build(one, 30)
        with mock.patch.object(tests, "cuda_tool", return_value=None):
            step = next(step for step in tests.later_steps() if step.name == "sanitizer-ops")
            with self.assertRaisesRegex(shell.Skip, "^no compute-sanitizer here$"):
                step.work(one, 5)


class Build(Folder):
    def test_configures_for_gpu_and_emulator(self):
        one = context(self.folder)
        words = build.configure_command(one, "90")
        self.assertIn("-DSHOAL_CUDA_ARCHITECTURES=90", words)
        self.assertIn("-DSHOAL_CUDA_EMULATED=OFF", words)
        self.assertFalse(any("SHOAL_CUDA" in word for word in build.configure_command(context(self.folder, True), None)))

    def test_reports_targets_that_were_not_built(self):
        cmake = fake_program(self.folder / "tools/cmake", f"""
case "$*" in
*test_ops*) echo "ops.cpp:1: error: bad"; exit 1;;
*--build*) cd {self.folder}/build; mkdir bin; touch bin/shoal bin/libshoal-cuda.so;;
esac
""")  # fmt: skip
        one = context(self.folder / "build")
        one.machine["gpus"] = [{"compute_cap": "9.0"}]
        with mock.patch.dict(os.environ, {"PATH": f"{cmake.parent}:{os.environ['PATH']}"}), \
             mock.patch.object(build, "require_build_tools"):  # fmt: skip
            result = build.build(one, 30)
        self.assertEqual((result.result, one.broken), (FAILED, set(build.targets(one)) - {"shoal", "shoal_cuda"}))
        self.assertRegex(result.detail, "not built: cuda_ceilings, .*test_ops.*; ops.cpp:1: error: bad$")
        words = [line.split() for line in one.log("build").read_text().splitlines() if "--target" in line]
        self.assertEqual(words[0][words[0].index("--target") + 1 :][:3], ["shoal", "shoal_cuda", "--"])


class Programs(Carried):
    def test_packed_programs_replace_build(self):
        one = self.other(self.packed())
        result = programs.unpack(one, 30)
        self.assertEqual(result.result, OK)
        self.assertTrue(result.detail.startswith("built from commit abc123, nvcc V13.0.88"), result.detail)
        self.assertNotIn(", not ", result.detail)
        for name in build.targets(one)[2:]:
            self.assertTrue(os.access(one.program(name), os.X_OK), name)
        self.assertTrue((one.build / "tests/models/x-q4_0.gguf").exists())
        self.assertEqual([file.name for file in (one.build / "lib").iterdir()], ["libfmt.so.9"])
        self.assertTrue(one.environment()["LD_LIBRARY_PATH"].startswith(str(one.build / "lib")))
        names = {True: "programs", False: "build"}
        for carried, name in names.items():
            made = [step.name for step in main.all_steps(False, carried)]
            self.assertEqual([one for one in made if one in names.values()], [name])

    def refused(self, one, message):
        with self.assertRaisesRegex(shell.CheckError, message):
            programs.unpack(one, 30)
        self.assertEqual(one.broken, set(build.targets(one)))

    def test_rejects_programs_of_other_commit_gpu_or_folder(self):
        deps = self.packed()
        self.refused(self.other(deps, "def456"), "^the programs are of commit abc123, not def456: pack again$")
        other = self.other(deps)
        other.machine["gpus"][0]["compute_cap"] = "8.0"
        self.refused(other, "^the programs are for sm_90, not sm_80: pack with --arch 80$")
        other = self.other(deps)
        other.build = other.root / "elsewhere"
        self.refused(other, "^the programs belong in build/gpu: name this folder with --build$")

    def test_rejects_broken_archive(self):
        deps = self.packed()
        whole = (deps / programs.ARCHIVE).read_bytes()
        broken = {"cut": whole[: len(whole) // 2], "empty": b"", "other": b"not an archive",
                  "changed": whole[:-80] + b"x" * 80}  # fmt: skip
        for data in broken.values():
            (deps / programs.ARCHIVE).write_bytes(data)
            self.refused(self.other(deps), r"programs.tar.xz cannot be read \(.+\): pack again$")
        (deps / programs.ARCHIVE).unlink()
        self.refused(self.other(deps), r"programs.tar.xz cannot be read \(FileNotFoundError.+\): pack again$")

    def test_rejects_programs_that_fail_or_find_no_gpu(self):
        deps = self.packed()
        for output, status, why in (("shoal: no GLIBC_2.36", 1, r"^shoal devices: exit status 1; shoal: no GLIBC"),
                                    ("CPU0  CPU\nCUDA: no_devices=old driver", 0, r"finds no GPU \(CUDA: no_devices")):  # fmt: skip
            with mock.patch.object(programs, "run", return_value=ended(output, status)):
                self.refused(self.other(deps), why)


class Program(Folder):
    def call(self, *arguments):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), mock.patch("signal.signal"):
            status = main.main([str(word) for word in arguments], "text")
        return status, out.getvalue()

    def test_script_lists_its_steps(self):
        outcome = shell.run([sys.executable, SCRIPT, "--list"], 60, self.folder / "log")
        self.assertEqual(outcome.status, 0, outcome.output)
        self.assertRegex(outcome.output, r"(?m)^sanitizer-races +30 s$")
        self.assertTrue(os.access(SCRIPT, os.X_OK))

    def test_one_table_reports_missing_gpu(self):
        with mock.patch.object(machine, "cuda_tool", return_value=None):
            status, out = self.call("--build", self.folder / "build", "--out", self.folder / "out", "--only",
                                    "environment,build,devices")  # fmt: skip
        self.assertEqual(status, 1)
        self.assertRegex(out, r"(?m)^environment +failed +0\.\d  no nvidia-smi: this machine has no NVIDIA driver")
        self.assertRegex(out, r"(?m)^devices +skipped +0\.0  needs the step environment")
        found = json.loads((self.folder / "out/gpu_check.json").read_text())
        self.assertEqual(found["steps"][0]["result"], FAILED)

    def test_rejects_wrong_arguments(self):
        self.assertEqual(self.call("--only", "nonsense")[0], 2)
        status, out = self.call("--deps", self.folder / "none", "--only", "environment")
        self.assertEqual((status, out), (2, f"gpu_check: --deps: there is no folder {self.folder / 'none'}\n"))
        (self.folder / "full").mkdir()
        (self.folder / "full/file").touch()
        out = self.call("--pack", self.folder / "full")[1]
        self.assertEqual(out, f"gpu_check: --pack: {self.folder / 'full'} is not empty\n")


if __name__ == "__main__":
    unittest.main()
