"""Reads a GGUF file for the builder of a model. Tensors are float64, and the row length is the last element of a
shape."""

import re

import gguf
import torch

# Context of the compared sessions in tokens. In cases with short rope factors, the original context is larger than
# CONTEXT. In cases with long rope factors, the original context is smaller.
CONTEXT = 320
MISSING = object()


class Source:
    """A GGUF file. A key or tensor counts as used when it is read. check_all_used() reports unused keys and tensors."""

    # Keys that do not affect the logits.
    IDLE = ("vocab_size", "context_length")

    def __init__(self, path, changes=None):
        """`changes`: values of the configuration that replace the values of the file."""
        self.changes = changes or {}
        reader = gguf.GGUFReader(path)
        self.architecture = reader.fields["general.architecture"].contents()
        prefix = self.architecture + "."
        self.keys = {name.removeprefix(prefix): field.contents() for name, field in reader.fields.items()
                     if name.startswith(prefix)}  # fmt: skip
        self.tensors = {tensor.name: torch.from_numpy(tensor.data.copy()).double() for tensor in reader.tensors}
        self.used = set()

    def key(self, name, default=MISSING):
        self.used.add(name)
        if default is MISSING:
            return self.keys[name]
        return self.keys.get(name, default)

    def has(self, name):
        return name in self.tensors

    def take(self, name):
        self.used.add(name)
        return self.tensors[name]

    def check_all_used(self):
        idle = {*self.keys, *self.tensors} - self.used - set(self.IDLE)
        assert not idle, f"nothing reads {sorted(idle)}"

    # Properties that all architectures have.
    @property
    def embd(self):
        return self.key("embedding_length")

    @property
    def layers(self):
        return self.key("block_count")

    @property
    def trunk(self):
        """Number of layers before the blocks of draft heads. Tensors of these blocks count as used, because they do not
        affect the logits."""
        trunk = self.layers - self.key("nextn_predict_layers", 0)
        draft = re.compile("|".join(rf"blk\.{index}\." for index in range(trunk, self.layers)) or "(?!)")
        self.used |= {name for name in self.tensors if draft.match(name)}
        return trunk

    @property
    def heads(self):
        return self.key("attention.head_count")

    @property
    def kv_heads(self):
        return self.key("attention.head_count_kv")

    @property
    def head_dim(self):
        dim = self.key("attention.key_length", self.embd // self.heads)
        assert self.key("attention.value_length", dim) == dim
        return dim

    @property
    def rope_dims(self):
        return self.key("rope.dimension_count", self.head_dim)

    @property
    def tied(self):
        return not self.has("output.weight")

    @property
    def base(self):
        return self.key("rope.freq_base", 10000.0)

    def windows(self, period):
        """For each layer: whether the layer has a window. A pattern in the file replaces the architecture's period."""
        pattern = self.key("attention.sliding_window_pattern", period)
        if isinstance(pattern, list):
            assert len(pattern) == self.layers
            return pattern
        return [index % pattern < pattern - 1 for index in range(self.layers)]

    def layer_types(self, period):
        return ["sliding_attention" if one else "full_attention" for one in self.windows(period)]

    def config(self, **more):
        """Returns the keyword arguments of a transformers configuration."""
        return {
            "hidden_size": self.embd, "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads, "intermediate_size": self.key("feed_forward_length", 0),
            "rms_norm_eps": self.key("attention.layer_norm_rms_epsilon", 1e-6),
            "vocab_size": self.tensors["token_embd.weight"].shape[0], "tie_word_embeddings": self.tied,
            "max_position_embeddings": 512, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
            "attn_implementation": "eager", "experts_implementation": "eager",
        } | more | self.changes  # fmt: skip

    def rope_parameters(self, **more):
        """Returns the rope parameters of the file in the notation of transformers. `more`: additional parameters for
        YaRN."""
        parameters = {"rope_theta": self.base, "rope_type": "default"}
        kind = self.key("rope.scaling.type", "none")
        factor = self.key("rope.scaling.factor", 1.0)
        if kind == "linear":
            parameters |= {"rope_type": "linear", "factor": factor}
        elif kind == "yarn":
            parameters |= {
                "rope_type": "yarn", "factor": factor,
                "original_max_position_embeddings": self.key("rope.scaling.original_context_length"),
                "beta_fast": self.key("rope.scaling.yarn_beta_fast", 32.0),
                "beta_slow": self.key("rope.scaling.yarn_beta_slow", 1.0),
            }  # fmt: skip
            multiplier = self.key("rope.scaling.yarn_log_multiplier", 0.0)
            if multiplier:
                parameters |= {"mscale": 1.0, "mscale_all_dim": multiplier}
            parameters |= more
        else:
            assert kind == "none", kind
        return parameters


def halves_from_neighbours(rows, heads):
    """Reorders rows of q or k. The rows have the order for rope over neighbouring elements. The result has the order
    for rope over halves of a head."""
    length = rows.shape[0] // heads
    return rows.reshape(heads, length // 2, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


class Weights:
    """Builds a state dictionary from the tensors of the file, with the names of transformers."""

    def __init__(self, source, minus_one=False, permuted=False, last_norm=("output_norm.weight", "model.norm.weight")):
        self.source, self.minus_one, self.permuted = source, minus_one, permuted
        self.state = {}
        self.put("token_embd.weight", "model.embed_tokens.weight")
        self.put(*last_norm)
        self.state["lm_head.weight"] = self.state["model.embed_tokens.weight"]
        if not source.tied:
            self.put("output.weight", "lm_head.weight")

    def put(self, name, to):
        values = self.source.take(name)
        self.state[to] = values - 1 if self.minus_one and name.endswith("norm.weight") else values

    def put_layer(self, index, names):
        for name, to in names.items():
            self.put(f"blk.{index}.{name}", f"model.layers.{index}.{to}")

    def attention(self, index):
        """Adds q, k, v and o with their biases and norms. Splits fused q, k and v."""
        source = self.source
        q, k = source.heads * source.head_dim, source.kv_heads * source.head_dim
        to = f"model.layers.{index}.self_attn."
        for kind in ("weight", "bias"):
            fused = f"blk.{index}.attn_qkv.{kind}"
            parts = source.take(fused).split([q, k, k]) if source.has(fused) else None
            for i, one in enumerate("qkv"):
                name = f"blk.{index}.attn_{one}.{kind}"
                if parts is None and not source.has(name):
                    continue
                rows = source.take(name) if parts is None else parts[i]
                if self.permuted and one != "v":
                    rows = halves_from_neighbours(rows, source.heads if one == "q" else source.kv_heads)
                self.state[f"{to}{one}_proj.{kind}"] = rows
            if source.has(f"blk.{index}.attn_output.{kind}"):
                self.put(f"blk.{index}.attn_output.{kind}", f"{to}o_proj.{kind}")
        for one in "qk":
            if source.has(f"blk.{index}.attn_{one}_norm.weight"):
                self.put(f"blk.{index}.attn_{one}_norm.weight", f"{to}{one}_norm.weight")

    def gated(self, index, to="mlp", suffix=""):
        for part in ("gate", "up", "down"):
            for kind in ("weight", "bias"):
                if self.source.has(f"blk.{index}.ffn_{part}{suffix}.{kind}"):
                    self.put_layer(index, {f"ffn_{part}{suffix}.{kind}": f"{to}.{part}_proj.{kind}"})

    def experts(self, index, router="mlp.gate", to="mlp.experts"):
        """Adds the experts. For each expert, a single tensor contains the gate rows, then the up rows, even if the file
        has two tensors."""
        source = self.source
        self.put_layer(index, {"ffn_gate_inp.weight": f"{router}.weight", "ffn_down_exps.weight": f"{to}.down_proj"})
        if source.has(f"blk.{index}.ffn_gate_up_exps.weight"):
            self.put_layer(index, {"ffn_gate_up_exps.weight": f"{to}.gate_up_proj"})
            return
        both = [source.take(f"blk.{index}.ffn_{part}_exps.weight") for part in ("gate", "up")]
        self.state[f"model.layers.{index}.{to}.gate_up_proj"] = torch.cat(both, dim=1)


def build(model_class, config, weights):
    model = model_class(config).eval()
    left = model.load_state_dict(weights.state, strict=False)
    assert not left.unexpected_keys and not left.missing_keys, left
    weights.source.check_all_used()
    return model
