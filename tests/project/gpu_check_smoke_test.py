"""Tests the steps smoke and logits of scripts/gpu_check. Shell scripts replace the programs."""
import contextlib
import io
import json
import os
import unittest
from unittest import mock

from gpu_check_case import ROOT, Folder  # must be first, because it sets the module path
from gpu import logits, main, models, shell, smoke
from gpu.context import ONE, TWO
from gpu.report import FAILED, OK

RIGHT = 'echo starting; echo "{\\"tokens\\": [1, 2, 3], \\"top_logits\\": [[2, 5.0], [9, 4.0]]}"\n'
WRONG = 'echo "{\\"tokens\\": [1, 9, 3]}"\n'
CPU = f'case "$*" in *"--devices CPU0"*) {RIGHT.strip()}; exit;; esac\n'


class Smoke(Folder):
    def context(self, shoal: str, emulated=False):
        one = self.built(emulated, shoal=shoal)
        one.root = ROOT
        return one

    def test_runs_three_prompts_with_and_without_graphs(self):
        one = self.context(RIGHT)
        result = smoke.same_tokens(one, 60, TWO, "smoke-two")
        self.assertEqual((result.result, result.detail, one.doubts), (OK, "6 runs give the same tokens as CPU0", {}))
        self.assertEqual([(run.prompt, run.off) for run in smoke.runs(one, ONE)],
                         [(length, off) for off in (("graphs",), ()) for length in (6, 63, 300)])  # fmt: skip
        for length, ids in smoke.prompts(ROOT).items():
            self.assertEqual((len(ids), ids[0]), (length, 1))

    def test_runs_get_environment_variables(self):
        said = 'echo "off=$SHOAL_CUDA_OFF $SHOAL_COMM_TIMEOUT $SHOAL_CUDA_DEVICES_PER_GPU $CUDA_MODULE_LOADING"\n'
        one = self.context(said + RIGHT)
        smoke.same_tokens(one, 60, TWO, "smoke-two")
        text = one.log("smoke-two").read_text()
        self.assertIn("off=graphs 5 2 EAGER\n", text)
        self.assertIn("off= 5 2 EAGER\n", text)

    def test_wrong_tokens_crashes_and_bad_output_fail(self):
        one = self.context(CPU + WRONG)
        result = smoke.same_tokens(one, 60, ONE, "smoke")
        self.assertRegex(result.detail, "^6 of 6 runs are wrong: 6 tokens on CUDA0 without graphs: token 1 is the first difference, logits 1.0")
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
            self.assertIn(f"token 1 is the first difference, logits {gap:.4f} apart", result.detail)
            # The prompt of the run with --top-logits also contains the generated tokens before the first difference.
            asked = next(line for line in one.log("smoke").read_text().splitlines() if "--top-logits" in line)
            self.assertRegex(asked, r"--devices CPU0 .*--prompt-tokens [\d,]+,1 --temp")

    def test_runs_are_not_started_without_remaining_time(self):
        one = self.context(CPU + WRONG)
        result = smoke.same_tokens(one, smoke.RUN_SECONDS - 1, ONE, "smoke")
        self.assertEqual((result.result, result.detail), (FAILED, "0 of 0 runs are wrong; no time for 6 of 6 runs"))
        self.assertNotIn("$ ", one.log("smoke").read_text() if one.log("smoke").exists() else "")

    def test_nothing_is_compared_without_cpu_tokens(self):
        one = self.context("echo no such device; exit 2\n")
        with self.assertRaises(shell.CheckError):
            smoke.same_tokens(one, 60, ONE, "smoke")
        with self.assertRaisesRegex(shell.Skip, r"^the output was not compared \(step smoke\)$"):
            smoke.same_tokens(one, 60, TWO, "smoke-two")

    def test_disabled_features_stay_off_and_are_named(self):
        passes = 'echo "off=$SHOAL_CUDA_OFF"; echo "[ RUN      ] A.b"; echo "[       OK ] A.b (0 ms)"\n'
        one = self.built(True, shoal=CPU + WRONG, test_devices=passes)
        out = io.StringIO()
        with contextlib.redirect_stdout(out), mock.patch("signal.signal"), mock.patch.dict(os.environ, SHOAL_CUDA_OFF="wgmma"):
            status = main.main(["--emulated", "--build", str(one.build), "--out", str(self.folder / "out"), "--only",
                                "environment,smoke,devices"], "text")  # fmt: skip
        self.assertEqual(status, 1)
        self.assertRegex(out.getvalue(), r"(?m)^smoke +failed .*: 6 tokens on CUDA0 without graphs: token 1 is the first difference")
        self.assertRegex(out.getvalue(), r"(?m)^devices +ok .*1 passed; .*with SHOAL_CUDA_OFF=wgmma$")
        self.assertIn("off=wgmma\n", one.log("devices").read_text())
        self.assertEqual(json.loads((self.folder / "out/gpu_check.json").read_text())["good"], False)


class Logits(Folder):
    def compared(self, found: str, devices=ONE):
        cpu = 'case "$*" in *"--devices CPU0"*) echo "{\\"top_logits\\": [[1, 3.0], [2, -4.0]]}"; exit;; esac\n'
        one = self.built(shoal=cpu + f'echo "{{\\"top_logits\\": {found}}}"\n')
        one.models.mkdir(exist_ok=True)
        models.path_of(one, "logits").touch()
        return one, logits.compare(one, 30, devices, "logits")

    def test_equal_logits_pass(self):
        one, result = self.compared("[[2, -4.0], [1, 3.05]]", TWO)
        self.assertEqual((result.result, one.doubts), (OK, {}))
        self.assertEqual(result.detail, "40 tokens: NMSE 1.0e-04, 300 tokens: NMSE 1.0e-04")

    def test_wrong_logits_fail_and_add_note_to_benchmarks(self):
        for found in ("[[1, 3.0], [2, -4.5]]", "[[1, 3.0]]", "[[1, 3.0], [2, null]]"):
            one, result = self.compared(found)
            self.assertEqual(result.result, FAILED)
            self.assertEqual(one.doubts, {"logits": "the output was wrong (step logits)"})
        made = {step.name: step for step in main.all_steps(False)}
        for name in ("bench-q4_k_m", "bench-q4_k_m-meta", "bench-q8_0", "bench-f16", "times-token"):
            self.assertIn("logits", made[name].doubts, name)
        self.assertIn("logits-q8_0", made["bench-q8_0"].doubts)

    def test_failed_program_adds_note_to_benchmarks(self):
        one = self.built(shoal='case "$*" in *CPU0*) echo "{\\"top_logits\\": []}";; *) echo broken; exit 3;; esac\n')
        one.models.mkdir()
        models.path_of(one, "logits").touch()
        with self.assertRaisesRegex(shell.CheckError, "^40 tokens on CUDA0: exit status 3; broken$"):
            logits.compare(one, 30, ONE, "logits")
        self.assertEqual(one.doubts, {"logits": "the output was not compared (step logits)"})


if __name__ == "__main__":
    unittest.main()
