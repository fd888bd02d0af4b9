#!/usr/bin/env python3
"""Writes a GGUF file of Llama architecture with random weights, for benchmarks and plans.

    pip install -r scripts/requirements.txt
    scripts/make_model.py --preset 1b --type q4_0 1b-q4_0.gguf
    scripts/make_model.py --preset 8b --type q8_0 --layers 4 8b-4-layers.gguf

Blocks are random bytes whose scales are set so that a weight's standard deviation is 1/sqrt(row length), as in a freshly
initialised model: activations and logits stay of ordinary size, the text is noise. Files are the same for the same
arguments. Weights stream to the file: memory stays below 300 MB for any size.
"""

import argparse
import dataclasses
import itertools
import math
import string
import sys

try:
    import gguf
    import numpy as np
    from gguf.quants import dequantize
except ImportError as error:
    sys.exit(f"make_model.py: {error}; run: pip install -r scripts/requirements.txt")

Type = gguf.GGMLQuantizationType


@dataclasses.dataclass(frozen=True)
class Shape:
    embd: int
    layers: int
    ff: int
    heads: int
    kv_heads: int
    vocab: int
    ctx: int
    rope_base: float
    tied: bool


PRESETS = {
    "tiny": Shape(256, 6, 768, 8, 4, 1024, 512, 10000.0, False),
    "1b": Shape(2048, 16, 8192, 32, 8, 32000, 8192, 500000.0, True),
    "8b": Shape(4096, 32, 14336, 32, 8, 128256, 8192, 500000.0, False),
    "70b": Shape(8192, 80, 28672, 64, 8, 128256, 8192, 500000.0, False),
}


@dataclasses.dataclass(frozen=True)
class Scales:
    """Where a block keeps its half-precision scale and, if it has one, its offset; the offset that centres it."""

    scale: int
    offset: int | None = None
    offset_per_scale: float = 0.0


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
}
PLAIN = {Type.F32, Type.F16, Type.BF16}
NAMES = {t.name.lower(): t for t in sorted(PLAIN | set(BLOCKS))}
MIXTURE = "q4_k_m"  # q4_k, with q6_k for half of the layers' attn_v and ffn_down and for the output head
# Types whose output head is kept in q6_k, as quantised files usually have it.
COARSE = {Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K}
FILE_TYPES = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q2_k": 10, "q3_k": 12, "q4_k": 14,
    MIXTURE: 15, "q5_k": 17, "q6_k": 18, "bf16": 32,
}  # fmt: skip
# Blocks in the pool that rows are cut from. A prime, so that rows do not begin at the same places in it again and again.
POOL_BLOCKS = 131071


def with_scales(blocks, layout, scale):
    """Sets every block's scale (an array of one value per block) and offset."""
    blocks[:, layout.scale : layout.scale + 2] = scale.astype("<f2").view(np.uint8).reshape(-1, 2)
    if layout.offset is not None:
        offset = (scale * layout.offset_per_scale).astype("<f2")
        blocks[:, layout.offset : layout.offset + 2] = offset.view(np.uint8).reshape(-1, 2)


def make_pool(random, kind, deviation):
    """Bytes of POOL_BLOCKS blocks (plain types: 32 elements count as one) with the given standard deviation."""
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
    """An endless stream of random weights for each type and row length; only the last few pools are kept."""

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
    """Token texts, scores and types: <unk> <s> </s>, 256 bytes, then words such that every prefix is a token too."""
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
    """The layers whose attn_v and ffn_down have q6_k in q4_k_m: the outer eighths and every third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def tensors(shape, name, output_name):
    """(tensor name, shape with the row length last, type) of each tensor in file order."""
    base = Type.Q4_K if name == MIXTURE else NAMES[name]
    output = NAMES[output_name] if output_name else Type.Q6_K if base in COARSE else base
    kv = shape.embd // shape.heads * shape.kv_heads
    yield "token_embd.weight", (shape.vocab, shape.embd), output if shape.tied else base
    for layer in range(shape.layers):
        better = Type.Q6_K if name == MIXTURE and more_bits(layer, shape.layers) else base
        yield f"blk.{layer}.attn_norm.weight", (shape.embd,), Type.F32
        yield f"blk.{layer}.attn_q.weight", (shape.embd, shape.embd), base
        yield f"blk.{layer}.attn_k.weight", (kv, shape.embd), base
        yield f"blk.{layer}.attn_v.weight", (kv, shape.embd), better
        yield f"blk.{layer}.attn_output.weight", (shape.embd, shape.embd), base
        yield f"blk.{layer}.ffn_norm.weight", (shape.embd,), Type.F32
        yield f"blk.{layer}.ffn_gate.weight", (shape.ff, shape.embd), base
        yield f"blk.{layer}.ffn_up.weight", (shape.ff, shape.embd), base
        yield f"blk.{layer}.ffn_down.weight", (shape.embd, shape.ff), better
    yield "output_norm.weight", (shape.embd,), Type.F32
    if not shape.tied:
        yield "output.weight", (shape.vocab, shape.embd), output


def bytes_of(name, dims, kind):
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    if dims[-1] % elements:
        sys.exit(f"make_model.py: rows of {name} have {dims[-1]} elements, no multiple of the {elements} in a block of "
                 f"{kind.name.lower()}; choose other sizes or another --type")  # fmt: skip
    return math.prod(dims) // elements * size


def add_metadata(writer, shape, args):
    writer.add_name(f"random {args.preset}")
    writer.add_file_type(FILE_TYPES[args.type])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_vocab_size(shape.vocab)
    writer.add_context_length(shape.ctx)
    writer.add_embedding_length(shape.embd)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ff)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_rope_dimension_count(shape.embd // shape.heads)
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


def write_model(shape, args):
    writer = gguf.GGUFWriter(args.output, "llama")
    add_metadata(writer, shape, args)
    plan = [(name, dims, kind, bytes_of(name, dims, kind)) for name, dims, kind in tensors(shape, args.type, args.output_type)]
    for name, dims, kind, size in plan:
        writer.add_tensor_info(name, dims, np.dtype(np.float32), size, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    out = writer.fout[0]
    weights = Weights(args.seed)
    for _, dims, kind, size in plan:
        writer.write_padding(out, out.tell())
        if len(dims) == 1:  # a norm
            out.write(np.ones(dims, "<f4").tobytes())
        else:
            weights.write(out, kind, dims[-1], size)
    writer.write_padding(out, out.tell())
    writer.close()
    return sum(math.prod(dims) for _, dims, _, _ in plan), sum(size for _, _, _, size in plan)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("output", help="the file to write")
    parser.add_argument("--preset", choices=PRESETS, default="tiny", help="sizes (default: tiny)")
    parser.add_argument("--type", choices=[*NAMES, MIXTURE], default="q8_0", help="of the matrices (default: q8_0)")
    parser.add_argument("--output-type", choices=NAMES, help="of the output head (default: q6_k below q6_k, else --type)")
    parser.add_argument("--seed", type=int, default=0)
    for field in ("embd", "layers", "ff", "heads", "kv-heads", "vocab", "ctx"):
        parser.add_argument(f"--{field}", type=int, help="instead of the preset's")
    parser.add_argument("--tied", action=argparse.BooleanOptionalAction, help="embedding is the output head, too")
    return parser.parse_args()


def main():
    args = parse_arguments()
    given = {f.name: v for f in dataclasses.fields(Shape) if (v := getattr(args, f.name, None)) is not None}
    shape = dataclasses.replace(PRESETS[args.preset], **given)
    if min(shape.embd, shape.layers, shape.ff, shape.heads, shape.kv_heads, shape.ctx) < 1 or args.seed < 0:
        sys.exit("make_model.py: sizes must be positive and the seed not negative")
    if shape.embd % shape.heads or shape.heads % shape.kv_heads:
        sys.exit(f"make_model.py: heads {shape.heads} must divide embd {shape.embd}, and kv-heads {shape.kv_heads} heads")
    try:
        parameters, size = write_model(shape, args)
    except OSError as error:
        sys.exit(f"make_model.py: cannot write the model: {error}")
    print(f"{args.output}: {parameters:,} parameters, {size:,} bytes of weights")


if __name__ == "__main__":
    main()
