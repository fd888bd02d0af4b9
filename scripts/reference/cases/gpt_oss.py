"""gpt-oss: sinks, biases in all matrices, windows in even layers, clamped activations, softmax over the selected
experts.

The range of frequencies of YaRN (0.64 to 9.9 here) is not rounded to whole numbers. The clamps at 7 affect several per
cent of the gate and up values.
"""

from case import Case, Mutation, Tensor, bias, fill, matrix, norm

from . import parts

E, H, K, DK, FF, EXPERTS, LAYERS = 48, 6, 3, 16, 32, 4, 3

LAYER = parts.attention(E, H, K, DK, "qkvo") | {
    "post_attention_norm.weight": norm(E),
    "attn_sinks.weight": Tensor((H,), 1.0, 1.5),
    "ffn_gate_inp.weight": matrix(E, EXPERTS),
    "ffn_gate_inp.bias": bias(EXPERTS),
    "ffn_gate_exps.weight": matrix(E, FF, EXPERTS, gain=4.0),
    "ffn_gate_exps.bias": bias(FF, EXPERTS, spread=2.0),
    "ffn_up_exps.weight": matrix(E, FF, EXPERTS, gain=4.0),
    "ffn_up_exps.bias": bias(FF, EXPERTS, spread=2.0),
    "ffn_down_exps.weight": matrix(FF, E, EXPERTS, gain=0.1),
    "ffn_down_exps.bias": bias(E, EXPERTS),
}
KEYS = parts.keys(E, LAYERS, H, K, FF, DK, base=20.0) | {
    "expert_count": EXPERTS, "expert_used_count": 2, "expert_feed_forward_length": FF, "attention.sliding_window": 29,
    "rope.dimension_count": DK, "rope.scaling.type": "yarn", "rope.scaling.factor": 32.0,
    "rope.scaling.original_context_length": 256,
}  # fmt: skip

CASES = [
    Case("gpt-oss", "gpt-oss", "neox", KEYS, parts.model(E, [LAYER] * LAYERS), {
        "sinks": Mutation(tensors={r"blk\.\d+\.attn_sinks\.weight": fill(-1e4)}),
        "window": Mutation({"attention.sliding_window": 58}),
        "window-pattern": Mutation({"attention.sliding_window_pattern": [False, True, False]}),
        "experts-used": Mutation({"expert_used_count": 3}),
        "yarn-factor": Mutation({"rope.scaling.factor": 16.0}),
        "yarn-off": Mutation({"rope.scaling.type": "none"}),
        "yarn-original-context": Mutation({"rope.scaling.original_context_length": 270}),
        "yarn-rounded": Mutation(config={"rope_parameters": {
            "rope_type": "yarn", "rope_theta": 20.0, "factor": 32.0, "original_max_position_embeddings": 256,
            "beta_fast": 32.0, "beta_slow": 1.0, "truncate": True,
        }}),
        "activation-clamps": Mutation(config={"swiglu_limit": 1e9}),
        "activation-slope": Mutation(config={"swiglu_alpha": 1.0}),
    }, ollama=Mutation(
        {"rope.scaling.type": None, "expert_feed_forward_length": None, "rope.dimension_count": None},
        architecture="gptoss", names={
            "attn_output.weight": "attn_out.weight", "attn_output.bias": "attn_out.bias",
            "attn_sinks.weight": "attn_sinks", "post_attention_norm.weight": "ffn_norm.weight",
        },
    )),
]  # fmt: skip
