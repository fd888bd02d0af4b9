#include "models/arch/hparams.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "models/arch/hparams_reader.h"

namespace shoal::models {

float yarn_magnitude(const RopeParams& rope) {
  return rope.ext_factor == 0.0f ? 1.0f : 1.0f - 0.1f * std::log(rope.freq_scale);
}

namespace {

constexpr std::array<std::string_view, 4> kGroups{"attention.", "rope.", "expert_", "ssm."};

/// These keys have no effect in architectures that do not read them.
constexpr auto kHarmless = std::to_array<std::string_view>({
    "expert_weights_norm",      // architectures that do not read this key normalise even if the value is "false"
    "expert_group_used_count",  // has no effect if there is only one group
    "rope.dimension_sections",  // axes of image positions; the position of a text token is the same on all axes
    "rope.scaling.finetuned",   // describes the training
    // Other names for rope.dimension_sections.
    "rope.mrope_interleaved",
    "rope.mrope_section",
    // Head lengths and RoPE settings of layers with windows. If an architecture does not read these keys, its layers
    // with and without windows use the same settings. Programs that save GGUF files write these keys for all models.
    "attention.key_length_swa",
    "attention.value_length_swa",
    "rope.dimension_count_swa",
    "rope.freq_base_swa",
    // Keys of other architectures. Programs that save GGUF files write these keys for all models.
    "attention.indexer.kpool_select_tail",
    "attention.recurrent_layers",
    "attention.rope_pattern",
    "expert_group_scale",
    // Parameters of RoPE scaling. A scaling type does not read the parameters of other scaling types.
    "rope.scale_linear",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_log_multiplier",
});

/// Whether rope.type is "default" or "mrope". These values do not scale positions. In some files, rope.type names a
/// scaling of positions ("yarn") instead.
bool is_unscaled(const GgufFile& file, const GgufValue& value) {
  if (value.type != GgufType::kString) return false;
  const auto type = file.get<std::string>(value.key);
  return type == "default" || type == "mrope";
}

bool is_zero(const GgufValue& value) {
  if (value.element == GgufType::kString) return false;
  const size_t bytes = value.count * size_of(value.element);
  return std::all_of(value.data, value.data + bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

}  // namespace

bool HparamsReader::is_set(std::string_view name) const {
  const GgufValue* value = file_.find_value(key(name));
  return value != nullptr && !is_zero(*value);
}

std::vector<bool> HparamsReader::pattern_or(std::string_view name, int64_t layers, int64_t fallback) const {
  const GgufValue* value = file_.find_value(key(name));
  if (value != nullptr && value->type == GgufType::kArray) {
    std::vector<bool> each;
    if (value->element == GgufType::kU32 || value->element == GgufType::kI32) {
      for (const int64_t number : numbers(name, *value)) each.push_back(number != 0);
    } else {
      each = file_.get_array<bool>(key(name));
    }
    need_layers(name, each.size(), layers);
    return each;
  }
  const int64_t period = count_or_zero_or(name, fallback);
  std::vector<bool> each(static_cast<size_t>(layers));
  for (size_t i = 0; period > 0 && i < each.size(); ++i) each[i] = static_cast<int64_t>(i) % period < period - 1;
  return each;
}

std::vector<std::string> HparamsReader::unread_keys() const {
  std::vector<std::string> keys;
  const std::string prefix = prefix_ + ".";
  for (const GgufValue& value : file_.values()) {
    if (!value.key.starts_with(prefix)) continue;
    const std::string_view name = value.key.substr(prefix.size());
    const bool counts =
        std::any_of(kGroups.begin(), kGroups.end(), [&](auto group) { return name.starts_with(group); });
    const bool harmless = std::find(kHarmless.begin(), kHarmless.end(), name) != kHarmless.end() ||
                          (name == "rope.type" && is_unscaled(file_, value));
    if (counts && !harmless && !asked_.contains(name) && !is_zero(value)) keys.emplace_back(value.key);
  }
  return keys;
}

namespace {

constexpr int64_t kMostLayers = 65536;
constexpr std::string_view kRmsEpsilon = "attention.layer_norm_rms_epsilon", kEpsilon = "attention.layer_norm_epsilon";

/// Reads the head lengths and the attention scale. All layers share these values unless the architecture changes them.
void read_heads(const HparamsReader& in, Hparams& h) {
  bool explicit_length = in.has("attention.key_length") && in.has("attention.value_length");
  in.need(explicit_length || h.embd % h.heads == 0, "attention.head_count",
          "is {}, which does not divide the embedding length {}", h.heads, h.embd);
  h.head_dim_k = in.count_or("attention.key_length", h.embd / h.heads);
  h.head_dim_v = in.count_or("attention.value_length", h.embd / h.heads);
  const float scale = in.not_negative_or("attention.scale", 0.0f);
  h.attention.scale = scale > 0.0f ? scale : 1.0f / std::sqrt(static_cast<float>(h.head_dim_k));
}

/// Counts that may differ between layers, with one entry per layer.
struct LayerCounts {
  std::vector<int64_t> ff, heads, kv_heads;
};

LayerCounts read_counts(const HparamsReader& in, const Hparams& h) {
  LayerCounts counts;
  const bool has_ff = in.is_set("feed_forward_length") || !in.is_set("expert_feed_forward_length");
  counts.ff = in.counts(has_ff ? "feed_forward_length" : "expert_feed_forward_length", h.layers);
  counts.heads = in.counts("attention.head_count", h.layers);
  const bool has_kv = in.has("attention.head_count_kv");
  counts.kv_heads = has_kv ? in.counts("attention.head_count_kv", h.layers, 0) : counts.heads;
  return counts;
}

/// Only attention layers need KV heads.
void check_kv_heads(const HparamsReader& in, const Hparams& h) {
  for (const LayerHparams& layer : h.per_layer) {
    in.need(!layer.attends() || (layer.kv_heads > 0 && layer.heads % layer.kv_heads == 0), "attention.head_count_kv",
            "is {}, which does not divide the {} heads", layer.kv_heads, layer.heads);
  }
}

void set_counts(LayerHparams& layer, const LayerCounts& counts, size_t index) {
  layer.ff = counts.ff[index], layer.heads = counts.heads[index], layer.kv_heads = counts.kv_heads[index];
}

std::vector<LayerHparams> layers_of(const Hparams& h, const LayerCounts& counts) {
  std::vector<LayerHparams> layers(static_cast<size_t>(h.layers), h);
  for (size_t i = 0; i < layers.size(); ++i) set_counts(layers[i], counts, i);
  return layers;
}

void scale_none(const HparamsReader&, Hparams&) {}

/// Reads the original context of the scaling type longrope. The factors of longrope are tensors
/// (Decoder::rope_factors).
void scale_by_factors(const HparamsReader& in, Hparams& h) {
  h.rope.original_context = in.count_or_zero("rope.scaling.original_context_length");
}

/// If the factor is absent or 0, positions are not scaled. Older files store the factor as rope.scale_linear.
void scale_linear(const HparamsReader& in, Hparams& h) {
  const float factor = in.not_negative_or("rope.scaling.factor", in.not_negative_or("rope.scale_linear", 0.0f));
  h.rope.freq_scale = factor == 0.0f ? 1.0f : 1.0f / factor;
}

}  // namespace

void scale_yarn(const HparamsReader& in, Hparams& h) {
  scale_linear(in, h);
  h.rope.ext_factor = in.set_or("rope.scaling.yarn_ext_factor", 1.0f);
  h.rope.beta_fast = in.positive_or("rope.scaling.yarn_beta_fast", h.rope.beta_fast);
  h.rope.beta_slow = in.positive_or("rope.scaling.yarn_beta_slow", h.rope.beta_slow);
  // Programs that save GGUF files write 1 if the model has no magnitude.
  const float magnitude = in.positive_or("rope.scaling.yarn_attn_factor", 1.0f);
  if (magnitude != 1.0f) {
    h.rope.attn_factor *= magnitude / yarn_magnitude(h.rope);
  } else {
    // Divides attn_factor by the magnitude that results from yarn_log_multiplier.
    const float without = in.not_negative_or("rope.scaling.yarn_log_multiplier", 0.0f);
    h.rope.attn_factor /= 1.0f + 0.1f * without * std::log(1.0f / h.rope.freq_scale);
  }
  const int64_t original = in.count_or_zero("rope.scaling.original_context_length");
  h.rope.original_context = original == 0 ? h.context : original;
}

namespace {

struct RopeScaling {
  std::string_view name;
  void (*read)(const HparamsReader& in, Hparams& h);
};
constexpr std::array<RopeScaling, 4> kRopeScalings{{
    {"none", scale_none},
    {"linear", scale_linear},
    {"yarn", scale_yarn},
    {"longrope", scale_by_factors},
}};

void read_rope(const HparamsReader& in, RopeMode mode, Hparams& h) {
  h.rope.mode = mode;
  h.rope.base = in.positive_or("rope.freq_base", 10000.0f);
  h.rope.dims = in.count_or("rope.dimension_count", h.head_dim_k);
  in.need(h.rope.dims % 2 == 0 && h.rope.dims <= h.head_dim_k, "rope.dimension_count",
          "is {}; it must be even and at most {}, the length of a head", h.rope.dims, h.head_dim_k);
  h.rope.attn_factor = in.positive_or("rope.scaling.attn_factor", 1.0f);
  // If a file has a factor but no scaling type, the scaling is linear, as in llama.cpp.
  std::string kind = in.text_or("rope.scaling.type", "linear");
  for (const RopeScaling& scaling : kRopeScalings) {
    if (scaling.name == kind) return scaling.read(in, h);
  }
  in.need(false, "rope.scaling.type", "is '{}'; the supported values are none, linear, yarn and longrope",
          printable(kind));
}

Gating read_gating(const HparamsReader& in) {
  const int64_t number = in.count_or_zero("expert_gating_func");
  in.need(number <= static_cast<int64_t>(Gating::kSqrtSoftplus), "expert_gating_func",
          "is {}; expected 1 (soft_max), 2 (sigmoid), 3 (soft_max of chosen experts) or 4 (root of softplus)", number);
  return number == 0 ? Gating::kSoftMax : static_cast<Gating>(number);
}

void read_groups(const HparamsReader& in, Hparams& h) {
  Routing& routing = h.routing;
  routing.groups = std::max<int64_t>(1, in.count_or_zero("expert_group_count"));
  if (routing.groups == 1) return;
  in.need(h.experts % routing.groups == 0 && h.experts / routing.groups >= 2, "expert_group_count",
          "is {}, which does not divide {} experts into groups of two or more", routing.groups, h.experts);
  routing.groups_used = in.count("expert_group_used_count");
  const int64_t room = routing.groups_used * (h.experts / routing.groups);
  in.need(routing.groups_used <= routing.groups && h.experts_used <= room, "expert_group_used_count",
          "is {}; the largest value is {}, and the used groups must contain at least {} of {} experts",
          routing.groups_used, routing.groups, h.experts_used, h.experts);
}

void read_experts(const HparamsReader& in, Hparams& h) {
  h.experts = in.count_or_zero("expert_count");
  if (h.experts == 0) return;
  h.experts_used = in.count("expert_used_count");
  in.need(h.experts_used <= h.experts, "expert_used_count", "is {}, but the model has {} experts", h.experts_used,
          h.experts);
  read_groups(in, h);
  h.routing.gating = read_gating(in);
  h.routing.scale = in.factor("expert_weights_scale");
}

/// Number of layers without the draft layers (multi-token prediction). Draft layers are the last layers of the file.
int64_t read_layers(const HparamsReader& in) {
  const int64_t all = in.count("block_count", kMostLayers), drafts = in.count_or_zero("nextn_predict_layers");
  in.need(drafts < all, "nextn_predict_layers", "is {}, but the model has {} layers in total", drafts, all);
  return all - drafts;
}

/// Reads the epsilon of norms. Returns 0 if the file has no epsilon. Some architectures then set a default.
float read_epsilon(const HparamsReader& in) {
  const bool has_rms = in.is_set(kRmsEpsilon), has_other = in.is_set(kEpsilon);
  const std::string_view name = has_rms || !has_other ? kRmsEpsilon : kEpsilon;
  return in.has(name) ? in.positive(name) : 0.0f;
}

void check_causal(const GgufFile& file, const HparamsReader& in) {
  require<InvalidArgument>(in.flag_or("attention.causal", true),
                           "{}: key '{}' is false: embedding models are not supported; use a model that generates "
                           "text",
                           file.path(), printable(in.key("attention.causal")));
}

int64_t read_vocab(const GgufFile& file, const HparamsReader& in) {
  int64_t rows = file.tensor("token_embd.weight").shape[1];
  int64_t vocab = in.set_count_or("vocab_size", rows);
  in.need(vocab == rows, "vocab_size", "is {}, but token_embd.weight has {} rows", vocab, rows);
  in.need(vocab > 0 && vocab <= HparamsReader::kLargest, "vocab_size", "is {}; it must be in 1..{}", vocab,
          HparamsReader::kLargest);
  return vocab;
}

}  // namespace

Hparams read_hparams(const GgufFile& file, RopeMode rope, ReadHparams read_more) {
  Hparams h;
  h.architecture = file.get<std::string>("general.architecture");
  HparamsReader in(file, h.architecture);
  check_causal(file, in);
  h.layers = read_layers(in);
  h.context = in.count("context_length");
  h.embd = in.count("embedding_length");
  const LayerCounts counts = read_counts(in, h);
  set_counts(h, counts, 0);
  h.norm_eps = read_epsilon(in);
  read_heads(in, h);
  read_rope(in, rope, h);
  read_experts(in, h);
  h.vocab = read_vocab(file, in);
  h.per_layer = layers_of(h, counts);
  if (read_more != nullptr) read_more(in, h);
  in.need(h.norm_eps > 0.0f, kRmsEpsilon, "is missing");
  check_kv_heads(in, h);
  h.unread_keys = in.unread_keys();
  // If all layers are equal, per_layer becomes empty.
  static_cast<LayerHparams&>(h) = h.per_layer.front();
  if (std::equal(h.per_layer.begin() + 1, h.per_layer.end(), h.per_layer.begin())) h.per_layer.clear();
  return h;
}

void read_windows(const HparamsReader& in, Hparams& h, int64_t window, int64_t period) {
  window = in.count_or_zero_or("attention.sliding_window", window);
  const std::vector<bool> windowed = in.pattern_or("attention.sliding_window_pattern", h.layers, period);
  for (size_t i = 0; i < h.per_layer.size(); ++i) h.per_layer[i].attention.window = windowed[i] ? window : 0;
}

void read_temperature(const HparamsReader& in, Hparams& h) {
  const int64_t original = h.rope.original_context != 0 ? h.rope.original_context : h.context;
  h.temperature.scale = in.not_negative_or("attention.temperature_scale", 0.0f);
  h.temperature.context = in.set_count_or("attention.temperature_length", original);
}

void read_expert_width(const HparamsReader& in, Hparams& h) {
  in.need(h.experts > 0, "expert_count", "is missing or 0 in a model with experts");
  for (LayerHparams& layer : h.per_layer) {
    layer.ff = in.set_count_or("expert_feed_forward_length", std::max<int64_t>(1, layer.ff / h.experts_used));
  }
}

void read_leading_dense(const HparamsReader& in, Hparams& h) {
  const int64_t dense = std::min(in.count_or_zero("leading_dense_block_count"), h.layers);
  if (dense == 0) return;
  const std::vector<int64_t> ff = in.counts("feed_forward_length", h.layers);
  for (size_t i = 0; i < static_cast<size_t>(dense); ++i) {
    h.per_layer[i].experts = h.per_layer[i].shared_ff = 0;
    h.per_layer[i].ff = ff[i];
  }
}

}  // namespace shoal::models
