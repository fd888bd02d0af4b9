"""scripts/gpu_check: the first output, the search for a faulty feature, and logits, with programs that are scripts."""
import contextlib
import io
import json
import unittest
from unittest import mock

from gpu_check_case import ROOT, Folder  # first: it finds the other modules
from gpu import fault, logits, main, models, shell, smoke
from gpu.context import ONE, TWO
from gpu.report import FAILED, OK

RIGHT = 'echo starting; echo "{\\"tokens\\": [1, 2, 3], \\"top_logits\\": [[2, 5.0], [9, 4.0]]}"\n'
WRONG = 'echo "{\\"tokens\\": [1, 9, 3]}"\n'
CPU = f'case "$*" in *"--devices CPU0"*) {RIGHT.strip()}; exit;; esac\n'


def right_without(feature: str, wrong: str = WRONG) -> str:
    """A shoal with a faulty feature."""
    return f'{CPU}case ",$SHOAL_CUDA_OFF," in *,{feature},*) {RIGHT.strip()}; exit;; esac\n{wrong}'


class Smoke(Folder):
    def context(self, shoal: str, emulated=False):
        one = self.built(emulated, shoal=shoal, sanitizer='echo "========= Invalid read"; exit 86\n')
        one.root = ROOT
        return one

    def searched(self, shoal: str, devices=ONE):
        """The context and the result of the search, after a failed smoke step."""
        one = self.context(shoal)
        self.assertEqual(smoke.same_tokens(one, 60, devices, "smoke").result, FAILED)
        self.assertIn("the output was wrong", one.doubts["smoke"])
        with mock.patch.object(smoke, "cuda_tool", return_value=str(one.build / "bin/sanitizer")):
            return one, smoke.find_fault(one, 100, devices, "fault", "smoke")

    def test_prompts_of_6_63_and_300_tokens_with_and_without_graphs(self):
        one = self.context(RIGHT)
        result = smoke.same_tokens(one, 60, TWO, "smoke-two")
        self.assertEqual((result.result, result.detail, one.doubts), (OK, "6 runs as on CPU0", {}))
        self.assertEqual([(run.prompt, run.off) for run in smoke.runs(one, ONE)],
                         [(length, off) for off in (("graphs",), ()) for length in (6, 63, 300)])  # fmt: skip
        for length, ids in smoke.prompts(ROOT).items():
            self.assertEqual((len(ids), ids[0]), (length, 1))
        self.assertEqual(smoke.find_fault(one, 10, ONE, "fault", "smoke").detail, "not needed")

    def test_environment_of_runs(self):
        said = 'echo "off=$SHOAL_CUDA_OFF $SHOAL_COMM_TIMEOUT $SHOAL_CUDA_DEVICES_PER_GPU $CUDA_MODULE_LOADING"\n'
        one = self.context(said + RIGHT)
        smoke.same_tokens(one, 60, TWO, "smoke-two")
        text = one.log("smoke-two").read_text()
        self.assertIn("off=graphs 5 2 EAGER\n", text)
        self.assertIn("off= 5 2 EAGER\n", text)

    def test_wrong_tokens_crashes_and_what_cannot_be_compared_fail(self):
        one = self.context(CPU + WRONG)
        result = smoke.same_tokens(one, 60, ONE, "smoke")
        self.assertRegex(result.detail, "^6 of 6 runs are wrong: 6 tokens on CUDA0 without graphs: differs from token 1, 1.0")
        result = smoke.same_tokens(self.context(CPU + "echo CUDA error; kill -SEGV $$\n"), 60, ONE, "smoke")
        self.assertIn("ended by SIGSEGV; CUDA error", result.detail)
        result = smoke.same_tokens(self.context(CPU + "echo '{cut off'\n"), 60, ONE, "smoke")
        self.assertIn("6 of 6 runs are wrong: 6 tokens on CUDA0 without graphs: JSONDecodeError", result.detail)
        with self.assertRaisesRegex(shell.CheckError, "^6 tokens on CPU0: exit status 2; no such device$"):
            smoke.same_tokens(self.context("echo no such device; exit 2\n"), 60, ONE, "smoke")

    def test_ties_are_not_wrong(self):
        for gap, expected in ((0.005, OK), (0.5, FAILED)):
            top = f'case "$*" in *--top-logits*) echo "{{\\"top_logits\\": [[2, 5.0], [9, {5 - gap}]]}}"; exit;; esac\n'
            one = self.context(top + CPU + WRONG)
            result = smoke.same_tokens(one, 60, ONE, "smoke")
            self.assertEqual(result.result, expected, result.detail)
            self.assertIn(f"differs from token 1, {gap:.4f} apart", result.detail)
            # The prompt of the question ends with the common tokens.
            asked = next(line for line in one.log("smoke").read_text().splitlines() if "--top-logits" in line)
            self.assertRegex(asked, r"--devices CPU0 .*--prompt-tokens [\d,]+,1 --temp")

    def test_the_faulty_feature_is_named_and_stays_off(self):
        one, result = self.searched(right_without("stream"))
        self.assertEqual(result.result, OK)
        self.assertEqual(result.detail, "wrong with all features; right with SHOAL_CUDA_OFF=stream, which later steps run with")
        self.assertEqual((one.off, one.doubts), (("stream",), {}))
        self.assertEqual(one.environment()["SHOAL_CUDA_OFF"], "stream")
        self.assertEqual(one.environment(("early",))["SHOAL_CUDA_OFF"], "early,stream")

    def test_graphs_are_a_feature(self):
        self.assertEqual(self.searched(right_without("graphs"))[0].off, ("graphs",))

    def test_two_faulty_features_need_all_off(self):
        both = f'{CPU}case ",$SHOAL_CUDA_OFF," in *,early,wgmma,*) {RIGHT.strip()}; exit;; esac\n{WRONG}'
        one, result = self.searched(both)
        self.assertEqual((result.result, one.off), (OK, ("early", "wgmma", "stream", "fuse")))  # of runs without graphs
        self.assertNotIn("p2p_product", one.log("fault").read_text())

    def test_a_fault_of_each_prompt_has_a_feature_of_its_own(self):
        """Long prompts need wgmma off, short ones early."""
        long = f'case "$*" in *,*,*,*,*,*,*,*,*) {right_without("wgmma").replace(CPU, "").strip()}; exit;; esac\n'
        one, _ = self.searched(CPU + long + right_without("early").replace(CPU, ""))
        self.assertEqual(one.off, ("early", "wgmma"))

    def test_a_failure_that_does_not_come_again_blames_no_feature(self):
        once = f'{CPU}if mkdir {self.folder}/failed 2>/dev/null; then {WRONG.strip()}; else {RIGHT.strip()}; fi\n'
        one, result = self.searched(once)
        self.assertEqual((result.result, one.off), (FAILED, ()))
        self.assertEqual(result.detail,
                         "6 tokens on CUDA0 without graphs: not reproduced in 3 runs (intermittent, or too slow)")  # fmt: skip
        self.assertIn("smoke", one.doubts)

    def test_a_feature_is_faulty_if_its_run_is_wrong_again(self):
        """A list of results, of which each run takes the first."""
        def searched(*results: str):
            left = list(results)
            return fault.search(lambda off: left.pop(0), ("early", "wgmma")), left

        all_off = ["", "", ""]
        self.assertEqual(searched("", "", "bad", *all_off, "", "", "bad", *all_off, "bad"), ((("wgmma",), ""), []))
        (off, why), left = searched("bad", *all_off, "", "", "", "")
        self.assertEqual((off, why, left), ((), "wrong, but not again after it was right without early", []))
        self.assertEqual(searched("bad", "", "bad"), (((), fault.HOPELESS), []))

    def test_missing_time_is_no_fault_and_names_what_was_not_tried(self):
        def run(off):
            if runs.pop() == 0:
                raise fault.NoTime
            return "" if off else "bad"

        runs = [0, 1]
        self.assertEqual(fault.search(run, ("early", "wgmma")), ((), "wrong; no time left to try early, wgmma"))
        runs = [0, *[1] * 4]
        self.assertEqual(fault.search(run, ("early", "wgmma")), (("early", "wgmma"), "wrong; no time left to try early, wgmma"))
        one = self.context(CPU + WRONG)
        result = smoke.same_tokens(one, smoke.RUN_SECONDS - 1, ONE, "smoke")
        self.assertEqual((result.result, result.detail), (FAILED, "0 of 0 runs are wrong; no time for 6 of 6 runs"))
        self.assertNotIn("$ ", one.log("smoke").read_text() if one.log("smoke").exists() else "")

    def test_nothing_is_searched_without_the_tokens_of_the_cpu(self):
        one = self.context("echo no such device; exit 2\n")
        with self.assertRaises(shell.CheckError):
            smoke.same_tokens(one, 60, ONE, "smoke")
        why = r"^the output was not compared \(step smoke\)$"
        for work in (lambda: smoke.find_fault(one, 10, ONE, "fault", "smoke"),
                     lambda: smoke.same_tokens(one, 60, TWO, "smoke-two")):  # fmt: skip
            with self.assertRaisesRegex(shell.Skip, why):
                work()

    def test_a_program_that_hangs_is_searched_too(self):
        with mock.patch.multiple(smoke, RUN_SECONDS=1.5, SEARCH_SECONDS=1.5):
            one, result = self.searched(right_without("early", "sleep 60\n"))
        self.assertEqual((result.result, one.off), (OK, ("early",)), result.detail)

    def test_without_a_faulty_feature_memcheck_runs(self):
        one, result = self.searched(CPU + 'echo "blocking=$CUDA_LAUNCH_BLOCKING $CUDA_MODULE_LOADING"; exit 1\n')
        self.assertEqual((result.result, one.off), (FAILED, ()))
        self.assertEqual(result.detail, "6 tokens on CUDA0 without graphs: wrong whatever is switched off; with "
                                        "CUDA_LAUNCH_BLOCKING=1: exit status 1; blocking=1 LAZY; memcheck: Invalid read")  # fmt: skip
        self.assertIn("the output was wrong (step smoke)", one.doubts["smoke"])
        with self.assertRaisesRegex(shell.Skip, r"^the output was wrong \(step smoke\)$"):
            smoke.same_tokens(one, 60, TWO, "smoke-two")
        one = self.context(CPU + WRONG)
        one.wrong[TWO] = [smoke.Run(TWO, 6)]  # with kernels that wait for each other it would never end
        detail = smoke.find_fault(one, 100, TWO, "fault-two", "smoke-two").detail
        self.assertEqual(detail, "6 tokens on CUDA0.0,CUDA0.1: wrong whatever is switched off")

    def test_a_whole_run_with_a_faulty_feature(self):
        passes = 'echo "off=$SHOAL_CUDA_OFF"; echo "[ RUN      ] A.b"; echo "[       OK ] A.b (0 ms)"\n'
        one = self.built(True, shoal=right_without("wgmma"), test_devices=passes)
        out = io.StringIO()
        with contextlib.redirect_stdout(out), mock.patch("signal.signal"):
            status = main.main(["--emulated", "--build", str(one.build), "--out", str(self.folder / "out"), "--only",
                                "environment,smoke,fault,devices"], "text")  # fmt: skip
        self.assertEqual(status, 1)
        self.assertRegex(out.getvalue(), r"(?m)^smoke +failed .*: 6 tokens on CUDA0 without graphs: differs from token 1")
        self.assertRegex(out.getvalue(), r"(?m)^fault +ok .*wrong with all features; right with SHOAL_CUDA_OFF=wgmma, which")
        self.assertRegex(out.getvalue(), r"(?m)^smoke-two +ok ")
        self.assertRegex(out.getvalue(), r"(?m)^devices +ok .*1 passed; with SHOAL_CUDA_OFF=wgmma$")
        self.assertIn("off=wgmma\n", one.log("devices").read_text())
        found = json.loads((self.folder / "out/gpu_check.json").read_text())
        self.assertEqual(next(step for step in found["steps"] if step["step"] == "fault")["data"], {"off": ["wgmma"]})


class Logits(Folder):
    def compared(self, found: str, devices=ONE):
        cpu = 'case "$*" in *"--devices CPU0"*) echo "{\\"top_logits\\": [[1, 3.0], [2, -4.0]]}"; exit;; esac\n'
        one = self.built(shoal=cpu + f'echo "{{\\"top_logits\\": {found}}}"\n')
        one.models.mkdir(exist_ok=True)
        models.path_of(one, "logits").touch()
        return one, logits.compare(one, 30, devices, "logits")

    def test_the_same_on_both(self):
        one, result = self.compared("[[2, -4.0], [1, 3.05]]", TWO)
        self.assertEqual((result.result, one.doubts), (OK, {}))
        self.assertEqual(result.detail, "40 tokens: NMSE 1.0e-04, 300 tokens: NMSE 1.0e-04")

    def test_a_mismatch_fails_and_is_noted_with_the_benchmarks(self):
        for found in ("[[1, 3.0], [2, -4.5]]", "[[1, 3.0]]", "[[1, 3.0], [2, null]]"):
            one, result = self.compared(found)
            self.assertEqual(result.result, FAILED)
            self.assertEqual(one.doubts, {"logits": "the output was wrong (step logits)"})
        made = {step.name: step for step in main.all_steps(False)}
        for name in ("bench-q4_k_m", "bench-q4_k_m-meta", "bench-q8_0", "bench-f16", "times-token"):
            self.assertIn("logits", made[name].doubts, name)
        self.assertIn("logits-q8_0", made["bench-q8_0"].doubts)

    def test_the_feature_that_makes_logits_wrong_is_named(self):
        """Only for the longer prompt; the CPU computes each of them once."""
        right, wrong = (f'echo "{{\\"top_logits\\": [[1, {value}]]}}"' for value in (3.0, 4.0))
        one = self.built(shoal=f"""
case "$*" in *"--devices CPU0"*) echo run >> {self.folder}/cpu; {right}; exit;; esac
case "${{#7}} $SHOAL_CUDA_OFF" in ???" "*|*fuse*) {right};; *) {wrong};; esac
""")
        one.models.mkdir()
        models.path_of(one, "logits").touch()
        self.assertEqual(logits.compare(one, 60, ONE, "logits").result, FAILED)
        result = logits.find_fault(one, 40, "logits-fault", "logits")
        self.assertEqual((result.result, one.off, one.doubts), (OK, ("fuse",), {}), result.detail)
        self.assertEqual((self.folder / "cpu").read_text(), "run\nrun\n")

    def test_a_program_that_fails_leaves_a_note(self):
        one = self.built(shoal='case "$*" in *CPU0*) echo "{\\"top_logits\\": []}";; *) echo broken; exit 3;; esac\n')
        one.models.mkdir()
        models.path_of(one, "logits").touch()
        with self.assertRaisesRegex(shell.CheckError, "^40 tokens on CUDA0: exit status 3; broken$"):
            logits.compare(one, 30, ONE, "logits")
        self.assertEqual(one.doubts, {"logits": "the output was not compared (step logits)"})


if __name__ == "__main__":
    unittest.main()
