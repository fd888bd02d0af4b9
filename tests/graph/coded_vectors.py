#!/usr/bin/env python3
"""Writes coded_vectors.inc for coded_test.cpp: f32 values to which the `gguf` package decodes blocks of coded types.

    tests/graph/coded_vectors.py            updates the file
    tests/graph/coded_vectors.py --check    compares output and file; exits with 1 if they differ, 77 without `gguf`

The package does not support Q1_0 and Q2_0 yet, so this script decodes them itself.
"""

import argparse
import pathlib
import sys

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "scripts"))
from measuring import python  # noqa: E402

if __name__ == "__main__":
    python.use_packages("coded_vectors", "gguf", "numpy")

try:
    import numpy as np
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize
except ImportError as error:
    print(f"coded_vectors.py: {error}; run scripts/install_python")
    sys.exit(77)

FILE = HERE / "coded_vectors.inc"
BLOCKS = 64
# Maps each type to the index of the high byte of a block's f16 scale. blocks() clears one bit of this byte, so the
# scale is never infinite or NaN.
TYPES = {
    "IQ2_XXS": 1, "IQ2_XS": 1, "IQ3_XXS": 1, "IQ1_S": 1, "IQ3_S": 1, "IQ2_S": 1, "IQ1_M": 55, "TQ1_0": 53, "TQ2_0": 65,
    "NVFP4": None, "Q1_0": 1, "Q2_0": 1,
}  # fmt: skip
SIZES = {"Q1_0": 18, "Q2_0": 18}
HEAD = """// Written by tests/graph/coded_vectors.py. For each coded type: the hash of the values of 64 blocks, and every 41st of
// the first 328 values.
"""


def blocks(size, high_byte):
    state, data = 12345, np.empty(BLOCKS * size, np.uint8)
    for i in range(len(data)):
        state = (state * 1103515245 + 12345) % 2**31
        data[i] = state >> 16 & 255
    data = data.reshape(BLOCKS, size)
    if high_byte is not None:
        data[:, high_byte] &= 0xBF
    return data


def values(name, data):
    if name not in SIZES:
        return dequantize(data, GGMLQuantizationType[name]).reshape(-1)
    scale = data[:, :2].copy().view(np.float16).astype(np.float32)
    bits = np.unpackbits(data[:, 2:], axis=1, bitorder="little")
    if name == "Q1_0":
        return (scale * np.where(bits == 1, np.float32(1), np.float32(-1))).reshape(-1)
    codes = bits[:, 0::2].astype(np.float32) + 2 * bits[:, 1::2].astype(np.float32)
    return (scale * (codes - 1)).reshape(-1)


def fnv(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def row(name, high_byte):
    size = SIZES[name] if name in SIZES else GGML_QUANT_SIZES[GGMLQuantizationType[name]][1]
    all_values = values(name, blocks(size, high_byte)).astype("<f4") + np.float32(0)  # no -0
    some = ", ".join(float(value).hex() + "f" for value in all_values[0:328:41])
    return f"{{DType::k{name}, {-1 if high_byte is None else high_byte}, {fnv(all_values.tobytes()):#018x}u, {{{some}}}}},\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare the output with the existing file; write nothing")
    arguments = parser.parse_args()
    text = HEAD + "".join(row(name, high_byte) for name, high_byte in TYPES.items())
    if arguments.check:
        if FILE.read_text() == text:
            return 0
        print(f"{FILE.name} differs from the output of {pathlib.Path(__file__).name}")
        return 1
    FILE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
