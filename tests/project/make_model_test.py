"""Tests scripts/make_model.py: types, sizes and errors. The test is skipped if neither this Python nor build/venv
has the packages of scripts/requirements.txt."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts/make_model.py"


def usable_python():
    for python in (sys.executable, ROOT / "build/venv/bin/python"):
        if pathlib.Path(python).exists():
            if subprocess.run([python, "-c", "import gguf, numpy"], capture_output=True, check=False).returncode == 0:
                return python
    return None


PYTHON = usable_python()
PROGRAM = os.environ.get("SHOAL_PROGRAM")


def make(*arguments):
    return subprocess.run([PYTHON, SCRIPT, *arguments], capture_output=True, text=True, check=False)


def planned(*arguments):
    """Returns (sizes, type, bytes) of each tensor in a dry run, and the last line of output."""
    done = make("--dry-run", *arguments)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    lines = done.stdout.splitlines()
    found = [re.fullmatch(r"(\S+)\s+([\d x]+?)\s+(\w+)\s+([\d,]+)", line) for line in lines]
    tensors = {m[1]: (m[2], m[3], int(m[4].replace(",", ""))) for m in found if m and m[1] != "all"}
    return tensors, lines[-1]


def types(tensors, part):
    """Returns the type of matrix `part` in each layer."""
    return [kind for name, (_, kind, _) in tensors.items() if name.endswith(f".{part}.weight")]


class MakeModelTest(unittest.TestCase):
    def test_mixed_types_have_sizes_of_published_files(self):
        # The published Llama 3 8B files begin with 7.8 MB of metadata and vocabulary, which a dry run does not count.
        begin = 7_841_000
        for kind, published in (
            ("q3_k", 3_664_499_936),
            ("q3_k_m", 4_018_918_624),
            ("q3_k_l", 4_321_957_088),
            ("q4_k_s", 4_692_669_664),
            ("q4_k_m", 4_920_739_232),
            ("q5_k", 5_599_294_688),
            ("q5_k_m", 5_732_987_808),
            ("q6_k", 6_596_006_944),
        ):
            with self.subTest(kind):
                _, last = planned("--preset", "8b", "--type", kind)
                size = int(re.search(r"([\d,]+) bytes", last)[1].replace(",", ""))
                self.assertAlmostEqual(size + begin, published, delta=10_000)

    def test_outer_layers_get_more_bits(self):
        tensors, _ = planned("--type", "q4_k_m", "--layers", "16")
        better = [layer in (0, 1, 4, 7, 10, 13, 14, 15) for layer in range(16)]
        for part in ("attn_v", "ffn_down"):
            self.assertEqual(types(tensors, part), ["q6_k" if one else "q4_k" for one in better])
        self.assertEqual(types(tensors, "attn_output"), ["q4_k"] * 16)
        tensors, _ = planned("--type", "q4_k_s", "--layers", "16")
        self.assertEqual(types(tensors, "attn_v"), ["q5_k"] * 4 + ["q4_k"] * 12)
        self.assertEqual(types(tensors, "ffn_down"), ["q5_k"] * 2 + ["q4_k"] * 14)
        tensors, _ = planned("--type", "q3_k_m", "--layers", "16")
        self.assertEqual(types(tensors, "attn_v"), ["q5_k"] * 2 + ["q4_k"] * 14)
        self.assertEqual(types(tensors, "ffn_down"), ["q5_k"] + ["q4_k"] * 15)
        self.assertEqual(types(tensors, "ffn_up"), ["q3_k"] * 16)

    def test_value_matrices_of_70b_get_more_bits(self):
        self.assertEqual(set(types(planned("--preset", "70b", "--type", "q4_k_m")[0], "attn_v")), {"q5_k", "q6_k"})

    def test_overrides_types_of_single_tensors(self):
        tensors, _ = planned(
            "--type",
            "q4_0",
            "--layers",
            "2",
            "--tensor-type",
            r"blk\.1\.attn_[qk]=f16",
            "--tensor-type",
            "attn_q=q5_1",
            "--tensor-type",
            "output=q8_0",
        )
        self.assertEqual(types(tensors, "attn_q"), ["q5_1", "f16"])
        self.assertEqual(types(tensors, "attn_k"), ["q4_0", "f16"])
        self.assertEqual(types(tensors, "attn_output"), ["q8_0"] * 2)
        self.assertEqual(tensors["output.weight"][1], "q8_0")
        self.assertEqual(tensors["output_norm.weight"][1], "f32")

    def test_supports_head_length(self):
        tensors, _ = planned("--head-dim", "64", "--type", "f16")
        self.assertEqual(tensors["blk.0.attn_q.weight"], ("256 x 512", "f16", 256 * 512 * 2))
        self.assertEqual(tensors["blk.0.attn_k.weight"][0], "256 x 256")
        self.assertEqual(tensors["blk.0.attn_output.weight"][0], "512 x 256")

    def test_files_match_plan(self):
        arguments = ("--type", "q5_k_m", "--layers", "3", "--head-dim", "64", "--tensor-type", "ffn_up=bf16")
        tensors, _ = planned(*arguments)
        with tempfile.TemporaryDirectory() as folder:
            files = [pathlib.Path(folder) / name for name in ("a.gguf", "b.gguf")]
            for file in files:
                self.assertEqual(make(file, *arguments).stderr, "")
            self.assertEqual(files[0].read_bytes(), files[1].read_bytes())
            code = (
                "import gguf, sys; r = gguf.GGUFReader(sys.argv[1]); f = r.fields['llama.attention.key_length'];"
                "print(f.parts[f.data[0]][0]);"
                "[print(t.name, ' x '.join(map(str, t.shape)), t.tensor_type.name.lower(), t.n_bytes, sep='|')"
                " for t in r.tensors]"
            )
            read = subprocess.run(
                [PYTHON, "-c", code, files[0]], capture_output=True, text=True, check=True
            ).stdout.splitlines()
        self.assertEqual(read[0], "64")
        rows = [line.split("|") for line in read[1:]]
        self.assertEqual({name: (sizes, kind, int(size)) for name, sizes, kind, size in rows}, tensors)

    @unittest.skipUnless(PROGRAM, "SHOAL_PROGRAM is not set")
    def test_every_architecture_runs(self):
        for preset, architecture in (("llama-3.2-1b", "llama"), ("qwen3-0.6b", "qwen3"), ("qwen3-30b-a3b", "qwen3moe"),
                                     ("gpt-oss-20b", "gpt-oss")):  # fmt: skip
            with tempfile.TemporaryDirectory() as folder:
                file = pathlib.Path(folder) / "a.gguf"
                made = make(file, "--preset", preset, "--layers", "2", "--embd", "128", "--ff", "64", "--vocab", "400",
                            "--type", "q4_0", "--output-type", "q8_0", "--tensor-type", "ffn_down=mxfp4")  # fmt: skip
                self.assertEqual(made.stderr, "")
                info = subprocess.run([PROGRAM, "info", "-m", file, "-c", "64", "--output", "json"],
                                      capture_output=True, text=True, check=True)  # fmt: skip
                self.assertEqual(json.loads(info.stdout)["architecture"], architecture)
                command = [PROGRAM, "run", "-m", file, "-c", "64", "--prompt-tokens", "1,300,301", "-n", "4", "--ignore-eos",
                           "--temp", "0", "--output", "json"]  # fmt: skip
                tokens = [
                    json.loads(subprocess.run([*command, "--devices", devices], capture_output=True, check=True).stdout)
                    ["tokens"] for devices in ("CPU0", "CPU0,CPU1")
                ]  # fmt: skip
                self.assertEqual(len(tokens[0]), 4)
                self.assertEqual(tokens[0], tokens[1])

    def test_weights_have_standard_deviation_of_untrained_model(self):
        code = (
            "import gguf, sys; from gguf.quants import dequantize;"
            "[print(t.tensor_type.name.lower(), dequantize(t.data, t.tensor_type).std() * t.shape[0] ** 0.5)"
            " for t in gguf.GGUFReader(sys.argv[1]).tensors if t.name == 'blk.0.ffn_down.weight']"
        )
        for kind in ("q4_0", "q4_k", "iq4_nl", "iq4_xs", "mxfp4", "iq3_xxs", "iq2_s", "iq1_m", "tq1_0"):
            with self.subTest(kind), tempfile.TemporaryDirectory() as folder:
                file = pathlib.Path(folder) / "model.gguf"
                self.assertEqual(make(file, "--type", kind, "--layers", "1").stderr, "")
                read = subprocess.run([PYTHON, "-c", code, file], capture_output=True, text=True, check=True)
                name, deviation = read.stdout.split()
                self.assertEqual(name, kind)
                self.assertAlmostEqual(float(deviation), 1, delta=0.04)

    def test_sparse_files_differ_only_in_weights(self):
        arguments = ("--type", "q4_k_m", "--layers", "3")
        with tempfile.TemporaryDirectory() as folder:
            whole, sparse, again = (pathlib.Path(folder) / name for name in ("whole", "sparse", "again"))
            self.assertEqual(make(whole, *arguments).stderr, "")
            for file in (sparse, again):
                self.assertEqual(make(file, "--sparse", *arguments).stderr, "")
            self.assertEqual(sparse.read_bytes(), again.read_bytes())
            self.assertEqual(sparse.stat().st_size, whole.stat().st_size)
            size = int(re.search(r"([\d,]+) bytes", planned(*arguments)[1])[1].replace(",", ""))
            begin = whole.stat().st_size - size
            self.assertEqual(sparse.read_bytes()[:begin], whole.read_bytes()[:begin])
            self.assertEqual(sparse.read_bytes()[begin:].count(0), size)

    def test_sparse_files_take_no_space(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "70b.gguf"
            self.assertEqual(make(file, "--sparse", "--preset", "70b", "--type", "q4_k_m").stderr, "")
            # The published file of Llama 3.1 70B has 42,520,395,552 bytes. Only the vocabulary and metadata differ.
            self.assertAlmostEqual(file.stat().st_size, 42_520_395_552, delta=20_000_000)
            self.assertLess(file.stat().st_blocks * 512, 20_000_000)
            if PROGRAM:
                command = [PROGRAM, "plan", "-m", file, "--devices", "CPU0", "-c", "512", "--no-repack", "--output", "json"]
                plan = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
                self.assertGreater(plan["memory"][0]["mapped"], 42e9)

    def test_shapes_match_published_parameter_counts(self):
        for preset, published in (
            ("gpt-oss-20b", 20.91e9),
            ("gpt-oss-120b", 116.83e9),
            ("qwen3-30b-a3b", 30.53e9),
            ("qwen3-235b-a22b", 235.09e9),
            ("deepseek-v2-lite", 15.71e9),
            ("qwen3.5-35b-a3b", 34.66e9),
            ("deepseek-v3", 671.03e9),
            ("qwen3.5-397b-a17b", 396.3e9),
        ):
            with self.subTest(preset):
                _, last = planned("--preset", preset, "--type", "q8_0")
                parameters = int(re.search(r"([\d,]+) parameters", last)[1].replace(",", ""))
                self.assertAlmostEqual(parameters, published, delta=0.001 * published)

    def test_short_rows_get_another_type(self):
        tensors, _ = planned("--preset", "deepseek-v3", "--layers", "4", "--type", "q4_k")
        self.assertEqual(tensors["blk.0.attn_k_b.weight"], ("128 x 512 x 128", "q5_0", 128 * 512 * 128 * 22 // 32))
        self.assertEqual(tensors["blk.0.attn_v_b.weight"][1], "q4_k")
        self.assertEqual(tensors["blk.0.ffn_down.weight"][0], "18432 x 7168")
        self.assertEqual(tensors["blk.3.ffn_down_exps.weight"][0], "2048 x 7168 x 256")

    def test_rejects_wrong_arguments(self):
        for arguments, words in (
            (["--tensor-type", "nothing=q4_0"], "nothing=q4_0 is not the first match of any matrix"),
            (["--tensor-type", "attn_norm=f16"], "attn_norm=f16 is not the first match of any matrix"),
            (
                ["--tensor-type", "attn=f16", "--tensor-type", "attn_q=q8_0"],
                "attn_q=q8_0 is not the first match of any matrix",
            ),
            (["--tensor-type", "attn_q=q4"], "expected PATTERN=TYPE"),
            (["--tensor-type", "(=q4_0"], "not a regular expression"),
            (
                ["--tensor-type", "attn_output=q4_k", "--head-dim", "16"],
                "rows of blk.0.attn_output.weight have 128 elements",
            ),
            (["--head-dim", "0"], "--head-dim must be positive"),
            (["--typ", "q8_0"], "unrecognized arguments: --typ; did you mean --type?"),
            (["--head-dim", "15"], "rope needs an even number"),
            (["--heads", "3", "--kv-heads", "3"], "without --head-dim, embd 256 must be a multiple of heads 3"),
        ):
            with self.subTest(arguments):
                done = make("--dry-run", *arguments)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(words, done.stderr.splitlines()[-1])
        self.assertIn("give the file to write, or --dry-run", make("--type", "q4_0").stderr)


if __name__ == "__main__":
    if not PYTHON:
        print("skipped: no Python with gguf and numpy; run scripts/install_python")
        sys.exit(77)  # exit code that CTest treats as skipped
    unittest.main()
