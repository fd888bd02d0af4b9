#!/usr/bin/env python3
"""Computes the logits of the last token with llama.cpp's Python package and prints them as JSON. Caches and attention
are f32.

    llama_cpp_logits.py model.gguf 1,527,261 512      # token ids, and number of tokens per batch
"""

import json
import sys

import llama_cpp


@llama_cpp.llama_log_callback
def no_log(*_):
    pass


def main():
    path, tokens, batch = sys.argv[1], [int(word) for word in sys.argv[2].split(",")], int(sys.argv[3])
    llama_cpp.llama_log_set(no_log, None)
    parameters = llama_cpp.llama_model_default_params()
    parameters.n_gpu_layers = 0
    if not (model := llama_cpp.llama_model_load_from_file(path.encode(), parameters)):
        sys.exit(f"llama.cpp cannot load {path}")
    options = llama_cpp.llama_context_default_params()
    options.n_ctx, options.n_batch, options.n_ubatch, options.n_threads_batch = len(tokens), batch, batch, 1
    options.type_k = options.type_v = llama_cpp.GGML_TYPE_F32
    options.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED  # flash attention rounds more often
    context = llama_cpp.llama_init_from_model(model, options)
    for begin in range(0, len(tokens), batch):
        part = tokens[begin : begin + batch]
        array = (llama_cpp.llama_token * len(part))(*part)
        if status := llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(array, len(part))):
            sys.exit(f"llama_decode failed with {status}")
    size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    print(json.dumps(llama_cpp.llama_get_logits_ith(context, -1)[:size]))


if __name__ == "__main__":
    main()
