#!/usr/bin/env python3
"""Saves every reference model with llama.cpp's saver and compares what shoal answers for both files.

    python3 -m venv venv && venv/bin/pip install llama-cpp-python gguf numpy
    venv/bin/python scripts/reference/check_saver.py
    venv/bin/python scripts/reference/check_saver.py --only 'qwen3.*' --keep FOLDER --shoal build/release/bin/shoal

Prints one line for each case, with shoal's warnings. Exits with 1 if a saved file is refused or answered otherwise.
Cases that llama.cpp cannot load, and those of which the saver drops a part, are no failures. The tests need no
llama.cpp: they read CASE.saved.gguf of make_models.py, which has the keys that this script finds in saved files.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True

from cases import CASES  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
LENGTHS = (1, 7, 300)
DROPPED = {
    "gemma4-embeddings": "the saver drops per_layer_model_proj and the keys of shared caches",
    "phi3": "the saver writes a window of 0", "phi3-split": "the saver writes a window of 0",
}  # fmt: skip
CLOSE = 1e-9  # NMSE, as in tests/models/arch/architectures_test.cpp


def save(path, target):
    """In a process of its own, which llama.cpp may abort."""
    import ctypes

    import llama_cpp

    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
    if not model:
        sys.exit("llama.cpp does not load it")
    saver = llama_cpp.llama_cpp._lib.llama_model_save_to_file
    saver.argtypes, saver.restype = [ctypes.c_void_p, ctypes.c_char_p], None
    saver(model, str(target).encode())


def answer(shoal, path, ids):
    """All logits behind a prompt, or shoal's complaint; and its warnings."""
    command = [shoal, "run", "-m", path, "--prompt-tokens", ",".join(map(str, ids)), "-n", "1", "--temp", "0",
               "--top-logits", "168", "--output", "json", "--devices", "CPU0"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        return None, done.stderr.strip()
    return dict(json.loads(done.stdout)["top_logits"]), done.stderr.strip()


def nmse(found, expected):
    return sum((found[id] - logit) ** 2 for id, logit in expected.items()) / sum(v * v for v in expected.values())


def compare(shoal, case, original, saved):
    """Whether the answers are the same, and a line about them."""
    worst = 0.0
    for length in LENGTHS:
        ids = [int(word) % case.keys["vocab_size"] for word in case.words(f"prompt of {length}", length)]
        expected, complaint = answer(shoal, original, ids)
        if expected is None:
            return False, f"the original is refused: {complaint}"
        found, warnings = answer(shoal, saved, ids)
        if found is None:
            return False, f"refused: {warnings}"
        worst = max(worst, nmse(found, expected))
    return worst <= CLOSE, f"NMSE {worst:.1e} {warnings}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=".*", metavar="PATTERN", help="a regular expression for the cases' names")
    parser.add_argument("--shoal", default=ROOT / "build/release/bin/shoal", help="the program")
    parser.add_argument("--keep", type=pathlib.Path, metavar="FOLDER", help="keep the files here")
    parser.add_argument("--save", nargs=2, metavar=("FROM", "TO"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.save:
        return save(*args.save)
    failures = same = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for case in CASES:
            if not re.fullmatch(args.only, case.name):
                continue
            original, saved = folder / f"{case.name}.gguf", folder / f"{case.name}.saved.gguf"
            case.write(original)
            saved.unlink(missing_ok=True)
            done = subprocess.run([sys.executable, __file__, "--save", original, saved], capture_output=True, text=True)
            if done.returncode != 0 or not saved.exists():
                print(f"{case.name}: not saved: {(done.stderr.strip().splitlines() or [''])[-1]}", flush=True)
                continue
            good, text = compare(args.shoal, case, original, saved)
            dropped = "" if good else DROPPED.get(case.name, "")
            same, failures = same + good, failures + (not good and not dropped)
            print(f"{case.name}: {'same' if good else dropped or 'DIFFERS'}: {text}", flush=True)
    print(f"{same} are the same, {failures} are not")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
