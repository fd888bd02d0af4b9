"""Llama 1 to 3, Mistral, Mixtral, Ministral 3. All models have the same kind of block, with rope over neighbouring
elements.
"""

from case import Case, Mutation, Tensor, bias, fill, norm

from . import parts

E, H, K, FF, LAYERS = 48, 6, 3, 96, 3


def layer(dk, biases="", ffn=None):
    return parts.attention(E, H, K, dk, biases) | {"ffn_norm.weight": norm(E)} | (ffn or parts.gated(E, FF))


def llama(name, dk=8, biases="", ffn=None, more=None, mutations=None, tied=False, architecture="llama", tensors=None):
    keys = parts.keys(E, LAYERS, H, K, FF, None if dk == E // H else dk) | {"rope.dimension_count": dk} | (more or {})
    layers = [layer(dk, biases, ffn)] * LAYERS
    return Case(name, architecture, "norm", keys, parts.model(E, layers, tied, extra=tensors), mutations or {})


FACTORS = {"rope_freqs.weight": Tensor((4,), 4.5, 3.5)}
LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
FFN_BIASES = {"ffn_gate.bias": bias(FF), "ffn_up.bias": bias(FF), "ffn_down.bias": bias(E)}
YARN = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 8.0, "rope.scaling.original_context_length": 64,
    "rope.scaling.yarn_beta_fast": 6.0, "rope.scaling.yarn_beta_slow": 1.0, "rope.scaling.yarn_log_multiplier": 1.0,
    "attention.temperature_scale": 0.3, "rope.freq_base": 50.0,
}  # fmt: skip

PLAIN = llama("llama")

CASES = [
    PLAIN,
    PLAIN.fused("llama-fused"),
    llama("llama3", tied=True, tensors=FACTORS, mutations={
        "rope-factors-one": Mutation(tensors={"rope_freqs.weight": fill(1)}),
    }),
    llama("llama-linear", more=LINEAR, mutations={"rope-scaling": Mutation({"rope.scaling.factor": 1.0})}),
    llama("llama-biases", biases="qkvo", ffn=parts.gated(E, FF) | FFN_BIASES),
    llama("mistral-nemo", dk=16),
    llama("mixtral", dk=16, ffn=parts.experts(E, FF, 5), more={"expert_count": 5, "expert_used_count": 2}, mutations={
        "experts-used": Mutation({"expert_used_count": 3}),
    }),
    llama("mistral3", dk=16, architecture="mistral3", more=YARN, mutations={
        "temperature": Mutation({"attention.temperature_scale": None}),
        "yarn-factor": Mutation({"rope.scaling.factor": 4.0}),
        "yarn-off": Mutation({"rope.scaling.type": "none"}),
        "yarn-original-context": Mutation({"rope.scaling.original_context_length": 128}),
        "yarn-beta-fast": Mutation({"rope.scaling.yarn_beta_fast": 32.0}),
        "yarn-beta-slow": Mutation({"rope.scaling.yarn_beta_slow": 2.0}),
        "yarn-log-multiplier": Mutation({"rope.scaling.yarn_log_multiplier": None}),
    }),
]  # fmt: skip
