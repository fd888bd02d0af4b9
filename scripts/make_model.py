#!/usr/bin/env python3
"""Writes a GGUF file with the shape of a model and random weights, for benchmarks and plans.

    scripts/install_python
    scripts/make_model.py --preset 1b --type q4_0 1b-q4_0.gguf
    scripts/make_model.py --preset 8b --type q8_0 --layers 4 8b-4-layers.gguf
    scripts/make_model.py --preset 8b --type q4_k_m --tensor-type 'ffn_(gate|up)=q5_0' --dry-run
    scripts/make_model.py --preset 70b --type q4_k_m --sparse 70b-q4_k_m.gguf
    scripts/make_model.py --preset deepseek-v3 --type iq1_s --sparse deepseek-v3-iq1_s.gguf
    scripts/make_model.py --preset gpt-oss-20b --layers 4 --type q8_0 --tensor-type _exps=mxfp4 gpt-oss.gguf

The blocks of the weights are random bytes. The scales of the blocks give the weights a standard deviation of 1/sqrt(row
length), as in a new model before its training. So activations and logits have ordinary sizes, but generated text is
noise. The same arguments give the same file. The script needs less than 300 MB of memory for any model, because it
writes the weights in small pieces.

With --sparse, the file has a hole instead of the weights. Reads of the hole return zeros. Such a file is written
immediately and needs only a few megabytes on disk. It is sufficient for `shoal plan` and `shoal simulate`.
"""

import argparse
import dataclasses
import itertools
import math
import pathlib
import re
import signal
import string
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from measuring import arguments, files, python  # noqa: E402
from shapes.layers import add_keys, full_name, is_matrix, layer_parts  # noqa: E402
from shapes.shape import PRESETS, Shape  # noqa: E402

if __name__ == "__main__":
    python.use_packages("make_model", "gguf", "numpy")

try:
    import gguf
    import numpy as np
    from gguf.quants import NVFP4, dequantize
except ImportError as error:
    sys.exit(f"make_model.py: {error}; run scripts/install_python")

Type = gguf.GGMLQuantizationType
OWN_MODELS = files.Kind(b"GGUF", b"general.name\x08\0\0\0", b"random ")


@dataclasses.dataclass(frozen=True)
class Scales:
    """Positions of the scale and the offset in a block, in bytes.

    - `offset_per_scale`: value of offset / scale for which the mean of the weights is 0.
    - `is_power`: the scale is a power of two, stored as an exponent in one byte, instead of an f16 number.
    - `is_spread`: the scale is an f16 number. Its four nibbles are stored in four 16-bit numbers.
    - `is_ue4m3`: there are four scales of one byte each.
    """

    scale: int
    offset: int | None = None
    offset_per_scale: float = 0.0
    is_power: bool = False
    is_spread: bool = False
    is_ue4m3: bool = False


BLOCKS = {
    Type.Q4_0: Scales(0),
    Type.Q4_1: Scales(0, 2, -7.5),
    Type.Q5_0: Scales(0),
    Type.Q5_1: Scales(0, 2, -15.5),
    Type.Q8_0: Scales(0),
    Type.Q2_K: Scales(80, 82, 1.5),
    Type.Q3_K: Scales(108),
    Type.Q4_K: Scales(0, 2, 7.5),
    Type.Q5_K: Scales(0, 2, 15.5),
    Type.Q6_K: Scales(208),
    Type.IQ4_NL: Scales(0),
    Type.IQ4_XS: Scales(0),
    Type.MXFP4: Scales(0, is_power=True),
    Type.NVFP4: Scales(0, is_ue4m3=True),
    Type.IQ2_XXS: Scales(0),
    Type.IQ2_XS: Scales(0),
    Type.IQ2_S: Scales(0),
    Type.IQ3_XXS: Scales(0),
    Type.IQ3_S: Scales(0),
    Type.IQ1_S: Scales(0),
    Type.IQ1_M: Scales(48, is_spread=True),
    Type.TQ1_0: Scales(52),
    Type.TQ2_0: Scales(64),
}
PLAIN = {Type.F32, Type.F16, Type.BF16}
NAMES = {t.name.lower(): t for t in sorted(PLAIN | set(BLOCKS))}
CODEBOOKS = {Type.IQ1_S, Type.IQ1_M, Type.IQ2_XXS, Type.IQ2_XS, Type.IQ2_S, Type.IQ3_XXS, Type.IQ3_S}
# Types for which the output head has the type q6_k, as in usual quantised files.
COARSE = CODEBOOKS | {
    Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.IQ4_NL, Type.IQ4_XS,
    Type.MXFP4, Type.NVFP4, Type.TQ1_0, Type.TQ2_0,
}  # fmt: skip
# Types with blocks of 256 elements, and the types that the quantiser of llama.cpp uses instead if the row length is not
# a multiple of 256.
FOR_SHORT_ROWS = {
    Type.Q2_K: Type.Q4_0, Type.Q3_K: Type.Q4_0, Type.Q4_K: Type.Q5_0, Type.Q5_K: Type.Q5_1, Type.Q6_K: Type.Q8_0,
    Type.IQ4_XS: Type.IQ4_NL, **dict.fromkeys(CODEBOOKS | {Type.TQ1_0, Type.TQ2_0}, Type.IQ4_NL),
}  # fmt: skip
FILE_TYPES = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q2_k": 10, "q3_k": 11, "q3_k_m": 12,
    "q3_k_l": 13, "q4_k": 14, "q4_k_s": 14, "q4_k_m": 15, "q5_k": 16, "q5_k_m": 17, "q6_k": 18, "iq2_xxs": 19,
    "iq2_xs": 20, "iq3_xxs": 23, "iq1_s": 24, "iq4_nl": 25, "iq3_s": 26, "iq2_s": 28, "iq4_xs": 30, "iq1_m": 31,
    "bf16": 32, "tq1_0": 36, "tq2_0": 37, "mxfp4": 38, "nvfp4": 39,
}  # fmt: skip
# Number of blocks in a pool. Rows are copied from a pool. The number is prime, so two rows rarely begin at the same
# block.
POOL_BLOCKS = 131071


def powers_near(scale):
    """Rounds scales to powers of two and returns their exponent bytes. Each scale is randomly rounded to one of the two
    nearest powers, so that the average square is unchanged."""
    below = np.floor(np.log2(scale))
    share = ((scale / 2**below) ** 2 - 1) / 3
    return (below + 128 + (np.arange(len(scale)) * 0.618034 % 1 < share)).astype(np.uint8)


def with_scales(blocks, layout, scale):
    """Sets the scale and the offset of every block. `scale`: an array with one value per block."""
    if layout.is_power:
        blocks[:, layout.scale] = powers_near(scale)
        return
    if layout.is_ue4m3:
        blocks[:, layout.scale : layout.scale + 4] = NVFP4.fp32_to_ue4m3(scale).reshape(-1, 1)
        return
    if layout.is_spread:
        halves = scale.astype("<f2").view(np.uint16)
        for i in range(4):
            high = layout.scale + 2 * i + 1
            blocks[:, high] = blocks[:, high] & 15 | (halves >> 4 * i & 15).astype(np.uint8) << 4
        return
    blocks[:, layout.scale : layout.scale + 2] = scale.astype("<f2").view(np.uint8).reshape(-1, 2)
    if layout.offset is not None:
        offset = (scale * layout.offset_per_scale).astype("<f2")
        blocks[:, layout.offset : layout.offset + 2] = offset.view(np.uint8).reshape(-1, 2)


def make_pool(random, kind, deviation):
    """Returns the bytes of POOL_BLOCKS blocks with the given standard deviation. A block of a type in PLAIN has
    32 elements."""
    if kind in PLAIN:
        values = random.standard_normal(POOL_BLOCKS * 32, dtype=np.float32) * np.float32(deviation)
        if kind == Type.BF16:
            return (values.view(np.uint32) >> 16).astype("<u2").view(np.uint8)
        return values.astype("<f4" if kind == Type.F32 else "<f2").view(np.uint8)
    _, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (POOL_BLOCKS, size), dtype=np.uint8)
    probe = blocks[:1024].copy()
    with_scales(probe, BLOCKS[kind], np.ones(len(probe), np.float32))
    unit = float(np.std(dequantize(probe, kind)))
    scale = deviation / unit * random.uniform(0.75, 1.25, POOL_BLOCKS).astype(np.float32)
    with_scales(blocks, BLOCKS[kind], scale)
    return blocks.reshape(-1)


class Weights:
    """Endless sequences of random weights, one for each type and row length. Caches only the latest pools."""

    def __init__(self, seed):
        self.seed = seed
        self.pools = {}

    def write(self, out, kind, row, size):
        key = (kind, row)
        if key not in self.pools:
            random = np.random.default_rng([self.seed, int(kind), row])
            while len(self.pools) > 2:
                self.pools.pop(next(iter(self.pools)))
            self.pools[key] = [make_pool(random, kind, 1 / math.sqrt(row)), 0]
        pool, at = self.pools[key]
        while size > 0:
            part = pool[at : at + size]
            out.write(part.data)
            size -= len(part)
            at = (at + len(part)) % len(pool)
        self.pools[key][1] = at


def pieces(count):
    """Returns the texts, scores and types of all tokens: <unk> <s> </s>, 256 bytes, then words. Every prefix of a word
    is also a token."""
    texts = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    types = [gguf.TokenType.UNKNOWN] + [gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.BYTE] * 256
    if count < len(texts) + 1:
        sys.exit(f"make_model.py: --vocab {count} is too small, the least is {len(texts) + 1}")
    words = itertools.chain(
        ["\u2581"],
        string.ascii_lowercase,
        ("\u2581" + "".join(word) for n in itertools.count(1) for word in itertools.product(string.ascii_lowercase, repeat=n)),
    )
    texts += itertools.islice(words, count - len(texts))
    types += [gguf.TokenType.NORMAL] * (count - len(types))
    return texts, [-float(i) for i in range(count)], types


def more_bits(layer, layers):
    """Whether the mixtures with the suffix _m give this layer additional bits. The first eighth and the last
    eighth of the layers, and every third layer between them, have additional bits."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def mixed_m(better):
    def of(layer, layers):
        return {"attn_v": better, "ffn_down": better} if more_bits(layer, layers) else {}

    return of


def mixed_q4_k_s(layer, layers):
    types = {"attn_v": Type.Q5_K} if layer < 4 else {}
    return {**types, "ffn_down": Type.Q5_K} if layer < layers // 8 else types


def mixed_q3_k_m(layer, layers):
    return {"attn_v": Type.Q5_K if layer < 2 else Type.Q4_K, "attn_output": Type.Q4_K,
            "ffn_down": Type.Q5_K if layer < layers // 16 else Type.Q4_K}  # fmt: skip


def mixed_q3_k_l(_, __):
    return dict.fromkeys(("attn_v", "attn_output", "ffn_down"), Type.Q5_K)


# Mixtures of types, as the quantiser of llama.cpp selects them for Llama models: the type of most matrices, and a
# function that returns the types of all other matrices in a layer. llama.cpp's q5_k_s is q5_k here, and llama.cpp's
# q3_k_s is q3_k here.
MIXTURES = {
    "q3_k_m": (Type.Q3_K, mixed_q3_k_m),
    "q3_k_l": (Type.Q3_K, mixed_q3_k_l),
    "q4_k_s": (Type.Q4_K, mixed_q4_k_s),
    "q4_k_m": (Type.Q4_K, mixed_m(Type.Q6_K)),
    "q5_k_m": (Type.Q5_K, mixed_m(Type.Q6_K)),
}


def layer_types(shape, name, layer):
    """Returns the types of a layer's matrices by name. Omits matrices that have the base type of the mixture."""
    if name not in MIXTURES:
        return {}
    base, mixed = MIXTURES[name]
    types = mixed(layer, shape.layers)
    # The quantiser recognises Llama 2 70B by its number of layers.
    is_70b = shape.layers == 80 and shape.heads != shape.kv_heads
    if is_70b and types.get("attn_v", base) in (Type.Q3_K, Type.Q4_K):
        types["attn_v"] = Type.Q5_K
    return types


def usual_tensors(shape, name, output_name):
    """Yields (name, shape, type) of each tensor in file order. The row length is the last element of a shape."""
    base = MIXTURES[name][0] if name in MIXTURES else NAMES[name]
    output = NAMES[output_name] if output_name else Type.Q6_K if base in COARSE else base
    yield "token_embd.weight", (shape.vocab, shape.embd), output if shape.tied else base
    for layer in range(shape.layers):
        types = layer_types(shape, name, layer)
        for part, dims in layer_parts(shape, layer):
            kind = types.get(part.removesuffix("_exps"), base) if is_matrix(part, dims) else Type.F32
            yield f"blk.{layer}.{full_name(part)}", dims, kind
    yield "output_norm.weight", (shape.embd,), Type.F32
    if not shape.tied:
        yield "output.weight", (shape.vocab, shape.embd), output


@dataclasses.dataclass(frozen=True)
class Override:
    """A type for all matrices whose names match a regular expression."""

    pattern: re.Pattern
    kind: Type

    @staticmethod
    def parse(text):
        pattern, _, kind = text.rpartition("=")
        if not pattern or kind not in NAMES:
            raise argparse.ArgumentTypeError(f"{text}: expected PATTERN=TYPE with one of the types {', '.join(NAMES)}")
        try:
            return Override(re.compile(pattern), NAMES[kind])
        except re.error as error:
            raise argparse.ArgumentTypeError(f"{text}: not a regular expression: {error}") from error


def tensors(shape, args):
    """Returns (name, shape, type, bytes) of each tensor. The first matching override applies."""
    plan, used = [], set()
    for name, dims, kind in usual_tensors(shape, args.type, args.output_type):
        match = next((one for one in args.tensor_type if is_matrix(name, dims) and one.pattern.search(name)), None)
        used.add(match)
        kind = match.kind if match else fitting(kind, dims[-1])
        plan.append((name, dims, kind, bytes_of(name, dims, kind)))
    for one in args.tensor_type:
        if one not in used:
            text = f"{one.pattern.pattern}={one.kind.name.lower()}"
            sys.exit(f"make_model.py: --tensor-type {text} is not the first match of any matrix; "
                     "--dry-run without --tensor-type prints the names of the matrices")  # fmt: skip
    return plan


def fitting(kind, row):
    """Returns `kind`, or the type that replaces `kind` if rows of this length do not consist of whole blocks."""
    return FOR_SHORT_ROWS.get(kind, kind) if row % gguf.GGML_QUANT_SIZES[kind][0] else kind


def bytes_of(name, dims, kind):
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    if dims[-1] % elements:
        sys.exit(f"make_model.py: rows of {name} have {dims[-1]} elements, which is not a multiple of the {elements} in a block of "
                 f"{kind.name.lower()}; choose other sizes or another --type")  # fmt: skip
    return math.prod(dims) // elements * size


def add_metadata(writer, shape, args):
    writer.add_name(f"random {args.preset}")
    writer.add_file_type(FILE_TYPES[args.type])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_keys(writer, shape)
    texts, scores, types = pieces(shape.vocab)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(texts)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(True)


def write_model(shape, args, plan):
    writer = gguf.GGUFWriter(args.output, shape.architecture)
    add_metadata(writer, shape, args)
    for name, dims, kind, size in plan:
        writer.add_tensor_info(name, dims, np.dtype(np.float32), size, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    out = writer.fout[0]
    if args.sparse:
        writer.write_padding(out, out.tell())
        begin = out.tell()
        out.truncate(begin + sum(gguf.GGUFWriter.ggml_pad(size, writer.data_alignment) for _, _, _, size in plan))
        writer.close()
        return
    weights = Weights(args.seed)
    for name, dims, kind, size in plan:
        writer.write_padding(out, out.tell())
        if name.endswith("norm.weight"):
            out.write(np.ones(dims, "<f4").tobytes())
        elif name.endswith(".bias") or len(dims) == 1:
            out.write(np.zeros(dims, "<f4").tobytes())
        else:
            weights.write(out, kind, dims[-1], size)
    writer.write_padding(out, out.tell())
    writer.close()


def print_plan(plan):
    """Prints the tensors, one per line. Shapes are in GGUF order: the row length is first."""
    for name, dims, kind, size in plan:
        print(f"{name:<28} {' x '.join(str(n) for n in reversed(dims)):<16} {kind.name.lower():<5} {size:>15,}")
    totals = {}
    for _, _, kind, size in plan:
        totals[kind] = totals.get(kind, 0) + size
    for kind, size in sorted(totals.items(), key=lambda item: -item[1]):
        print(f"{'all of ' + kind.name.lower():<51} {size:>15,}")


def parse_arguments():
    parser = arguments.Parser(description=__doc__)
    parser.add_argument("output", nargs="?", help="file to write")
    parser.add_argument("--preset", choices=PRESETS, default="tiny", help="named set of model sizes (default: tiny)")
    parser.add_argument("--type", choices=[*NAMES, *MIXTURES], default="q8_0",
                        help="data type of the matrices (default: q8_0)")
    parser.add_argument("--output-type", choices=NAMES,
                        help="data type of the output head (default: the larger of q6_k and --type)")  # fmt: skip
    parser.add_argument("--tensor-type", action="append", type=Override.parse, default=[], metavar="PATTERN=TYPE",
                        help="use TYPE for matrices whose names match the regular expression PATTERN; may be repeated; "
                        "the first match applies")  # fmt: skip
    parser.add_argument("--sparse", action="store_true",
                        help="write a hole in the file instead of the weights; reads of the hole return zeros")
    parser.add_argument("--dry-run", action="store_true", help="print the tensors and their sizes without writing a file")
    parser.add_argument("--force", action="store_true", help="replace the file even if this script did not write it")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random weights (default: 0)")
    for field in ("embd", "layers", "ff", "heads", "kv-heads", "vocab", "ctx"):
        parser.add_argument(f"--{field}", type=int, help="value that replaces the value of the preset")
    parser.add_argument("--head-dim", type=int, dest="given_head_dim", metavar="HEAD_DIM",
                        help="number of elements of a key or value per head (default: embd / heads)")  # fmt: skip
    parser.add_argument("--tied", action=argparse.BooleanOptionalAction,
                        help="use the embedding matrix also as the output head")
    args = parser.parse_args()
    if not args.output and not args.dry_run:
        parser.error("give the file to write, or --dry-run")
    return args


def main():
    args = parse_arguments()
    given = {f.name: v for f in dataclasses.fields(Shape) if (v := getattr(args, f.name, None)) is not None}
    if given.get("given_head_dim", 1) < 1:
        sys.exit("make_model.py: --head-dim must be positive")
    shape = dataclasses.replace(PRESETS[args.preset], **given)
    if min(shape.embd, shape.layers, shape.ff, shape.heads, shape.kv_heads, shape.ctx) < 1 or args.seed < 0:
        sys.exit("make_model.py: sizes must be positive and the seed must not be negative")
    if (shape.embd % shape.heads and not args.given_head_dim) or shape.heads % shape.kv_heads:
        sys.exit(f"make_model.py: heads {shape.heads} must be a multiple of kv-heads {shape.kv_heads}; "
                 f"without --head-dim, embd {shape.embd} must be a multiple of heads {shape.heads}")  # fmt: skip
    if shape.head_dim < 2 or shape.head_dim % 2:
        sys.exit(f"make_model.py: heads have {shape.head_dim} dimensions; rope needs an even number")
    plan = tensors(shape, args)
    if args.dry_run:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # the reader of the table may exit early
        print_plan(plan)
    else:
        try:
            files.check_replaced(args.output, "model", OWN_MODELS, force=args.force)
            write_model(shape, args, plan)
        except files.Refused as error:
            print(f"make_model.py: error: {error}", file=sys.stderr)
            sys.exit(error.code)
        except OSError as error:
            sys.exit(f"make_model.py: cannot write the model: {error}")
    parameters, size = sum(math.prod(dims) for _, dims, _, _ in plan), sum(size for _, _, _, size in plan)
    print(f"{args.output or 'a model'}: {parameters:,} parameters, {size:,} bytes of weights")


if __name__ == "__main__":
    main()
