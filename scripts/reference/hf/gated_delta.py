"""Qwen3-Next, Qwen3.5 and 3.6, dense and with experts."""

import sys

import torch
import transformers as hf

from .source import Weights, build


class Heads:
    """Numbers and lengths of the heads in recurrent layers."""

    def __init__(self, source):
        self.k, self.v = source.key("ssm.group_count"), source.key("ssm.time_step_rank")
        self.length, self.kernel = source.key("ssm.state_size"), source.key("ssm.conv_kernel")
        assert source.key("ssm.inner_size") == self.v * self.length
        self.groups = self.v // self.k

    def config(self):
        return {
            "linear_num_key_heads": self.k, "linear_num_value_heads": self.v, "linear_conv_kernel_dim": self.kernel,
            "linear_key_head_dim": self.length, "linear_value_head_dim": self.length,
        }  # fmt: skip

    def neighbours(self, rows, length, first=0):
        """Reorders blocks of `length` rows from row `first` on. There is one block per value head. In the result, the
        value heads that share a head of q and k are neighbours instead of interleaved."""
        blocks = rows[first:].reshape(self.groups, self.k, length, *rows.shape[1:]).transpose(0, 1)
        return torch.cat([rows[:first], blocks.reshape(rows[first:].shape)])

    def split(self, rows, lengths):
        """Splits rows that are grouped by the heads of q and k. Returns a tensor for each kind of row."""
        return [part.reshape(-1, rows.shape[1]) for part in rows.reshape(self.k, -1, rows.shape[1]).split(lengths, 1)]

    def joined(self, kinds):
        """Inverts split(): groups the rows of all kinds by the heads of q and k."""
        return torch.cat([kind.reshape(self.k, -1, kind.shape[-1]) for kind in kinds], 1).flatten(0, 1)


def full_layers(source):
    """Returns one bool per layer of the trunk. True: the layer has attention."""
    recurrent = source.key("attention.recurrent_layers", None)
    if recurrent is not None:
        assert len(recurrent) == source.layers
        return [not one for one in recurrent[: source.trunk]]
    interval = source.key("full_attention_interval")
    return [(index + 1) % interval == 0 for index in range(source.trunk)]


def put_state_layer(source, weights, index, heads, turns):
    """Adds the weights of a recurrent layer. `turns`: whether the file interleaves the value heads that share a head of
    q and k."""

    def take(name):
        return source.take(f"blk.{index}.{name}")

    def value_heads(rows, length, first=0):
        return heads.neighbours(rows, length, first) if turns else rows

    q = heads.k * heads.length
    to = f"model.layers.{index}.linear_attn."
    legacy = source.has(f"blk.{index}.ssm_in.weight")
    taps = value_heads(take("ssm_conv1d.weight"), heads.length, 2 * q)
    weights.state |= {
        to + "conv1d.weight": taps[:, None],
        to + "dt_bias": value_heads(take("ssm_dt.bias"), 1),
        # The logarithm of a decay of 0 is infinite, so a tiny value replaces 0.
        to + "A_log": value_heads(-take("ssm_a"), 1).clamp(min=1e-300).log(),
        to + "norm.weight": take("ssm_norm.weight"),
        to + "out_proj.weight": value_heads(take("ssm_out.weight").T, heads.length).T.contiguous(),
    }
    if turns:
        weights.state |= {
            to + "in_proj_qkv.weight": value_heads(take("attn_qkv.weight"), heads.length, 2 * q),
            to + "in_proj_z.weight": value_heads(take("attn_gate.weight"), heads.length),
            to + "in_proj_b.weight": value_heads(take("ssm_beta.weight"), 1),
            to + "in_proj_a.weight": value_heads(take("ssm_alpha.weight"), 1),
        }
        return
    weights.state[to + "in_proj_ba.weight"] = take("ssm_ba.weight")
    if legacy:
        both = take("ssm_in.weight")
    else:
        kinds = take("attn_qkv.weight").split([q, q, heads.v * heads.length])
        both = heads.joined([*kinds, take("attn_gate.weight")])
    weights.state[to + "in_proj_qkvz.weight"] = both


def put_ffn(source, weights, index):
    if not source.key("expert_count", 0):
        weights.gated(index)
        return
    weights.experts(index)
    weights.gated(index, "mlp.shared_expert", "_shexp")
    gate = source.take(f"blk.{index}.ffn_gate_inp_shexp.weight")
    weights.state[f"model.layers.{index}.mlp.shared_expert_gate.weight"] = gate.reshape(1, -1)


def qwen(source, model_class, config_class, turns, **more):
    heads, full = Heads(source), full_layers(source)
    weights = Weights(source, minus_one=True)
    for index, attention in enumerate(full):
        weights.put_layer(index, {"attn_norm.weight": "input_layernorm.weight",
                                  "post_attention_norm.weight": "post_attention_layernorm.weight"})  # fmt: skip
        weights.attention(index) if attention else put_state_layer(source, weights, index, heads, turns)
        put_ffn(source, weights, index)
    rope = source.rope_parameters() | {"partial_rotary_factor": source.rope_dims / source.head_dim}
    if turns:
        *sections, last = source.key("rope.dimension_sections")
        assert 2 * sum(sections) == source.rope_dims and not last
        rope |= {"mrope_section": sections, "mrope_interleaved": True}
    config = heads.config() | {
        "head_dim": source.head_dim, "rope_parameters": rope, "num_hidden_layers": source.trunk,
        "layer_types": ["full_attention" if one else "linear_attention" for one in full],
    }  # fmt: skip
    if source.key("expert_count", 0):
        config |= {
            "num_experts": source.key("expert_count"), "num_experts_per_tok": source.key("expert_used_count"),
            "moe_intermediate_size": source.key("expert_feed_forward_length"),
            "shared_expert_intermediate_size": source.key("expert_shared_feed_forward_length"),
        }  # fmt: skip
    model = build(model_class, config_class(**source.config(**config, **more)), weights)
    return as_in_files(model, source.key("attention.layer_norm_rms_epsilon"))


def as_in_files(model, epsilon):
    """Replaces the normalisation of q and k. GGUF models divide a row of q or k by its norm, or by `epsilon` if
    the norm is smaller. transformers would add 1e-6 to the sum of the squares."""
    module = sys.modules[type(model).__module__]

    def unit(x, dim=-1, eps=None):
        return x / x.norm(dim=dim, keepdim=True).clamp(min=epsilon)

    model.register_forward_pre_hook(lambda *_: setattr(module, "l2norm", unit))
    return model


def qwen35(source):
    return qwen(source, hf.Qwen3_5ForCausalLM, hf.Qwen3_5TextConfig, turns=True)


def qwen35moe(source):
    return qwen(source, hf.Qwen3_5MoeForCausalLM, hf.Qwen3_5MoeTextConfig, turns=True)


def qwen3next(source):
    return qwen(source, hf.Qwen3NextForCausalLM, hf.Qwen3NextConfig, turns=False, decoder_sparse_step=1)
