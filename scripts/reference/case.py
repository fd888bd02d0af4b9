"""A case: the content of a GGUF file with a tiny random model, and changes of the file that must change the logits.

Shapes are in GGUF order: the row length is first. Weights are computed from the raw words of PCG64 with exact or
correctly rounded arithmetic. So a file has the same bytes on every machine and with every version of NumPy.
"""

import dataclasses
import math
import re
import zlib
from collections.abc import Callable

import gguf
import numpy as np


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor with random elements, uniform over centre - spread .. centre + spread. If `parts` is given, the tensor
    has the concatenated rows of these tensors instead. `rows`: the order of these rows."""

    shape: tuple[int, ...]
    centre: float = 0.0
    spread: float = 0.0
    parts: "tuple[tuple[str, Tensor], ...]" = ()
    rows: tuple[int, ...] = ()


def matrix(*shape, gain=1.0):
    """A matrix. The variance of its results is `gain` squared times the variance of the input elements."""
    return Tensor(shape, 0.0, gain * math.sqrt(3 / shape[0]))


def norm(*shape, centre=1.0):
    return Tensor(shape, centre, 0.6 * centre)


def bias(*shape, spread=0.6):
    return Tensor(shape, 0.0, spread)


def joined(tensors, names):
    """Joins the rows of the named tensors into one tensor. The elements are the same as in separate tensors."""
    parts = tuple((name, tensors[name]) for name in names)
    *length, _ = parts[0][1].shape
    return Tensor((*length, sum(part.shape[-1] for _, part in parts)), parts=parts)


Change = Callable[[np.ndarray, "Case", str], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Mutation:
    """A change of a file.

    - `keys`: changed keys; None removes a key.
    - `tensors`: changes of tensors, by a regular expression that matches the whole name of a tensor.
    - `config`: changes of the transformers configuration, for properties that only the architecture determines.
    - `architecture`, `names`, `extra`: another name of the architecture, other suffixes of tensor names, and additional
      tensors. These changes must not change the logits.
    """

    keys: dict = dataclasses.field(default_factory=dict)
    tensors: dict[str, Change] = dataclasses.field(default_factory=dict)
    config: dict = dataclasses.field(default_factory=dict)
    architecture: str = ""
    names: dict[str, str] = dataclasses.field(default_factory=dict)
    extra: dict[str, Tensor] = dataclasses.field(default_factory=dict)


def fill(value) -> Change:
    return lambda values, *_: np.full_like(values, value)


def other_order(dims, rope):
    """Returns a new order of the rotated elements of a head. After this reordering, a correct program computes the
    logits of a program with the wrong kind of rope. `rope`: the correct kind, "norm" or "neox"."""
    order = np.arange(dims)
    return (order.reshape(2, -1).T if rope == "norm" else order.reshape(-1, 2).T).reshape(-1)


def as_other_rope_from(start, stride, dims=None) -> Change:
    """Returns a change like `as_other_rope` for tensors with unrotated rows between the rotated rows. Each block of
    `stride` rows has `dims` rotated rows from row `start` on. By default, `dims` is the rope dimension in the keys."""

    def change(values, case, _):
        turned = dims or case.rope_dims
        rows = values.reshape(-1, stride, *values.shape[1:]).copy()
        rows[:, start : start + turned] = rows[:, start + other_order(turned, case.rope)]
        return rows.reshape(values.shape)

    return change


def as_other_rope(values, case, name):
    """Reorders the rotated rows of q and k. After this reordering, a correct program computes the logits of a program
    with the wrong kind of rope."""
    length = case.head_length
    order = np.arange(length)
    order[: case.rope_dims] = other_order(case.rope_dims, case.rope)
    rotated = length * (case.keys["attention.head_count"] + case.keys["attention.head_count_kv"])
    rows, rest = (values[:rotated], values[rotated:]) if "qkv" in name else (values, values[:0])
    heads = rows.reshape(-1, length, *(() if "norm" in name else values.shape[1:]))
    return np.concatenate([heads[:, order].reshape(rows.shape), rest])


# Keys that llama.cpp writes into a saved file even if the model does not have them.
ZEROS = """
    attention.compress_ratios attention.indexer.block_size attention.indexer.head_count attention.indexer.types
    attention.key_length_mla attention.kv_lora_rank attention.output_group_count attention.q_lora_rank
    attention.recurrent_layers attention.sliding_window attention.temperature_length attention.value_length_mla
    expert_count expert_feed_forward_length expert_gating_func expert_group_count expert_group_used_count
    expert_latent_length expert_shared_count expert_shared_feed_forward_length expert_used_count feed_forward_length
    leading_dense_block_count nextn_predict_layers shortconv.l_cache ssm.conv_kernel ssm.group_count ssm.inner_size
    ssm.state_size ssm.time_step_rank
""".split()
FLOAT_ZEROS = """
    attention.clamp_kqv attention.layer_norm_epsilon attention.layer_norm_rms_epsilon attention.max_alibi_bias
    attention.output_scale attention.scale attention.temperature_scale attention.value_scale embedding_scale
    expert_weights_scale logit_scale residual_scale rope.scaling.factor rope.scaling.yarn_log_multiplier
""".split()
UNSET = dict.fromkeys(ZEROS, 0) | dict.fromkeys(FLOAT_ZEROS, 0.0) | {
    "attention.causal": True, "attention.indexer.kpool_select_tail": True, "attention.rope_pattern": 1,
    "attn_logit_softcapping": 50.0, "expert_group_scale": 0.05, "expert_weights_norm": False,
    "rope.dimension_sections": [0, 0, 0, 0], "rope.freq_base_swa": 10000.0, "rope.scaling.attn_factor": 1.0,
    "rope.scaling.finetuned": False, "rope.scaling.original_context_length": 512, "rope.scaling.type": "linear",
    "rope.scaling.yarn_attn_factor": 1.0, "rope.scaling.yarn_beta_fast": 32.0, "rope.scaling.yarn_beta_slow": 1.0,
    "rope.scaling.yarn_ext_factor": -1.0, "ssm.dt_b_c_rms": False,
}  # fmt: skip
# Period of the layers without a window, by architecture. A file may define another period.
PERIODS = {"cohere2": 4, "gemma2": 2, "gemma3": 6, "gpt-oss": 2}


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, and the changes of its file.

    - `keys`: the keys without the prefix of the architecture.
    - `rope`: the kind of rope of the architecture, "norm" or "neox".
    - `seed`: the default is the name. Cases with the same seed have the same prompts. Their tensors of the same name
      have the same elements.
    - `general`: whether the case also has the mutations that all architectures share.
    - `ollama`: changes that give the same model in the format of Ollama's files.
    """

    name: str
    architecture: str
    rope: str
    keys: dict
    tensors: dict[str, Tensor]
    mutations: dict[str, Mutation] = dataclasses.field(default_factory=dict)
    seed: str = ""
    general: bool = True
    ollama: Mutation | None = None

    @property
    def head_length(self):
        default = self.keys["embedding_length"] // self.keys["attention.head_count"]
        return self.keys.get("attention.key_length", default)

    @property
    def rope_dims(self):
        return self.keys.get("rope.dimension_count", self.head_length)

    def values(self, name) -> np.ndarray:
        """Returns the elements of a tensor as f32. The row length is the last element of the shape."""
        return self.elements(name, self.tensors[name])

    def words(self, purpose, count):
        """Returns `count` random 64-bit words, which depend on the seed and on `purpose`."""
        seed = [zlib.crc32((self.seed or self.name).encode()), zlib.crc32(purpose.encode())]
        return np.random.PCG64(np.random.SeedSequence(seed)).random_raw(count)

    def elements(self, name, tensor):
        if tensor.parts:
            rows = np.concatenate([self.elements(*part) for part in tensor.parts])
            return rows[list(tensor.rows)] if tensor.rows else rows
        words = self.words(name, math.prod(tensor.shape))
        unit = ((words >> np.uint64(40)).astype(np.float64) - 2**23) / 2**23  # -1 .. 1, exact
        return (unit * tensor.spread + tensor.centre).astype(np.float32).reshape(tensor.shape[::-1])

    def all_mutations(self) -> dict[str, Mutation]:
        """Returns the mutations of this case, and the general mutations: norms, biases, the kind and the base of rope,
        and epsilon."""
        found = {}
        if not self.general:
            return self.mutations
        for name in self.tensors:
            part = re.sub(r"blk\.\d+\.", "", name)
            every = rf"(blk\.\d+\.)?{re.escape(part)}"
            if part.startswith("nextn"):
                continue
            if part.endswith("norm.weight"):
                found[part.removesuffix(".weight") + "-one"] = Mutation(tensors={every: fill(1)})
            elif part.endswith(".bias"):
                found[part.replace(".", "-") + "-zero"] = Mutation(tensors={every: fill(0)})
        rows = r"blk\.\d+\.attn_([qk](_norm)?|qkv)\.(weight|bias)"
        found["rope-kind"] = Mutation(tensors={rows: as_other_rope})
        found["rope-base"] = Mutation({"rope.freq_base": self.keys["rope.freq_base"] * 1.5})
        for key in ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"):
            if key in self.keys:
                found["norm-epsilon"] = Mutation({key: 0.1})
        return found | self.mutations

    def files(self) -> dict[str, Mutation]:
        """Returns the mutations that change only the file."""
        return {name: one for name, one in self.all_mutations().items() if not one.config}

    def saved(self) -> Mutation:
        """Returns a mutation with all keys that llama.cpp writes into a saved file. These keys must not change the
        logits. Such a file stores flags of layers as u32. So the flags are tuples, which add_key() writes as u32."""
        found = {key: value for key, value in UNSET.items() if key not in self.keys}
        swa = {"attention.key_length_swa": self.head_length, "rope.dimension_count_swa": self.rope_dims}
        found |= {key: value for key, value in swa.items() if key not in self.keys}
        if self.architecture == "granite":
            found["rope.scaling.finetuned"] = True
        if self.architecture == "deepseek2" and "rope.scaling.yarn_log_multiplier" in self.keys:
            found["rope.scaling.yarn_log_multiplier"] = 10 * self.keys["rope.scaling.yarn_log_multiplier"]
        for key, value in self.keys.items():
            if isinstance(value, list) and isinstance(value[0], bool):
                found[key] = tuple(map(int, value))
        layers = range(self.keys["block_count"])
        if period := PERIODS.get(self.architecture):
            found["attention.sliding_window_pattern"] = tuple(int(index % period < period - 1) for index in layers)
        if period := self.keys.get("full_attention_interval"):
            found["attention.recurrent_layers"] = tuple(int((index + 1) % period != 0) for index in layers)
            found["full_attention_interval"] = None
        return Mutation(found)

    def same(self) -> dict[str, Mutation]:
        """Returns the changes of the file that must not change the logits."""
        return {"saved": self.saved()} | ({"ollama": self.ollama} if self.ollama else {})

    def fused(self, name):
        """Returns a case with the same model, but with q, k and v in one tensor."""
        tensors = {}
        for of, tensor in self.tensors.items():
            if of.endswith(("attn_q.weight", "attn_q.bias")):
                names = [of.replace("attn_q", f"attn_{one}") for one in "qkv"]
                tensors[of.replace("attn_q", "attn_qkv")] = joined(self.tensors, names)
            elif not of.endswith(("attn_k.weight", "attn_v.weight", "attn_k.bias", "attn_v.bias")):
                tensors[of] = tensor
        return dataclasses.replace(self, name=name, tensors=tensors, seed=self.name)

    def write(self, path, mutation=Mutation()):
        """Writes the file to `path`. Replaces an existing file."""
        architecture = mutation.architecture or self.architecture
        writer = gguf.GGUFWriter(path, architecture)
        writer.add_license("cc0-1.0")
        writer.add_file_type(0)
        keys = {key: value for key, value in {**self.keys, **mutation.keys}.items() if value is not None}
        for key, value in keys.items():
            add_key(writer, f"{architecture}.{key}", value)
        writer.add_string("tokenizer.ggml.model", "none")
        used = set()
        for name in self.tensors:
            values = self.values(name)
            for pattern, change in mutation.tensors.items():
                if re.fullmatch(pattern, name):
                    values = change(values, self, name)
                    used.add(pattern)
            for end, other in mutation.names.items():
                if re.fullmatch(rf"(blk\.\d+\.)?{re.escape(end)}", name):
                    name = name.removesuffix(end) + other
            writer.add_tensor(name, values)
        for name, tensor in mutation.extra.items():
            writer.add_tensor(name, self.elements(name, tensor))
        unused = set(mutation.tensors) - used
        assert not unused, f"{self.name}: no tensor matches {unused}"
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def add_key(writer, name, value):
    """Adds a key. A tuple is written as an array of u32."""
    if isinstance(value, tuple):
        kind = gguf.GGUFValueType
        writer.add_key_value(name, list(value), kind.ARRAY, kind.UINT32)
        return
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string,
             list: writer.add_array}  # fmt: skip
    kinds[type(value)](name, value)
