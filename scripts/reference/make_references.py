#!/usr/bin/env python3
"""Computes the logits of the tiny models of make_models.py with Hugging Face transformers, and writes them into files.

    python3 -m venv venv && venv/bin/pip install -r scripts/requirements-reference.txt
    venv/bin/python scripts/reference/make_references.py tests/models/references
    venv/bin/python scripts/reference/make_references.py tests/models/references --only 'gemma.*'

The file of a case contains the token ids of prompts with 1, 7 and 300 tokens, and some rows of their logits. The logits
are computed in float64. The script also checks three conditions, and exits with 1 if a check fails:

- Steps of one token with a cache give the same logits as the whole prompt.
- The logits in float32 are similar to the logits in float64.
- Each mutation changes the logits.
"""

import argparse
import hashlib
import pathlib
import re
import sys
import tempfile

sys.dont_write_bytecode = True

import gguf  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

from cases import CASES  # noqa: E402
from hf import cohere, deepseek, gated_delta, gemma, gemma4, glm, gpt_oss, granite  # noqa: E402
from hf import lfm, llama, minimax, olmo, phi, qwen  # noqa: E402
from hf.source import CONTEXT, Source  # noqa: E402

BUILDERS = {
    "command-r": cohere.command_r, "cohere2": cohere.cohere2, "deepseek2": deepseek.deepseek2, "gemma2": gemma.gemma2,
    "gemma3": gemma.gemma3, "gemma4": gemma4.gemma4, "glm4": glm.glm4, "glm4moe": glm.glm4moe,
    "gpt-oss": gpt_oss.gpt_oss, "granite": granite.granite, "granitemoe": granite.granitemoe, "lfm2": lfm.lfm2,
    "llama": llama.llama, "minimax-m2": minimax.minimax_m2, "mistral3": llama.mistral3, "olmo2": olmo.olmo2,
    "phi3": phi.phi3, "qwen2": qwen.qwen2, "qwen2moe": qwen.qwen2moe, "qwen3": qwen.qwen3, "qwen3moe": qwen.qwen3moe,
    "qwen3next": gated_delta.qwen3next, "qwen35": gated_delta.qwen35, "qwen35moe": gated_delta.qwen35moe,
}  # fmt: skip
PROMPTS = {1: [0], 7: list(range(7)), 300: sorted({*range(0, 300, 13), 298, 299})}
# Limits as NMSE: the smallest effect of a mutated file, the smallest effect of a configuration change (tests tolerate
# 1e-9), and the largest noise of a run in float32.
FILE_EFFECT, CONFIG_EFFECT, LARGEST_NOISE = 1e-5, 1e-8, 1e-10


class Float64(TorchFunctionMode):
    """Replaces float32 by float64 in the operations for which a model requests float32: norms, softmax, rope."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        def wide(value):
            return torch.float64 if value is torch.float32 else value

        if function is torch.Tensor.float:
            function = torch.Tensor.double
        return function(*map(wide, args), **{name: wide(value) for name, value in (kwargs or {}).items()})


def built(path, dtype, changes=None):
    torch.set_default_dtype(dtype)
    source = Source(path, changes)
    return BUILDERS[source.architecture](source)


def one_shot(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0].double().numpy()


def step_by_step(model, ids):
    cache = transformers.DynamicCache(config=model.config)
    rows = []
    with torch.no_grad():
        for position, token in enumerate(ids):
            out = model(torch.tensor([[token]]), past_key_values=cache, use_cache=True,
                        position_ids=torch.tensor([[position]]))  # fmt: skip
            rows.append(out.logits[0, 0].numpy())
    return np.stack(rows)


def nmse(found, expected):
    return float(((found - expected) ** 2).sum() / (expected**2).sum())


def prompt(case, length):
    vocab = case.keys["vocab_size"]
    return [int(word) % vocab for word in case.words(f"prompt of {length}", length)]


def write(case, answers, digest, path):
    """Writes the reference of a case. `digest`: hash of the bytes of the model file."""
    writer = gguf.GGUFWriter(path, "reference")
    writer.add_license("cc0-1.0")
    writer.add_string("reference.case", case.name)
    writer.add_string("reference.sha256", digest)
    writer.add_string("reference.transformers", transformers.__version__)
    writer.add_string("reference.torch", torch.__version__.split("+")[0])
    writer.add_uint32("reference.context", CONTEXT)
    writer.add_array("reference.mutations", list(case.files()))
    for length, (ids, logits) in answers.items():
        writer.add_tensor(f"ids.{length}", np.array(ids, np.int32))
        writer.add_tensor(f"rows.{length}", np.array(PROMPTS[length], np.int32))
        writer.add_tensor(f"logits.{length}", logits[PROMPTS[length]].astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def check(case, folder, failures):
    """Checks a case. Returns its logits and the hash of its file. Appends failed checks to `failures`."""

    def complain(wrong, text):
        print(f"  {text}{' ***' if wrong else ''}")
        if wrong:
            failures.append(f"{case.name}: {text}")

    path = folder / "model.gguf"
    case.write(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    with Float64():
        model = built(path, torch.float64)
        answers = {length: (prompt(case, length), None) for length in PROMPTS}
        answers = {length: (ids, one_shot(model, ids)) for length, (ids, _) in answers.items()}
        ids, logits = answers[300]
        noise = nmse(step_by_step(model, ids), logits)
        complain(noise > 1e-24, f"step by step: {noise:.1e}")
    noise = nmse(one_shot(built(path, torch.float32), ids), logits)
    complain(noise > LARGEST_NOISE, f"float32: {noise:.1e}; logits' deviation {logits.std():.2f}")
    for name, mutation in case.all_mutations().items():
        case.write(path, mutation)
        with Float64():
            effect = nmse(one_shot(built(path, torch.float64, mutation.config), ids), logits)
        complain(effect < (CONFIG_EFFECT if mutation.config else FILE_EFFECT), f"{name}: {effect:.1e}")
    return answers, digest


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="folder to write the references to")
    parser.add_argument("--only", default=".*", metavar="PATTERN",
                        help="regular expression that must match the whole name of a case")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)  # tiny models gain nothing from more threads
    failures = []
    with tempfile.TemporaryDirectory() as temporary:
        for case in CASES:
            if re.fullmatch(args.only, case.name):
                print(case.name, flush=True)
                answers, digest = check(case, pathlib.Path(temporary), failures)
                write(case, answers, digest, args.folder / f"{case.name}.gguf")
    if failures:
        sys.exit("\n".join(failures))


if __name__ == "__main__":
    main()
