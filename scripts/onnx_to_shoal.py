#!/usr/bin/env python3
"""Converts an ONNX model to a graph of shoal: NAME.txt (graph/text.h) and NAME.gguf with the weights.

    scripts/install_python
    scripts/onnx_to_shoal.py model.onnx                           # writes model.txt and model.gguf
    scripts/onnx_to_shoal.py model.onnx --out build/net           # writes build/net.txt and build/net.gguf
    scripts/onnx_to_shoal.py model.onnx --shape mel=1x80x3000 --shape tokens=1x4

ONNX lists the outermost axis first, and shoal lists the innermost axis first: an image [n, c, h, w] has shoal's shape
[w, h, c, n]. The names of inputs, outputs and weights are the names in the ONNX model. If a name contains a character
other than A-Z, a-z, 0-9, '_', '.' and '-', the script replaces this character by '_' and removes '_' and '.' at both ends.
If another tensor has this name, the script appends _2, _3 and so on. Floats are f32, and integers and
truth values are i32. docs/onnx.md lists the operators.

If some nodes have no counterpart, the script prints one line for each of these nodes and exits with 1.
"""

import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from measuring import arguments, python  # noqa: E402

if __name__ == "__main__":
    python.use_packages("onnx_to_shoal", "gguf", "numpy", "onnx")

import onnx  # noqa: E402

from from_onnx.convert import Converter, Rejected  # noqa: E402
from from_onnx.write import write  # noqa: E402


def shape_flag(text):
    """name=1x80x3000 as (name, (1, 80, 3000))."""
    name, separator, lengths = text.rpartition("=")
    if not separator or not all(length.isdigit() for length in lengths.split("x")):
        raise ValueError(f"'{text}' is not NAME=LENGTHxLENGTH...")
    return name, tuple(map(int, lengths.split("x")))


def main():
    parser = arguments.Parser(description=__doc__)
    parser.add_argument("model", type=pathlib.Path, help="ONNX file; external data is read from the same folder")
    parser.add_argument(
        "--out", type=pathlib.Path, help="path of the results without suffix; default: the model's path"
    )
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=1x80x3000",
        help="shape of an input in ONNX order; required for inputs with dynamic axes",
    )
    args = parser.parse_args()
    try:
        shapes = dict(map(shape_flag, args.shape))
        model = onnx.load(args.model)
    except ValueError as error:
        parser.error(f"argument --shape: {error}")
    except Exception as error:  # onnx raises errors of several types
        sys.exit(f"onnx_to_shoal: cannot read {args.model}: {error}")
    converter = Converter(model, shapes)
    try:
        graph = converter.convert()
    except Rejected as rejected:
        sys.exit("\n".join(f"onnx_to_shoal: {problem}" for problem in rejected.problems))
    if converter.shapes:
        known = ", ".join(tensor.name for tensor in graph.inputs)
        sys.exit(f"onnx_to_shoal: --shape names no input: {', '.join(converter.shapes)}; inputs: {known}")
    out = args.out or args.model.with_suffix("")
    nodes, weights, size = write(graph, out)
    print(f"{out}.txt: {nodes} nodes; {out}.gguf: {weights} weights, {size:,} bytes")


if __name__ == "__main__":
    main()
