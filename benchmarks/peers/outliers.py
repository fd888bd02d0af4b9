#!/usr/bin/env python3
"""Measures the errors of shoal and llama.cpp if one channel of the activations is many times as large as the other
channels.

    benchmarks/peers/compare.py --setup                # llama.cpp's Python package
    benchmarks/peers/outliers.py                       # every weight type
    benchmarks/peers/outliers.py --types f16,bf16 --no-llama-cpp

The model has one layer with random weights. Its queries and keys are zero, so attention is the mean of the values. The
norm multiplies one channel by a factor. The two tokens of each pair differ only in the sign of this channel. So the
products of the channel cancel in the mean and do not hide errors of the other channels. The reference is float64
arithmetic on the same weights. The script prints a Markdown table with the NMSE of the last token's logits. It
evaluates all tokens in one batch, and then one by one.
"""

import argparse
import json
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "scripts"))
from measuring import python  # noqa: E402

if __name__ == "__main__":
    python.use_packages("outliers", "gguf", "numpy")

import gguf  # noqa: E402
import numpy as np  # noqa: E402

import engines  # noqa: E402
import environment  # noqa: E402
from errors import CompareError  # noqa: E402

LOGITS = pathlib.Path(__file__).resolve().parent / "llama_cpp_logits.py"
TYPES = (
    "f32 f16 bf16 q8_0 q6_k q5_k q5_1 q5_0 q4_k q4_1 q4_0 q3_k q2_k iq4_nl iq4_xs iq3_s iq3_xxs iq2_s iq2_xs iq2_xxs "
    "iq1_m iq1_s mxfp4 nvfp4 tq1_0 tq2_0"
).split()
FACTORS = (1, 30, 100, 1000, 10000)
CHANNEL, EPSILON = 77, 1e-5
TOKENS = [3 + 7 * i for i in range(24)]


def write_model(path: pathlib.Path, kind: str, factor: float) -> None:
    sizes = ["--preset", "tiny", "--layers", "1", "--ff", "256", "--kv-heads", "8"]
    types = ["--type", kind, "--output-type", kind, "--tensor-type", "token_embd=f32"]
    engines.run([sys.executable, str(ROOT / "scripts/make_model.py"), *sizes, *types, str(path)], "make_model.py")
    tensors = {one.name.removesuffix(".weight"): one.data for one in gguf.GGUFReader(path, "r+").tensors}
    for name in ("attn_q", "attn_k", "ffn_down"):
        tensors[f"blk.0.{name}"][:] = 0
    tensors["blk.0.attn_norm"][CHANNEL] = factor
    embedding = tensors["token_embd"]
    embedding[TOKENS[1::2]] = embedding[TOKENS[::2]]
    embedding[TOKENS[1::2], CHANNEL] *= -1


def norm(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON)


def reference(path: pathlib.Path) -> np.ndarray:
    w = {
        one.name.removesuffix(".weight"): gguf.quants.dequantize(one.data, one.tensor_type).astype(np.float64)
        for one in gguf.GGUFReader(path).tensors
    }
    x = w["token_embd"][TOKENS]
    values = norm(x) * w["blk.0.attn_norm"] @ w["blk.0.attn_v"].T
    return norm(x[-1] + w["blk.0.attn_output"] @ values.mean(0)) @ w["output"].T


def by_shoal(program: str, path: pathlib.Path, batch: int) -> np.ndarray:
    tokens = ["--prompt-tokens", ",".join(map(str, TOKENS)), "-ub", str(batch), "-n", "1", "-t", "1"]
    flags = ["--devices", "CPU0", "-ctk", "f32", "-ctv", "f32", "--top-logits", "1024", "--output", "json"]
    pairs = json.loads(engines.run([program, "run", "-m", str(path), *tokens, *flags], "shoal"))["top_logits"]
    return np.array([logit for _, logit in sorted(pairs)])


def by_llama_cpp(venv: pathlib.Path, path: pathlib.Path, batch: int) -> np.ndarray:
    command = [environment.python_of(venv), LOGITS, path, ",".join(map(str, TOKENS)), batch]
    return np.array(json.loads(engines.run([str(word) for word in command], environment.NAME)))


def nmse(values: np.ndarray, expected: np.ndarray) -> str:
    return f"{((values - expected) ** 2).sum() / (expected**2).sum():.0e}".replace("e-0", "e-")


def print_table(arguments: argparse.Namespace) -> None:
    peers = {"shoal": lambda path, batch: by_shoal(arguments.shoal, path, batch)}
    if not arguments.no_llama_cpp:
        environment.llama_cpp_engine(arguments.venv.absolute(), False)
        peers[environment.NAME] = lambda path, batch: by_llama_cpp(arguments.venv.absolute(), path, batch)
    print(f"NMSE: {' / '.join(peers)}", end="\n\n")
    print("| weights | tokens |", *(f" x {factor:,} |" for factor in FACTORS), sep="")
    print("|---|---|", "---|" * len(FACTORS), sep="")
    with tempfile.TemporaryDirectory() as folder:
        models = {factor: pathlib.Path(folder) / f"{factor}.gguf" for factor in FACTORS}
        for kind in arguments.types.split(","):
            for factor, path in models.items():
                write_model(path, kind, factor)
            expected = [reference(path) for path in models.values()]
            for batch, tokens in ((len(TOKENS), "one batch"), (1, "one by one")):
                cells = [
                    " / ".join(nmse(logits(path, batch), one) for logits in peers.values())
                    for path, one in zip(models.values(), expected)
                ]
                print(f"| {kind} | {tokens} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", default=",".join(TYPES), metavar="TYPES",
                        help="weight types to measure, separated by commas (all)")
    parser.add_argument("--shoal", default=str(ROOT / "build/release/bin/shoal"), help="path of shoal")
    parser.add_argument("--venv", type=pathlib.Path, default=environment.DEFAULT,
                        help="virtual environment of llama.cpp (build/peers-venv)")
    parser.add_argument("--no-llama-cpp", action="store_true", help="omit llama.cpp")
    try:
        print_table(parser.parse_args())
    except CompareError as error:
        sys.exit(f"outliers: {error}")


if __name__ == "__main__":
    main()
