#!/usr/bin/env python3
"""Exports the networks of scripts/reference/nets from PyTorch to ONNX, and writes their expected outputs.

    python3 -m venv venv && venv/bin/pip install -r scripts/requirements-reference.txt
    venv/bin/python scripts/reference/make_nets.py              # writes tests/models/nets
    venv/bin/python scripts/reference/make_nets.py --only unet

The ONNX files have no weights (nets/store.py). The outputs are computed in float64. The script also checks that the
outputs in float32 are similar, and that ONNX Runtime computes the same outputs from the ONNX model.
"""

import argparse
import gzip
import pathlib
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import gguf  # noqa: E402
import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime  # noqa: E402
import torch  # noqa: E402
from torch.export import Dim  # noqa: E402

from nets import image, whisper  # noqa: E402
from nets.store import FOLDER, NETS  # noqa: E402

LARGEST_NOISE = 1e-10  # NMSE of a run in float32
H, W = Dim("h", min=2, max=4096), Dim("w", min=2, max=4096)
MODELS = {
    "unet": (image.UNet, {"latent": {2: 2 * H, 3: 2 * W}, "frequencies": {}, "context": {}}),
    "vae_decoder": (image.VaeDecoder, {"latent": {2: H, 3: W}}),
    "whisper_encoder": (whisper.Encoder, {"mel": {2: 2 * H}, "positions": {0: H}}),
    "whisper_decoder": (whisper.Decoder, {"tokens": {1: H}, "audio": {1: W}}),
}


def nmse(found, expected):
    return float(np.sum((found - expected) ** 2) / np.sum(expected**2))


def module_of(net):
    module = MODELS[net.name][0]().eval()
    weights = {name: torch.from_numpy(net.weight(name, tuple(one.shape))) for name, one in module.state_dict().items()}
    module.load_state_dict(weights)
    return module


def export(net, module, inputs):
    """Writes the ONNX file without weights."""
    program = torch.onnx.export(module, tuple(inputs.values()), dynamo=True, input_names=list(inputs), optimize=False,
                                output_names=[net.output], opset_version=18,
                                dynamic_shapes=tuple(MODELS[net.name][1].values()))  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        program.save(f"{folder}/net.onnx", external_data=True)
        model = onnx.load(f"{folder}/net.onnx", load_external_data=False)
    names = set(module.state_dict())
    for one in model.graph.initializer:
        if one.name in names:
            one.ClearField("raw_data"), one.ClearField("external_data"), one.ClearField("data_location")
        elif one.data_location == onnx.TensorProto.EXTERNAL:
            sys.exit(f"make_nets.py: the exporter renamed the weight {one.name} of {net.name}")
    del model.graph.value_info[:], model.graph.metadata_props[:], model.metadata_props[:]
    for node in model.graph.node:
        node.ClearField("doc_string"), node.ClearField("metadata_props")
    net.path().write_bytes(gzip.compress(model.SerializeToString(), 9, mtime=0))


def outputs(net, module, inputs):
    """The output in float64. Checks the outputs of PyTorch and ONNX Runtime in float32."""
    with torch.no_grad():
        found = {"PyTorch": module(*inputs.values()).numpy()}
        wide = [one.double() if one.is_floating_point() else one for one in inputs.values()]
        expected = module.double()(*wide).numpy()
    session = onnxruntime.InferenceSession(net.model().SerializeToString(), providers=["CPUExecutionProvider"])
    found["ONNX Runtime"] = session.run(None, {name: one.numpy() for name, one in inputs.items()})[0]
    for engine, values in found.items():
        noise = nmse(values, expected)
        print(f"{net.name}: NMSE of {engine} in float32: {noise:.1e}")
        if not noise < LARGEST_NOISE:
            sys.exit(f"make_nets.py: {engine} in float32 differs from float64 by {noise:.1e}")
    return expected


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(MODELS), help="only this network")
    args = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for net in NETS:
        if args.only not in (None, net.name):
            continue
        module = module_of(net)
        inputs = {name: torch.from_numpy(net.input(name, shape)) for name, shape in net.inputs.items()}
        export(net, module, inputs)
        writer = gguf.GGUFWriter(FOLDER / f"{net.name}.gguf", "reference")
        writer.add_uint32("reference.step", net.step)
        writer.add_tensor(net.output, outputs(net, module, inputs).reshape(-1)[:: net.step].astype(np.float32))
        writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()


if __name__ == "__main__":
    main()
