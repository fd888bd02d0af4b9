#!/usr/bin/env python3
"""Writes the networks of scripts/reference/nets as graphs of shoal. The files have the same bytes on every machine.

    scripts/reference/write_nets.py FOLDER            # NET.txt, NET.gguf, NET.inputs.gguf and NET.splits
    scripts/reference/write_nets.py FOLDER --large    # the same with larger images and signals, for benchmarks
    scripts/reference/write_nets.py FOLDER --only unet

Each network is an ONNX model that PyTorch exported (make_nets.py). The script gives the model random weights and
converts it like scripts/onnx_to_shoal.py. A line of NET.splits has the name of a split weight, the axis, and the number
of equal units of the axis. tests/models/nets contains the expected outputs.
"""

import argparse
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from measuring import python  # noqa: E402

if __name__ == "__main__":
    python.use_packages("write_nets", "gguf", "numpy", "onnx")

import numpy as np  # noqa: E402

from from_onnx.convert import Converter  # noqa: E402
from from_onnx.write import write, write_tensors  # noqa: E402
from nets.store import NETS  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="folder to write the networks to")
    parser.add_argument("--large", action="store_true", help="use larger images and signals")
    parser.add_argument("--only", choices=[net.name for net in NETS], help="only this network")
    args = parser.parse_args()
    for net in NETS:
        if args.only in (None, net.name):
            shapes = net.large if args.large else net.inputs
            graph = Converter(net.model(), shapes).convert()
            write(graph, args.folder / net.name)
            splits = [(one.name, net.split_of(one.name, one.shape)) for one in graph.weights()]
            lines = [f"{name} {split[0]} {split[1]}\n" for name, split in splits if split is not None]
            (args.folder / f"{net.name}.splits").write_text("".join(lines))
            inputs = {name: net.input(name, shape) for name, shape in shapes.items()}
            inputs = {name: one.astype(np.int32) if one.dtype == np.int64 else one for name, one in inputs.items()}
            write_tensors(args.folder / f"{net.name}.inputs.gguf", inputs)


if __name__ == "__main__":
    main()
