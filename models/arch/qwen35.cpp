// Qwen 3.5, Qwen 3.6 and Qwen3-Next: three of every four layers are recurrent (gated delta rule). Every fourth layer is
// an attention layer with gated heads, and RoPE rotates a part of each head. Models with experts have a shared expert
// with its own gate.
#include "models/arch/decoder.h"
#include "models/arch/hparams_reader.h"

namespace shoal::models {

void qwen35(Decoder& d) {
  const auto attend = [](Layer& l, Tensor* x) {
    Tensor* gates = nullptr;
    const Qkv heads = l.qkv_and_gates(x, gates);
    const auto [q, k, v] = l.apply_rope(l.norm_each_head(heads));
    return l.project(l.gate(l.attention(q, k, v), gates));
  };
  const Blocks blocks{{.shared_gate = true}, "post_attention_norm"};
  Tensor* x = d.usual_layers(d.embed(), blocks, [&](Layer& l, Tensor* normed) {
    return l.hparams().attends() ? attend(l, normed) : l.delta_net(normed);
  });
  d.head(d.rms_norm(d.wanted_rows(x), "output_norm", "out_norm"));
}

namespace {

/// Returns one flag per layer: true for a recurrent layer. The file stores an array of flags, or a period. The last
/// layer of each period is an attention layer.
std::vector<bool> recurrent_layers(const HparamsReader& in, const Hparams& h) {
  constexpr std::string_view kEach = "attention.recurrent_layers";
  if (in.has(kEach)) return in.pattern_or(kEach, h.layers, 0);
  const int64_t period = in.set_count_or("full_attention_interval", 4);
  std::vector<bool> each;
  for (int64_t i = 0; i < h.layers; ++i) each.push_back((i + 1) % period != 0);
  return each;
}

void read_delta_net(const HparamsReader& in, Hparams& h, bool tiled) {
  RecurrentHparams r{in.count("ssm.conv_kernel", kMostTaps), in.count("ssm.group_count"),
                     in.count("ssm.time_step_rank"), in.count("ssm.state_size"), tiled};
  in.need(r.taps >= 2, "ssm.conv_kernel", "is {}; a convolution has 2 taps or more", r.taps);
  in.need(r.v_heads % r.k_heads == 0, "ssm.time_step_rank", "is {}, not a multiple of the {} key heads", r.v_heads,
          r.k_heads);
  const int64_t inner = in.count("ssm.inner_size");
  in.need(inner == r.v_heads * r.head_dim, "ssm.inner_size", "is {}, but the model has {} heads with {} elements each",
          inner, r.v_heads, r.head_dim);
  const bool reordered = in.flag_or("ssm.v_head_reordered", tiled);
  in.need(reordered == tiled, "ssm.v_head_reordered", "is {}; it should be {}", reordered, tiled);
  const std::vector<bool> recurrent = recurrent_layers(in, h);
  // The array may also have entries for draft layers. These entries are ignored.
  for (size_t i = 0; i < h.per_layer.size(); ++i) {
    if (recurrent[i]) h.per_layer[i].recurrent = r;
  }
}

void read_more(const HparamsReader& in, Hparams& h, bool tiled) {
  read_delta_net(in, h, tiled);
  if (h.experts == 0) return;
  read_expert_width(in, h);
  for (LayerHparams& layer : h.per_layer) {
    layer.shared_ff = in.set_count_or("expert_shared_feed_forward_length", layer.ff);
  }
}

}  // namespace

void read_qwen35(const HparamsReader& in, Hparams& h) {
  read_more(in, h, true);
}

void read_qwen3next(const HparamsReader& in, Hparams& h) {
  read_more(in, h, false);
}

}  // namespace shoal::models
