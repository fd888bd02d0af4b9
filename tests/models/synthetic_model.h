// Small random Llama models as GGUF files. The models have features that the repository's model lacks: experts, tied
// embeddings, biases, frequency factors, RoPE scaling and odd head counts.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "models/arch/architecture.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/temporary.h"

namespace shoal::models {

struct SyntheticModel {
  Hparams h;
  DType dtype = DType::kF32;
  bool tied = false;
  bool biases = false;
  bool rope_factors = false;
  /// This function is called for each tensor before the tensor is written. The function may change the tensor. The
  /// function returns false to omit the tensor.
  std::function<bool(TensorSpec&)> edit = [](TensorSpec&) { return true; };
  /// This function writes additional keys, or replaces keys that are derived from `h`.
  std::function<void(test::GgufWriter&)> keys = [](test::GgufWriter&) {};
  std::vector<std::string> without_keys;

  SyntheticModel() {
    h.architecture = "llama";
    h.layers = 2, h.context = 64, h.embd = 64, h.ff = 96, h.heads = 4, h.kv_heads = 2;
    h.head_dim_k = h.head_dim_v = h.rope.dims = 16, h.vocab = 96, h.norm_eps = 1e-5f;
  }

  /// Writes the file and returns its path, which is unique to the running test.
  std::string write() const {
    test::GgufWriter writer;
    write_keys(writer);
    std::mt19937 random(1);
    for (TensorSpec& spec : find_architecture("llama", {}).tensors(h)) {
      if (!is_wanted(spec) || !edit(spec)) continue;
      writer.add_tensor(spec.name, spec.elementwise ? DType::kF32 : dtype, dims(spec), values(spec, random));
    }
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    std::string name = std::string(test->test_suite_name()) + "." + test->name() + ".gguf";
    for (char& c : name) c = c == '/' ? '_' : c;
    std::string path = test::temporary(name);
    writer.write(path);
    return path;
  }

 private:
  bool is_wanted(const TensorSpec& spec) const {
    if (spec.name == "output.weight") return !tied;
    if (spec.name == "rope_freqs.weight") return rope_factors;
    return !spec.optional || biases;
  }

  static std::vector<int64_t> dims(const TensorSpec& spec) {
    std::vector<int64_t> out(spec.shape.begin(), spec.shape.end());
    while (out.size() > 1 && out.back() == 1) out.pop_back();
    return out;
  }

  static std::vector<float> values(const TensorSpec& spec, std::mt19937& random) {
    int64_t count = spec.shape[0] * spec.shape[1] * spec.shape[2] * spec.shape[3];
    // Norms and factors are near 1. Other weights are small enough to keep activations near 1.
    bool near_one = spec.name.ends_with("norm.weight") || spec.name == "rope_freqs.weight";
    std::normal_distribution<float> draw(near_one ? 1.0f : 0.0f, near_one ? 0.1f : 0.2f);
    std::vector<float> out(count);
    for (float& value : out) value = draw(random);
    return out;
  }

  void write_keys(test::GgufWriter& writer) const {
    writer.add("general.architecture", h.architecture);
    auto add = [&](const std::string& name, auto value) {
      if (std::find(without_keys.begin(), without_keys.end(), name) == without_keys.end()) {
        writer.add(h.architecture + "." + name, value);
      }
    };
    add("block_count", static_cast<uint32_t>(h.layers));
    add("context_length", static_cast<uint32_t>(h.context));
    add("embedding_length", static_cast<uint32_t>(h.embd));
    const auto add_counts = [&](const std::string& name, int64_t LayerHparams::*count) {
      if (h.per_layer.empty()) return add(name, static_cast<uint32_t>(h.*count));
      std::vector<int32_t> all;
      for (const LayerHparams& layer : h.per_layer) all.push_back(static_cast<int32_t>(layer.*count));
      writer.add_array(h.architecture + "." + name, all);
    };
    add_counts("feed_forward_length", &LayerHparams::ff);
    add_counts("attention.head_count", &LayerHparams::heads);
    add_counts("attention.head_count_kv", &LayerHparams::kv_heads);
    add("attention.key_length", static_cast<uint32_t>(h.head_dim_k));
    add("attention.value_length", static_cast<uint32_t>(h.head_dim_v));
    add("attention.layer_norm_rms_epsilon", h.norm_eps);
    if (h.experts > 0) {
      add("expert_count", static_cast<uint32_t>(h.experts));
      add("expert_used_count", static_cast<uint32_t>(h.experts_used));
    }
    keys(writer);
  }
};

}  // namespace shoal::models
