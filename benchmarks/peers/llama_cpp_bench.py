#!/usr/bin/env python3
"""Measures llama.cpp through the low-level interface of its Python package. The flags and the JSON have the format of
llama-bench.

This program runs in the virtual environment that environment.py makes. The program evaluates a prompt in batches of
up to -b tokens, and each generated token as a batch of one token. The clock stops when the logits of the last token are
in host memory. The program samples no tokens. As in `shoal bench`, each test has a separate context and a warm-up run.

    llama_cpp_bench.py -m model.gguf -p 512 -n 128 -t 2 -r 1
    llama_cpp_bench.py --about
"""

import argparse
import ctypes
import json
import pathlib
import re
import sys
import time

import llama_cpp

ERROR_LEVEL = 4
WARMUP_TOKENS = 4
messages = []


@llama_cpp.llama_log_callback
def keep_errors(level, text, _):
    if level == ERROR_LEVEL:
        messages.append(text.decode(errors="replace").strip())


def fail(what):
    """Exits with the message `what` and the last error of llama.cpp."""
    sys.exit(f"{what}: {messages[-1]}" if messages else what)


def about():
    """Returns the version of the package, and the commit and the instruction set of its llama.cpp."""
    facts = {"build_version": f"llama-cpp-python {llama_cpp.__version__}"}
    for library in pathlib.Path(llama_cpp.__file__).parent.glob("lib/libggml-base.so"):
        base = ctypes.CDLL(str(library))
        for key, name in (("ggml_version", "ggml_version"), ("build_commit", "ggml_commit")):
            if function := getattr(base, name, None):
                function.restype = ctypes.c_char_p
                facts[key] = function().decode()
    facts["system_info"] = " ".join(re.findall(r"(\w+) = 1\b", llama_cpp.llama_print_system_info().decode()))
    return facts


class Bench:
    """A loaded model. Runs tests one after another."""

    def __init__(self, options):
        self.options = options
        parameters = llama_cpp.llama_model_default_params()
        parameters.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(options.model.encode(), parameters)
        if not self.model:
            fail(f"cannot load {options.model}")
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def decode(self, tokens):
        array = (llama_cpp.llama_token * len(tokens))(*tokens)  # must outlive the batch
        if status := llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(array, len(tokens))):
            fail(f"llama_decode failed with {status}")
        llama_cpp.llama_get_logits_ith(self.context, -1)[0]  # waits for the logits

    def evaluate(self, tokens, at_once):
        for begin in range(0, len(tokens), at_once):
            self.decode(tokens[begin : begin + at_once])

    def make_context(self, tokens):
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = tokens
        parameters.n_batch, parameters.n_ubatch = self.options.batch, self.options.ubatch
        parameters.n_threads = parameters.n_threads_batch = self.options.threads
        self.context = llama_cpp.llama_init_from_model(self.model, parameters)
        if not self.context:
            fail(f"cannot make a context of {tokens} tokens")

    def measure(self, prompt, generate, depth):
        """Runs one test. Returns the nanoseconds of each repetition."""
        self.make_context(depth + prompt + generate)
        memory = llama_cpp.llama_get_memory(self.context)
        all_tokens = [(7919 * i + 31) % self.vocabulary for i in range(depth + prompt + generate)]
        tokens, at_once = all_tokens[depth:], self.options.batch if prompt else 1
        self.evaluate(all_tokens[:depth], self.options.batch)
        self.evaluate(tokens if prompt else tokens[:WARMUP_TOKENS], at_once)
        times = []
        for _ in range(self.options.repetitions):
            if not llama_cpp.llama_memory_seq_rm(memory, 0, depth, -1):
                fail(f"cannot rewind to {depth} tokens")
            begin = time.perf_counter_ns()
            self.evaluate(tokens, at_once)
            times.append(time.perf_counter_ns() - begin)
        llama_cpp.llama_free(self.context)
        return times


def counts(text):
    return [int(word) for word in text.split(",")]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", dest="model")
    parser.add_argument("-p", dest="prompts", type=counts, default=[512])
    parser.add_argument("-n", dest="generations", type=counts, default=[128])
    parser.add_argument("-d", dest="depths", type=counts, default=[0])
    parser.add_argument("-b", dest="batch", type=int, default=2048)
    parser.add_argument("-ub", dest="ubatch", type=int, default=512)
    parser.add_argument("-t", dest="threads", type=int, required="--about" not in sys.argv)
    parser.add_argument("-r", dest="repetitions", type=int, default=5)
    parser.add_argument("-o", dest="output", choices=["json"], default="json")
    parser.add_argument("--about", action="store_true", help="print the versions and the instruction set, and exit")
    return parser.parse_args()


def main():
    options = parse_arguments()
    llama_cpp.llama_log_set(keep_errors, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    facts = about()
    if options.about:
        print(json.dumps(facts))
        return
    bench = Bench(options)
    rows = []
    for depth in options.depths:
        for prompt, generate in [(p, 0) for p in options.prompts if p] + [(0, n) for n in options.generations if n]:
            times = bench.measure(prompt, generate, depth)
            rates = [(prompt + generate) * 1e9 / one for one in times]
            rows.append(
                {
                    **facts,
                    "n_threads": options.threads,
                    "n_prompt": prompt,
                    "n_gen": generate,
                    "n_depth": depth,
                    "avg_ts": sum(rates) / len(rates),
                    "samples_ns": times,
                    "samples_ts": rates,
                }
            )
    print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
