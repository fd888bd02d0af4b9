// Sparse GGUF files of Llama models without weights, for plans and predictions only. The models may have any size.
// scripts/make_model.py --sparse writes such files.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>

#include "models/arch/architecture.h"
#include "tests/support/gguf_writer.h"

namespace shoal::models {

/// Returns the dtype of a matrix. `part` is the tensor name without "blk.N." and ".weight". `layer` is -1 if the matrix
/// belongs to no layer. `layers` is the number of layers.
using DTypeOf = std::function<DType(const std::string& part, int64_t layer, int64_t layers)>;

/// Dtypes that llama.cpp's quantiser selects for Q4_K_M files of Llama models.
inline DType q4_k_m(const std::string& part, int64_t layer, int64_t layers) {
  if (part == "output") return DType::kQ6_K;
  if (part != "attn_v" && part != "ffn_down") return DType::kQ4_K;
  const int64_t eighth = layers / 8;
  if (layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2) return DType::kQ6_K;
  return part == "attn_v" && layers == 80 ? DType::kQ5_K : DType::kQ4_K;
}
inline DTypeOf q4_0() {
  return [](const std::string& part, int64_t, int64_t) { return part == "output" ? DType::kQ6_K : DType::kQ4_0; };
}
inline DTypeOf all_of(DType dtype) {
  return [dtype](const std::string&, int64_t, int64_t) { return dtype; };
}

struct HollowModel {
  Hparams h;
  DTypeOf dtype = q4_k_m;

  HollowModel(int64_t layers, int64_t embd, int64_t ff, int64_t heads, int64_t kv_heads, int64_t vocab) {
    h.architecture = "llama";
    h.layers = layers, h.context = 8192, h.embd = embd, h.ff = ff, h.heads = heads, h.kv_heads = kv_heads;
    h.head_dim_k = h.head_dim_v = h.rope.dims = embd / heads, h.vocab = vocab, h.norm_eps = 1e-5f;
  }

  /// Writes the file; the caller removes it.
  void write(const std::string& path) const {
    test::GgufWriter writer;
    write_keys(writer);
    uint64_t end = 0;
    for (const TensorSpec& spec : find_architecture("llama", {}).tensors(h)) {
      if (spec.optional && spec.name != "output.weight") continue;
      const DType kind = spec.elementwise ? DType::kF32 : dtype(part_of(spec.name), spec.layer, h.layers);
      test::GgufTensorSpec tensor{spec.name, traits(kind).gguf_type, {}, {}, {}, end};
      int64_t elements = 1;
      for (const int64_t length : spec.shape) elements *= length;
      tensor.dims.assign(spec.shape.begin(), spec.shape.begin() + (spec.elementwise ? 1 : 2));
      if (spec.shape[2] > 1) tensor.dims.push_back(spec.shape[2]);
      writer.add_tensor(tensor);
      end += (bytes_for(kind, elements) + writer.alignment - 1) / writer.alignment * writer.alignment;
    }
    const test::Bytes header = writer.image();
    test::write_file(path, header);
    std::filesystem::resize_file(path, header.size() + end);
  }

 private:
  static std::string part_of(std::string name) {
    if (name.starts_with("blk.")) name = name.substr(name.find('.', 4) + 1);
    return name.substr(0, name.rfind('.'));
  }
  void write_keys(test::GgufWriter& writer) const {
    writer.add("general.architecture", h.architecture);
    const auto add = [&](const std::string& name, auto value) { writer.add("llama." + name, value); };
    add("block_count", static_cast<uint32_t>(h.layers));
    add("context_length", static_cast<uint32_t>(h.context));
    add("embedding_length", static_cast<uint32_t>(h.embd));
    add("feed_forward_length", static_cast<uint32_t>(h.ff));
    add("attention.head_count", static_cast<uint32_t>(h.heads));
    add("attention.head_count_kv", static_cast<uint32_t>(h.kv_heads));
    add("attention.layer_norm_rms_epsilon", h.norm_eps);
    if (h.experts == 0) return;
    add("expert_count", static_cast<uint32_t>(h.experts));
    add("expert_used_count", static_cast<uint32_t>(h.experts_used));
  }
};

}  // namespace shoal::models
