"""Tests the benchmarks of scripts/gpu_check: results, ratios and kernel times. Shell scripts replace the programs."""
import json
import shutil
import subprocess
import unittest
from unittest import mock

from gpu_check_case import ROOT, Folder, context, ended, row  # must be first, because it sets the module path
from gpu import bench, main, models, shell, times
from gpu.report import MISSED, OK


class Ratios(Folder):
    ROWS = [row(512, 0, 20000.0), row(0, 128, 300.0)]

    def test_counts_bytes_of_token(self):
        # The size of the embedding (128256 x 4096 elements, 34 bytes per 32 elements) is subtracted. The size of the
        # cache is added: 64 tokens, 32 layers, keys and values, 1024 f16 elements.
        self.assertEqual(bench.bytes_per_token("q8_0", 8_532_934_656, 64), 8_532_934_656 - 558_170_112 + 8_388_608)
        # The f16 model has 16 layers, and an embedding with 2 bytes per element.
        self.assertEqual(bench.bytes_per_token("f16", 9_080_000_000, 64), 9_080_000_000 - 1_050_673_152 + 4_194_304)

    def test_counts_floating_point_operations_of_prompt(self):
        without_tables = 8_030_261_248 - 2 * 525_336_576
        expected = 2 * without_tables * 512 + 2 * 525_336_576 + 32 * 4 * 4096 * 512 * 513 // 2
        self.assertEqual(bench.flops_of_prompt("q8_0", 8_030_261_248, 512), expected)
        fewer = expected - 16 * 4 * 4096 * 512 * 513 // 2  # 16 layers instead of 32
        self.assertEqual(bench.flops_of_prompt("f16", 8_030_261_248, 512), fewer)

    def test_ratios_compare_measurements_with_limits(self):
        figures = {"ceilings": {"copy": 4.3e12, "bf16": 7.9e14}, "all_reduce_us": 6.5,
                   "bench-q8_0": bench.rates_of(self.ROWS),
                   "bench-q8_0-meta": bench.rates_of([row(512, 0, 19000.0), row(0, 128, 270.0)])}  # fmt: skip
        ratios = bench.compute_ratios(figures)
        self.assertEqual(set(ratios), {"generation q8_0", "prompt q8_0", "meta q8_0", "all_reduce_us"})
        self.assertAlmostEqual(ratios["generation q8_0"], 300 * 7_983_153_152 / 4.3e12)
        self.assertAlmostEqual(ratios["prompt q8_0"], 20000 * bench.flops_of_prompt("q8_0", 8_030_261_248, 512) / 512 / 7.9e14)
        self.assertAlmostEqual(ratios["meta q8_0"], 0.9)

    def test_ratio_below_target_is_missed(self):
        self.assertEqual([bench.judge("meta q8_0", value).result for value in (0.92, 0.93)], [MISSED, OK])
        self.assertEqual([bench.judge("all_reduce_us", value).result for value in (5.1, 5.0)], [MISSED, OK])
        self.assertIn("0.55, target >= 0.75", bench.judge("generation q4_k_m", 0.55).detail)
        targets = [bench.judge(f"generation {kind}", 1).data["target"] for kind in bench.TYPES]
        self.assertEqual(targets, [0.75, 0.85, 0.88])

    def test_wrong_sums_fail(self):
        one = self.built(shoal="""echo '{"wrong": 3, "results": []}'; exit 0\n""")
        with self.assertRaisesRegex(shell.CheckError, "3 elements are wrong"):
            bench.bench_comm(one, 10)

    def test_reports_times_of_collectives(self):
        results = json.dumps({"wrong": 0, "results": [{"size": 1 << 24, "time_us": 3.5, "busbw_gbps": 9}]})
        one = self.built(shoal=f"""echo '{results}'\n""")
        step = next(step for step in main.all_steps(False) if step.name == "bench-comm")
        self.assertEqual(step.work(one, 20).detail, "16 KiB in 3.50 us, 16 MiB at 9 GB/s")
        self.assertEqual(bench.compute_ratios(one.figures), {"all_reduce_us": 3.5})

    def test_reports_warnings_of_shoal_bench(self):
        rows = json.dumps(self.ROWS)
        one = self.built(shoal=f"echo 'shoal: warning: CUDA0 is slow' >&2\ncat <<'X'\n[\n{rows[1:]}\nX\n")
        one.models.mkdir()
        models.path_of(one, "q8_0").touch()
        detail = bench.bench_model(one, 20, "q8_0", "CUDA0", "bench-q8_0").detail
        self.assertEqual(detail, "prompt 20000 tokens/s, generation 300.0 tokens/s; CUDA0 is slow")

    def test_models_are_written_during_other_steps(self):
        rows = json.dumps(self.ROWS)
        one = self.built(shoal=f"cat <<'X'\n[\n{rows[1:]}\nX\n")
        one.root = self.folder
        (self.folder / "scripts").mkdir()
        script = self.folder / "scripts/make_model.py"
        script.write_text("import os, sys, time\nwhile not os.path.exists(sys.path[0] + '/go'): time.sleep(0.02)\n"
                          "open(sys.argv[-1], 'w').write(' '.join(sys.argv[1:-1]))")  # fmt: skip
        self.assertEqual(models.start(one, 10).detail, f"writing logits and q4_k_m to {one.models}")
        models.start(one, 10, models.REST)
        self.addCleanup(models.stop, one)
        step = next(step for step in main.all_steps(False) if step.name == "bench-q8_0")
        with self.assertRaisesRegex(shell.Skip, "q8_0.gguf is still being written$"):
            step.work(one, 0.2)
        (self.folder / "scripts/go").touch()
        self.assertEqual(step.work(one, 30).detail, "prompt 20000 tokens/s, generation 300.0 tokens/s")
        self.assertEqual(models.find(one, "logits", 30).read_text(), "--preset 8b --type q4_k_m --layers 4")
        self.assertEqual(models.find(one, "logits-f16", 30).read_text(), "--preset 8b --type f16 --layers 1 --vocab 8192")
        models.path_of(one, "logits").unlink()
        script.write_text("import sys; sys.exit('make_model.py: No module named numpy')")
        models.start(one, 10)
        with self.assertRaisesRegex(shell.CheckError, "^logits: make_model.py: No module named numpy$"):
            models.find(one, "logits", 30)
        with self.assertRaisesRegex(shell.Skip, "logits.gguf, which the steps models and models-rest write$"):
            models.find(one, "logits", 30)


# A substitute for CUPTI. It reports two overlapping launches of one kernel, a launch of another kernel, and a record
# that does not describe a kernel.
FAKE_CUPTI = r"""
#include <cstdint>
#include <cstring>
struct Kernel {
  int32_t kind, configuration[3];
  uint64_t start, end, completed;
  int32_t numbers[14];
  int64_t grid;
  const char* name;
};
static void (*request)(uint8_t**, size_t*, size_t*);
static void (*complete)(void*, uint32_t, uint8_t*, size_t, size_t);
static int enabled;
static size_t next;
extern "C" {
int cuptiActivityRegisterCallbacks(decltype(request) a, decltype(complete) b) { request = a; complete = b; return 0; }
int cuptiActivityEnable(int kind) { enabled = kind; return ENABLED; }
int cuptiActivityGetNextRecord(uint8_t* buffer, size_t used, Kernel** record) {
  if (next >= used / sizeof(Kernel)) return 12;
  *record = reinterpret_cast<Kernel*>(buffer) + next++;
  return 0;
}
int cuptiActivityFlushAll(uint32_t) {
  uint8_t* buffer;
  size_t size, records;
  request(&buffer, &size, &records);
  Kernel all[4] = {};
  const uint64_t times[4][2] = {{1000, 3000}, {2000, 4000}, {9000, 9500}, {0, 7}};
  for (int i = 0; i < 4; ++i) {
    all[i].kind = i == 3 ? 1 : enabled;
    all[i].start = times[i][0], all[i].end = times[i][1];
    all[i].name = i < 2 ? "_ZN5shoal4cuda3vecILNS_5DTypeE0EEEvi" : "rope";
  }
  std::memcpy(buffer, all, sizeof(all));
  complete(nullptr, 0, buffer, size, sizeof(all));
  return 0;
}
}
"""
# A program that loads and initialises the library in CUDA_INJECTION64_PATH, as the CUDA driver does.
PROGRAM = r"""
#include <cstdlib>
#include <dlfcn.h>
int main() {
  void* library = dlopen(std::getenv("CUDA_INJECTION64_PATH"), RTLD_NOW);
  return library ? reinterpret_cast<int (*)()>(dlsym(library, "InitializeInjection"))() - 1 : 1;
}
"""

class Times(Folder):
    def compiled(self, name, text, *flags):
        source, file = self.folder / f"{name}.cpp", self.folder / name
        source.write_text(text)
        subprocess.run(["c++", "-std=c++17", "-O0", source, "-o", file, *flags], check=True)
        return file

    def with_cupti(self, *flags):
        """Returns a context with a program to profile, and the path of a substitute for CUPTI."""
        one = self.built(shoal="")
        one.root = ROOT
        shutil.move(self.compiled("program", PROGRAM, "-ldl"), one.build / "bin/shoal")
        models.path_of(one, "q4_k_m").parent.mkdir()
        models.path_of(one, "q4_k_m").touch()
        return one, str(self.compiled("cupti.so", FAKE_CUPTI, "-shared", "-fPIC", *flags))

    def test_times_of_kernels_exclude_waiting(self):
        one, cupti = self.with_cupti("-DENABLED=0")
        step = next(step for step in times.steps() if step.name == "times-token")
        with mock.patch.object(times, "library_in_packages", return_value=cupti):
            result = step.work(one, 60)
        self.assertEqual(result.data["kernels"], [
            {"kernel": "vec<f32>", "launches": 2 / 32, "us": 3 / 32, "us_each": 1.5},  # the second launch waits 1 us
            {"kernel": "rope", "launches": 1 / 32, "us": 0.5 / 32, "us_each": 0.5}])  # fmt: skip
        self.assertEqual(result.data["busy_us"], 3.5 / 32)
        self.assertIn("0.06 x      1.50 us  vec<f32>", one.log("times-token").read_text())
        self.assertRegex(one.log("times-token").read_text(), r"shoal bench .* -p 0 -n 32 --no-warmup")

    def test_broken_cupti_skips_step(self):
        one, cupti = self.with_cupti("-DENABLED=15")
        for file, why in ((cupti, "CUPTI gives no records of kernels, error 15"), ("/none.so", "/none.so: cannot open")):
            with mock.patch.object(times, "library_in_packages", return_value=file), \
                 self.assertRaisesRegex(shell.Skip, f"^CUPTI does not work here: {why}"):  # fmt: skip
                times.kernel_times(one, 60, "times-token", [], 1)
        with mock.patch.object(times, "library_in_packages", return_value=None), \
             self.assertRaisesRegex(shell.Skip, "^no libcupti.so.13"):  # fmt: skip
            times.kernel_times(one, 60, "times-token", [], 1)


if __name__ == "__main__":
    unittest.main()
