"""Sizes of models, and presets for well-known models."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Latent:
    """Sizes of attention with one latent row per token. Sizes are numbers of elements."""

    query_rank: int  # 0: queries have full rank
    rank: int
    plain: int  # unrotated elements of a head's key
    turned: int  # rotated elements of a head's key
    value: int


@dataclasses.dataclass(frozen=True)
class Recurrent:
    """Sizes of layers with a recurrent state. Every `interval`th layer has attention instead."""

    interval: int
    key_heads: int
    value_heads: int
    head_dim: int
    taps: int


@dataclasses.dataclass(frozen=True)
class Shape:
    embd: int
    layers: int
    ff: int  # width of the feed-forward block, or of one expert
    heads: int
    kv_heads: int
    vocab: int
    ctx: int
    rope_base: float
    tied: bool
    given_head_dim: int = 0  # 0: embd / heads
    architecture: str = "llama"
    experts: int = 0
    experts_used: int = 0
    window: int = 0  # attention window, if the architecture has one
    shared_ff: int = 0  # width of the shared expert
    dense_layers: int = 0  # number of layers without experts before the layers with experts
    dense_ff: int = 0  # feed-forward width of the layers without experts
    rope_dims: int = 0  # number of rotated elements of a head; 0: all
    latent: Latent | None = None
    recurrent: Recurrent | None = None
    keys: tuple[tuple[str, object], ...] = ()  # additional keys, without the prefix of the architecture

    @property
    def head_dim(self):
        return self.given_head_dim or self.embd // self.heads


DEEPSEEK_YARN = (
    ("rope.scaling.type", "yarn"),
    ("rope.scaling.factor", 40.0),
    ("rope.scaling.original_context_length", 4096),
)
DEEPSEEK_KEYS = (
    ("expert_gating_func", 2),
    ("expert_group_count", 8),
    ("expert_group_used_count", 4),
    ("expert_weights_norm", True),
    ("expert_weights_scale", 2.5),
    *DEEPSEEK_YARN,
    ("rope.scaling.yarn_log_multiplier", 0.1),
)
DEEPSEEK_LITE_KEYS = (
    ("expert_gating_func", 1),
    ("expert_weights_norm", False),
    ("expert_weights_scale", 1.0),
    *DEEPSEEK_YARN,
    ("rope.scaling.yarn_log_multiplier", 0.0707),
)
QWEN35_KEYS = (("rope.dimension_sections", [11, 11, 10, 0]),)

PRESETS = {
    "tiny": Shape(256, 6, 768, 8, 4, 1024, 512, 10000.0, False),
    "1b": Shape(2048, 16, 8192, 32, 8, 32000, 8192, 500000.0, True),
    "8b": Shape(4096, 32, 14336, 32, 8, 128256, 8192, 500000.0, False),
    "70b": Shape(8192, 80, 28672, 64, 8, 128256, 8192, 500000.0, False),
    "llama-3.2-1b": Shape(2048, 16, 8192, 32, 8, 128256, 131072, 500000.0, True),
    "qwen3-0.6b": Shape(1024, 28, 3072, 16, 8, 151936, 40960, 1000000.0, True, 128, "qwen3"),
    "qwen3-30b-a3b": Shape(2048, 48, 768, 32, 4, 151936, 40960, 1000000.0, False, 128, "qwen3moe", 128, 8),
    "qwen3-235b-a22b": Shape(4096, 94, 1536, 64, 4, 151936, 40960, 1000000.0, False, 128, "qwen3moe", 128, 8),
    "gpt-oss-20b": Shape(2880, 24, 2880, 64, 8, 201088, 131072, 150000.0, False, 64, "gpt-oss", 32, 4, 128),
    "gpt-oss-120b": Shape(2880, 36, 2880, 64, 8, 201088, 131072, 150000.0, False, 64, "gpt-oss", 128, 4, 128),
    "deepseek-v3": Shape(
        7168, 61, 2048, 128, 1, 129280, 163840, 10000.0, False, 576, "deepseek2", 256, 8, shared_ff=2048, dense_layers=3,
        dense_ff=18432, rope_dims=64, latent=Latent(1536, 512, 128, 64, 128), keys=DEEPSEEK_KEYS,
    ),
    "deepseek-v2-lite": Shape(
        2048, 27, 1408, 16, 1, 102400, 163840, 10000.0, False, 576, "deepseek2", 64, 6, shared_ff=2816, dense_layers=1,
        dense_ff=10944, rope_dims=64, latent=Latent(0, 512, 128, 64, 128), keys=DEEPSEEK_LITE_KEYS,
    ),
    "qwen3.5-35b-a3b": Shape(
        2048, 40, 512, 16, 2, 248320, 262144, 10000000.0, False, 256, "qwen35moe", 256, 8, shared_ff=512, rope_dims=64,
        recurrent=Recurrent(4, 16, 32, 128, 4), keys=QWEN35_KEYS,
    ),
    "qwen3.5-397b-a17b": Shape(
        4096, 60, 1024, 32, 2, 248320, 262144, 10000000.0, False, 256, "qwen35moe", 512, 10, shared_ff=1024, rope_dims=64,
        recurrent=Recurrent(4, 16, 64, 128, 4), keys=QWEN35_KEYS,
    ),
}  # fmt: skip
