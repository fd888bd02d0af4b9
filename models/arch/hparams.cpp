#include "models/arch/hparams.h"

#include <algorithm>
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

  /// Of each layer: the file has one number for all of them, or an array.
  std::vector<int64_t> counts(std::string_view name, int64_t layers) const {
    const GgufValue* value = file_.find_value(key(name));
    if (value == nullptr || value->type != GgufType::kArray) {
      return std::vector<int64_t>(static_cast<size_t>(layers), count(name));
    }
    const std::vector<int64_t> all =
        value->element == GgufType::kI32 ? widened<int32_t>(name) : widened<uint32_t>(name);
    need(static_cast<int64_t>(all.size()) == layers, name, "has {} numbers for {} layers", all.size(), layers);
    for (const int64_t one : all) {
      need(one > 0, name, "should be positive in every layer, found {}", one);
      within(name, one, kLargest);
    }
    return all;
  }

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
  template <class T>
  std::vector<int64_t> widened(std::string_view name) const {
    const std::vector<T> stored = file_.get_array<T>(key(name));
    return {stored.begin(), stored.end()};
  }
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

/// What all layers have alike, and the first layer's own.
void read_heads(const Reader& in, Hparams& h) {
  bool explicit_length = in.has("attention.key_length") && in.has("attention.value_length");
  in.need(explicit_length || h.embd % h.heads == 0, "attention.head_count",
          "is {}, which does not divide the embedding length {}", h.heads, h.embd);
  h.head_dim_k = in.count_or("attention.key_length", h.embd / h.heads);
  h.head_dim_v = in.count_or("attention.value_length", h.embd / h.heads);
  h.attention.scale = 1.0f / std::sqrt(static_cast<float>(h.head_dim_k));
}

/// Counts of each layer.
struct LayerCounts {
  std::vector<int64_t> ff, heads, kv_heads;
};

LayerCounts read_counts(const Reader& in, const Hparams& h) {
  LayerCounts counts;
  counts.ff = in.counts("feed_forward_length", h.layers);
  counts.heads = in.counts("attention.head_count", h.layers);
  const bool has_kv = in.has("attention.head_count_kv");
  counts.kv_heads = has_kv ? in.counts("attention.head_count_kv", h.layers) : counts.heads;
  for (size_t i = 0; i < counts.heads.size(); ++i) {
    in.need(counts.heads[i] % counts.kv_heads[i] == 0, "attention.head_count_kv",
            "is {}, which does not divide the {} heads", counts.kv_heads[i], counts.heads[i]);
  }
  return counts;
}

void set_counts(LayerHparams& layer, const LayerCounts& counts, size_t index) {
  layer.ff = counts.ff[index], layer.heads = counts.heads[index], layer.kv_heads = counts.kv_heads[index];
}

/// With everything else read: the layers, if they differ.
void set_layers(Hparams& h, const LayerCounts& counts) {
  const auto alike = [](const std::vector<int64_t>& all) {
    return std::equal(all.begin() + 1, all.end(), all.begin());
  };
  if (alike(counts.ff) && alike(counts.heads) && alike(counts.kv_heads)) return;
  h.per_layer.assign(counts.ff.size(), h);
  for (size_t i = 0; i < h.per_layer.size(); ++i) set_counts(h.per_layer[i], counts, i);
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

void read_rope(const Reader& in, RopeMode mode, Hparams& h) {
  h.rope.mode = mode;
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

Hparams read_hparams(const GgufFile& file, RopeMode rope) {
  Hparams h;
  h.architecture = file.get<std::string>("general.architecture");
  Reader in(file, h.architecture);
  h.layers = in.count("block_count", kMostLayers);
  h.context = in.count("context_length");
  h.embd = in.count("embedding_length");
  const LayerCounts counts = read_counts(in, h);
  set_counts(h, counts, 0);
  h.norm_eps = in.positive("attention.layer_norm_rms_epsilon");
  read_heads(in, h);
  read_rope(in, rope, h);
  read_experts(in, h);
  h.vocab = read_vocab(file, in);
  set_layers(h, counts);
  return h;
}

}  // namespace shoal::models
