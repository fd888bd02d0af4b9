#!/usr/bin/env python3
"""Writes a tiny random model of an architecture and the logits that Hugging Face transformers give for it.

    python3 -m venv venv && venv/bin/pip install torch transformers gguf
    venv/bin/python scripts/make_golden.py qwen2 data/models

FOLDER/tiny-qwen2-f16.gguf and FOLDER/expected/tiny-qwen2-f16.json are what tests/models/arch/golden_test.cpp compares.
Matrices are f16, rounded before the logits are computed (in float64, without a cache), so the two belong to the same
weights. Sizes divide as badly as they can; biases and norms are far from 0 and 1, so that one left out is seen.

Another architecture is one more entry of MODELS. Weights whose rows the GGUF file has in another order than
transformers (llama's q and k) need to be permuted here.
"""
import json
import pathlib
import sys

import gguf
import torch
import transformers

TOKENS = 24
SIZES = dict(
    hidden_size=60, intermediate_size=88, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=3,
    vocab_size=101, max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=False,
    rope_parameters={"rope_type": "default", "rope_theta": 500.0},
)  # fmt: skip
MODELS = {
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM, gguf.MODEL_ARCH.QWEN2),
}


def random_model(kind):
    torch.manual_seed(1)
    config_class, model_class, _ = MODELS[kind]
    model = model_class(config_class(**SIZES, attn_implementation="eager")).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.normal_(1.0, 0.3)
            elif name.endswith("bias"):
                weight.normal_(0.0, 0.7)
            else:
                weight.normal_(0.0, 0.25).copy_(weight.half())
    return model


def write_gguf(model, kind, path):
    config = model.config
    writer = gguf.GGUFWriter(path, kind)
    writer.add_license("cc0-1.0")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    names = gguf.get_tensor_name_map(MODELS[kind][2], config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        values = weight if weight.dim() == 1 else weight.half()
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), values.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in MODELS:
        sys.exit(f"usage: make_golden.py {'|'.join(MODELS)} FOLDER")
    kind, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    model = random_model(kind)
    write_gguf(model, kind, folder / f"tiny-{kind}-f16.gguf")
    tokens = torch.randint(0, SIZES["vocab_size"], (1, TOKENS))
    with torch.no_grad():
        logits = model.double()(tokens, use_cache=False).logits[0]
    rows = [[round(value, 6) for value in row] for row in logits.tolist()]
    expected = {"transformers": transformers.__version__, "tokens": tokens[0].tolist(), "logits": rows}
    (folder / "expected" / f"tiny-{kind}-f16.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
