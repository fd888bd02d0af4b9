"""Networks that are not language models: ONNX files without weights, and their random weights and inputs.

tests/models/nets/NET.onnx.gz has the nodes of a network but no weights. The weights and inputs are computed from the
raw words of PCG64 with exact or correctly rounded arithmetic, so they are equal on every machine.
"""

import dataclasses
import gzip
import math
import pathlib
import re
import zlib

import numpy as np
import onnx

FOLDER = pathlib.Path(__file__).resolve().parents[3] / "tests/models/nets"


@dataclasses.dataclass(frozen=True)
class Net:
    """`inputs`: the shapes of the inputs in tests. `large`: the shapes for benchmarks. `splits`: see split_of(). `step`:
    the reference has every step-th element of the output."""

    name: str
    output: str
    inputs: dict[str, tuple[int, ...]]
    large: dict[str, tuple[int, ...]]
    splits: dict[str, tuple[str, int]]
    step: int = 1
    integers: dict[str, int] = dataclasses.field(default_factory=dict)  # exclusive upper limits of integer inputs

    def words(self, purpose, count):
        seed = [zlib.crc32(self.name.encode()), zlib.crc32(purpose.encode())]
        return np.random.PCG64(np.random.SeedSequence(seed)).random_raw(count)

    def elements(self, name, shape, centre, spread):
        """Elements that are uniform over centre - spread .. centre + spread."""
        words = self.words(name, math.prod(shape))
        unit = ((words >> np.uint64(40)).astype(np.float64) - 2**23) / 2**23  # -1 .. 1, exact
        return (unit * spread + centre).astype(np.float32).reshape(shape)

    def weight(self, name, shape):
        """A weight with the variance of a new model, a norm's weight around 1, or a bias."""
        if len(shape) > 1:
            return self.elements(name, shape, 0.0, math.sqrt(3 / math.prod(shape[1:])))
        return self.elements(name, shape, 1.0, 0.5) if name.endswith("weight") else self.elements(name, shape, 0.0, 0.3)

    def input(self, name, shape):
        if name in self.integers:
            words = self.words(name, math.prod(shape)) % np.uint64(self.integers[name])
            return words.astype(np.int64).reshape(shape)
        return self.elements(name, shape, 0.0, math.sqrt(3))

    def split_of(self, name, shape):
        """The split axis of a weight with shoal's shape, and the number of equal units, such as heads. Returns None if
        each device has the whole weight. `splits` maps a regular expression to "out" (output channels of a kernel
        [kw, kh, i, o] or a matrix [i, o]) or "in" (input channels). A bias has one axis that is longer than 1."""
        for pattern, (side, units) in self.splits.items():
            if re.fullmatch(pattern, name):
                longer = [axis for axis, length in enumerate(shape) if length > 1]
                inputs = 2 if shape[2] > 1 or shape[3] > 1 else 0
                return (longer[0] if len(longer) == 1 else inputs + (side == "out")), units
        return None

    def path(self):
        return FOLDER / f"{self.name}.onnx.gz"

    def model(self):
        """The stored ONNX model with its weights."""
        model = onnx.load_model_from_string(gzip.decompress(self.path().read_bytes()))
        for one in model.graph.initializer:
            if not one.raw_data:
                one.raw_data = self.weight(one.name, tuple(one.dims)).tobytes()
        return model


RESNET = {r"(.*resnets?\d?|blocks\.\d)(\.\d)?\.(conv1|time|norm2)\.\w+": ("out", 32), r".*\.conv2\.weight": ("in", 32)}
MLP = {r".*\.(up|gate)\.\w+": ("out", 64), r".*\.down\.weight": ("in", 64)}
UPSAMPLE = {r"upsamples?(\.\d)?\.\w+": ("out", 64)}
SIGNAL = {r"conv1\.\w+": ("out", 384), r"conv2\.weight": ("in", 384)}
TOKENS = {r"token_embedding\.weight": ("out", 51865)}


def heads(count):
    return {r".*attn\.[qkv]\.\w+": ("out", count), r".*attn\.out\.weight": ("in", count)}


NETS = [
    Net("unet", "noise", {"latent": (1, 4, 8, 12), "frequencies": (1, 320), "context": (1, 77, 768)},
        {"latent": (1, 4, 64, 64), "frequencies": (1, 320), "context": (1, 77, 768)},
        RESNET | heads(8) | MLP | UPSAMPLE),
    Net("vae_decoder", "image", {"latent": (1, 4, 3, 4)}, {"latent": (1, 4, 32, 32)}, RESNET | UPSAMPLE),
    Net("whisper_encoder", "audio", {"mel": (1, 80, 200), "positions": (100, 384)},
        {"mel": (1, 80, 3000), "positions": (1500, 384)}, SIGNAL | heads(6) | MLP, step=7),
    Net("whisper_decoder", "logits", {"tokens": (1, 5), "audio": (1, 100, 384)},
        {"tokens": (1, 4), "audio": (1, 1500, 384)}, TOKENS | heads(6) | MLP, step=41, integers={"tokens": 51865}),
]  # fmt: skip
