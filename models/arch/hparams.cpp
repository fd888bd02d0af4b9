#include "models/arch/hparams.h"

#include <array>
#include <cmath>
#include <limits>
#include <string_view>

#include "base/error.h"
#include "models/gguf/cursor.h"

namespace shoal::models {
namespace {

// Counts are kept below 2^30 so that the product of any two of them fits into int64.
constexpr int64_t kLargest = int64_t{1} << 30;
constexpr int64_t kMostLayers = 65536;

/// Reads keys below one prefix and checks their ranges.
class Reader {
 public:
  Reader(const GgufFile& file, std::string prefix) : file_(file), prefix_(std::move(prefix)) {}

  std::string key(std::string_view name) const { return prefix_ + "." + std::string(name); }
  bool has(std::string_view name) const { return file_.has(key(name)); }

  int64_t count(std::string_view name, int64_t most = kLargest) const {
    int64_t value = file_.get_positive(key(name));
    within(name, value, most);
    return value;
  }
  int64_t count_or(std::string_view name, int64_t fallback) const { return has(name) ? count(name) : fallback; }

  /// Absent counts as 0, which means "none of these".
  int64_t count_or_zero(std::string_view name) const {
    return file_.get_or<uint32_t>(key(name), 0) == 0 ? 0 : count(name);
  }

  float positive(std::string_view name) const { return checked(name, file_.get<float>(key(name))); }
  float positive_or(std::string_view name, float fallback) const {
    return checked(name, file_.get_or<float>(key(name), fallback));
  }
  /// 0 is a number that files use for "none".
  float not_negative_or(std::string_view name, float fallback) const {
    const float value = file_.get_or<float>(key(name), fallback);
    need(std::isfinite(value) && value >= 0.0f, name, "should be a number from 0 on, found {}", value);
    return value;
  }
  std::string text_or(std::string_view name, std::string fallback) const {
    return file_.get_or<std::string>(key(name), std::move(fallback));
  }

  template <class... Args>
  void need(bool condition, std::string_view name, fmt::format_string<Args...> format, Args&&... args) const {
    if (condition) return;
    fail<InvalidArgument>("{}: key '{}' {}; convert the model again", file_.path(), printable(key(name)),
                          fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  void within(std::string_view name, int64_t value, int64_t most) const {
    need(value <= most, name, "is {}, more than the {} that can be right", value, most);
  }
  float checked(std::string_view name, float value) const {
    need(std::isfinite(value) && value > 0.0f, name, "should be a positive number, found {}", value);
    return value;
  }

  const GgufFile& file_;
  std::string prefix_;
};

void read_heads(const Reader& in, Hparams& h) {
  h.heads = in.count("attention.head_count");
  h.kv_heads = in.count_or("attention.head_count_kv", h.heads);
  in.need(h.heads % h.kv_heads == 0, "attention.head_count_kv", "is {}, which does not divide the {} heads", h.kv_heads,
          h.heads);
  bool explicit_length = in.has("attention.key_length") && in.has("attention.value_length");
  in.need(explicit_length || h.embd % h.heads == 0, "attention.head_count",
          "is {}, which does not divide the embedding length {}", h.heads, h.embd);
  h.head_dim_k = in.count_or("attention.key_length", h.embd / h.heads);
  h.head_dim_v = in.count_or("attention.value_length", h.embd / h.heads);
}

void scale_none(const Reader&, Hparams&) {}

/// Absent or 0: the positions stay as they are. Files from before the scaling keys have another name for the factor.
void scale_linear(const Reader& in, Hparams& h) {
  const bool has_factor = in.has("rope.scaling.factor");
  const float factor = in.not_negative_or(has_factor ? "rope.scaling.factor" : "rope.scale_linear", 0.0f);
  h.rope.freq_scale = factor == 0.0f ? 1.0f : 1.0f / factor;
}

void scale_yarn(const Reader& in, Hparams& h) {
  scale_linear(in, h);
  h.rope.ext_factor = in.not_negative_or("rope.scaling.yarn_ext_factor", 1.0f);
  h.rope.attn_factor *= in.positive_or("rope.scaling.yarn_attn_factor", 1.0f);
  h.rope.beta_fast = in.positive_or("rope.scaling.yarn_beta_fast", h.rope.beta_fast);
  h.rope.beta_slow = in.positive_or("rope.scaling.yarn_beta_slow", h.rope.beta_slow);
  const int64_t original = in.count_or_zero("rope.scaling.original_context_length");
  h.rope.original_context = original == 0 ? h.context : original;
}

struct RopeScaling {
  std::string_view name;
  void (*read)(const Reader& in, Hparams& h);
};
constexpr std::array<RopeScaling, 3> kRopeScalings{{
    {"none", scale_none},
    {"linear", scale_linear},
    {"yarn", scale_yarn},
}};

void read_rope(const Reader& in, Hparams& h) {
  h.rope.mode = RopeMode::kNeighbours;
  h.rope.base = in.positive_or("rope.freq_base", 10000.0f);
  h.rope.dims = in.count_or("rope.dimension_count", h.head_dim_k);
  in.need(h.rope.dims % 2 == 0 && h.rope.dims <= h.head_dim_k, "rope.dimension_count",
          "is {}; it must be even and at most the head's {}", h.rope.dims, h.head_dim_k);
  h.rope.attn_factor = in.positive_or("rope.scaling.attn_factor", 1.0f);
  // A factor counts without a type too, as it does for llama.cpp, which most files were made for.
  std::string kind = in.text_or("rope.scaling.type", "linear");
  for (const RopeScaling& scaling : kRopeScalings) {
    if (scaling.name == kind) return scaling.read(in, h);
  }
  in.need(false, "rope.scaling.type", "is '{}'; known are none, linear and yarn", printable(kind));
}

void read_experts(const Reader& in, Hparams& h) {
  h.experts = in.count_or_zero("expert_count");
  if (h.experts == 0) return;
  h.experts_used = in.count("expert_used_count");
  in.need(h.experts_used <= h.experts, "expert_used_count", "is {}, more than the {} experts", h.experts_used,
          h.experts);
}

int64_t read_vocab(const GgufFile& file, const Reader& in) {
  int64_t rows = file.tensor("token_embd.weight").shape[1];
  int64_t vocab = in.count_or("vocab_size", rows);
  in.need(vocab == rows, "vocab_size", "is {}, but token_embd.weight has {} rows", vocab, rows);
  in.need(vocab > 0 && vocab <= kLargest, "vocab_size", "is {}; it must be in 1..{}", vocab, kLargest);
  return vocab;
}

}  // namespace

Hparams read_hparams(const GgufFile& file) {
  Hparams h;
  h.architecture = file.get<std::string>("general.architecture");
  Reader in(file, h.architecture);
  h.layers = in.count("block_count", kMostLayers);
  h.context = in.count("context_length");
  h.embd = in.count("embedding_length");
  h.ff = in.count("feed_forward_length");
  h.norm_eps = in.positive("attention.layer_norm_rms_epsilon");
  read_heads(in, h);
  read_rope(in, h);
  read_experts(in, h);
  h.vocab = read_vocab(file, in);
  return h;
}

}  // namespace shoal::models
