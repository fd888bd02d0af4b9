// An independent implementation of Llama, slow and simple. One forward pass in float64 follows the definition directly.
// The pass uses the dequantised weights of a model file, but no cache, graph or device. If the weights
// are quantised, it rounds columns to 8 bits like CPU devices.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "models/arch/model.h"

namespace shoal::models {

class PlainLlama {
 public:
  explicit PlainLlama(const Model& model) : model_(model), h_(model.hparams) {}

  using Row = std::vector<double>;

  /// Logits of the last token.
  Row logits(const std::vector<int32_t>& tokens) const {
    std::vector<Row> x;
    for (int32_t token : tokens) x.push_back(row("token_embd.weight", token));
    for (int64_t layer = 0; layer < h_.layers; ++layer) {
      std::string prefix = "blk." + std::to_string(layer) + ".";
      attention(prefix, h_.layer(layer), x);
      for (Row& r : x) {
        Row normed = norm(r, prefix + "ffn_norm.weight");
        add(r, h_.experts == 0 ? ffn(prefix + "ffn_gate", prefix + "ffn_up", prefix + "ffn_down", 0, normed)
                               : experts(prefix, normed));
      }
    }
    bool tied = model_.file.find_tensor("output.weight") == nullptr;
    return times(tied ? "token_embd.weight" : "output.weight", norm(x.back(), "output_norm.weight"));
  }

 private:
  const std::vector<float>& values(const std::string& name) const {
    std::vector<float>& cached = cache_[name];
    const GgufTensor& tensor = model_.file.tensor(name);
    if (cached.empty()) {
      int64_t n = tensor.shape[0] * tensor.shape[1] * tensor.shape[2];
      cached.resize(n);
      traits(tensor.dtype).to_f32(tensor.data, cached.data(), n);
    }
    return cached;
  }
  bool has(const std::string& name) const { return model_.file.find_tensor(name) != nullptr; }

  Row row(const std::string& name, int64_t index) const {
    const std::vector<float>& all = values(name);
    int64_t width = model_.file.tensor(name).shape[0];
    return Row(all.begin() + index * width, all.begin() + (index + 1) * width);
  }

  /// Rounds each 32 elements to multiples of 1/127 of their largest magnitude.
  static Row rounded(Row x) {
    for (size_t begin = 0; begin < x.size(); begin += 32) {
      const auto end = std::min(begin + 32, x.size());
      double largest = 0;
      for (size_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(x[i]));
      for (size_t i = begin; i < end && largest > 0; ++i) x[i] = std::nearbyint(x[i] / largest * 127) * largest / 127;
    }
    return x;
  }

  /// Product of a column and matrix `index` of the tensor. For experts, `index` is the expert.
  Row times(const std::string& name, const Row& column, int64_t index = 0) const {
    const std::vector<float>& w = values(name);
    const Row x = traits(model_.file.tensor(name).dtype).is_quantized ? rounded(column) : column;
    int64_t k = model_.file.tensor(name).shape[0], m = model_.file.tensor(name).shape[1];
    Row out(m);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < k; ++j) out[i] += w[(index * m + i) * k + j] * x[j];
    }
    return out;
  }

  Row linear(const std::string& name, const Row& x, int64_t index = 0) const {
    Row out = times(name + ".weight", x, index);
    if (has(name + ".bias")) add(out, row(name + ".bias", index));
    return out;
  }

  static void add(Row& a, const Row& b) {
    for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  }

  Row norm(const Row& x, const std::string& weight) const {
    double squares = std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
    double scale = 1.0 / std::sqrt(squares / static_cast<double>(x.size()) + h_.norm_eps);
    Row out = row(weight, 0);
    for (size_t i = 0; i < x.size(); ++i) out[i] *= x[i] * scale;
    return out;
  }

  static void soft_max(Row& x) {
    double most = *std::max_element(x.begin(), x.end()), total = 0.0;
    for (double& v : x) total += v = std::exp(v - most);
    for (double& v : x) v /= total;
  }

  double number(const std::string& name, double fallback) const {
    return model_.file.get_or<float>("llama.rope." + name, static_cast<float>(fallback));
  }

  /// Angle in radians by which a pair rotates from one position to the next, before any scaling.
  double turn(int64_t pair) const {
    return std::pow(number("freq_base", 1e4), -2.0 * static_cast<double>(pair) / static_cast<double>(h_.rope.dims));
  }

  /// YaRN weight of the scaled position in the rotation angle of a pair. The weight is 0 for pairs that rotate often
  /// within the training context, and 1 for pairs that hardly rotate. Between these pairs, the weight is linear.
  double stretched(int64_t pair) const {
    double context = model_.file.get_or<uint32_t>("llama.rope.scaling.original_context_length", h_.context);
    auto turns = [&](int64_t of) { return context * turn(of) / (2.0 * std::acos(-1.0)); };
    int64_t fast = 0, slow = 0, last = h_.rope.dims - 1;
    while (fast < last && turns(fast + 1) >= number("scaling.yarn_beta_fast", 32.0)) ++fast;
    while (slow < last && turns(slow) > number("scaling.yarn_beta_slow", 1.0)) ++slow;
    double width = slow > fast ? static_cast<double>(slow - fast) : 1e-3;
    return std::min(1.0, std::max(0.0, static_cast<double>(pair - fast) / width));
  }

  /// Rotates pairs of neighbouring elements. The file's scaling factor divides positions. With YaRN, stretched() gives
  /// the weight of the divided position, and the rotated vectors also get longer.
  void rotate(Row& heads, int64_t dim, size_t position) const {
    bool yarn = model_.file.get_or<std::string>("llama.rope.scaling.type", "") == "yarn";
    double factor = number("scaling.factor", 1.0);
    double length = number("scaling.attn_factor", 1.0) * (yarn ? 0.1 * std::log(factor) + 1.0 : 1.0);
    for (int64_t i = 0; i < h_.rope.dims / 2; ++i) {
      double weight = yarn ? stretched(i) : 1.0;
      double angle = static_cast<double>(position) * turn(i) * (weight / factor + 1.0 - weight);
      if (has("rope_freqs.weight")) angle /= values("rope_freqs.weight")[i];
      for (size_t head = 0; head < heads.size(); head += dim) {
        double &a = heads[head + 2 * i], &b = heads[head + 2 * i + 1];
        double rotated = a * std::cos(angle) - b * std::sin(angle);
        b = (a * std::sin(angle) + b * std::cos(angle)) * length;
        a = rotated * length;
      }
    }
  }

  void attention(const std::string& prefix, const LayerHparams& h, std::vector<Row>& x) const {
    std::vector<Row> keys, rows;
    for (size_t t = 0; t < x.size(); ++t) {
      Row normed = norm(x[t], prefix + "attn_norm.weight");
      Row q = linear(prefix + "attn_q", normed), k = linear(prefix + "attn_k", normed);
      rotate(q, h.head_dim_k, t);
      rotate(k, h.head_dim_k, t);
      keys.push_back(std::move(k));
      rows.push_back(linear(prefix + "attn_v", normed));
      add(x[t], linear(prefix + "attn_output", attend(h, q, keys, rows)));
    }
  }

  Row attend(const LayerHparams& h, const Row& q, const std::vector<Row>& keys, const std::vector<Row>& rows) const {
    Row out(h.heads * h.head_dim_v);
    for (int64_t head = 0; head < h.heads; ++head) {
      int64_t kv = head / h.group();
      Row weights(keys.size());
      for (size_t s = 0; s < keys.size(); ++s) {
        for (int64_t i = 0; i < h.head_dim_k; ++i) {
          weights[s] += q[head * h.head_dim_k + i] * keys[s][kv * h.head_dim_k + i];
        }
        weights[s] /= std::sqrt(static_cast<double>(h.head_dim_k));
      }
      soft_max(weights);
      for (size_t s = 0; s < rows.size(); ++s) {
        for (int64_t i = 0; i < h.head_dim_v; ++i) {
          out[head * h.head_dim_v + i] += weights[s] * rows[s][kv * h.head_dim_v + i];
        }
      }
    }
    return out;
  }

  Row ffn(const std::string& gate, const std::string& up, const std::string& down, int64_t index, const Row& x) const {
    Row hidden = linear(gate, x, index), other = linear(up, x, index);
    for (size_t i = 0; i < hidden.size(); ++i) hidden[i] = hidden[i] / (1.0 + std::exp(-hidden[i])) * other[i];
    return linear(down, hidden, index);
  }

  /// Applies the gating function to a router's logits.
  void gate(Row& logits) const {
    const Gating gating = h_.routing.gating;
    if (gating == Gating::kSoftMax) soft_max(logits);
    for (double& value : logits) {
      if (gating == Gating::kSigmoid) value = 1 / (1 + std::exp(-value));
      if (gating == Gating::kSqrtSoftplus) value = std::sqrt(std::log1p(std::exp(value)));
    }
  }

  Row experts(const std::string& prefix, const Row& x) const {
    Row all = times(prefix + "ffn_gate_inp.weight", x);
    gate(all);
    std::vector<int64_t> order(all.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return all[a] > all[b]; });
    order.resize(h_.experts_used);
    Row weights;
    for (int64_t expert : order) weights.push_back(all[expert]);
    if (h_.routing.gating == Gating::kSoftMaxOfChosen) soft_max(weights);
    const double total = h_.routing.normalised ? std::accumulate(weights.begin(), weights.end(), 0.0) : 1;
    Row out(h_.embd);
    for (size_t i = 0; i < order.size(); ++i) {
      Row each = ffn(prefix + "ffn_gate_exps", prefix + "ffn_up_exps", prefix + "ffn_down_exps", order[i], x);
      for (double& value : each) value *= weights[i] / total * h_.routing.scale;
      add(out, each);
    }
    return out;
  }

  const Model& model_;
  const Hparams& h_;
  mutable std::map<std::string, std::vector<float>> cache_;
};

}  // namespace shoal::models
