#include "tests/support/reference.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numbers>
#include <numeric>
#include <span>

#include "base/error.h"
#include "tests/support/reference_arrays.h"

namespace shoal::test {
namespace {

using namespace reference;

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

double dot(std::span<const double> a, std::span<const double> b) {
  check(a.size() == b.size(), "a row of {} values times one of {}", a.size(), b.size());
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

using Eval = Array (*)(const Tensor& node, const Sources& src);

int64_t local_row(const SelectParams& select, int64_t rows, int64_t global) {
  if (select.ranges.empty()) return global >= 0 && global < rows ? global : -1;
  int64_t local = 0;
  for (const IndexRange& range : select.ranges) {
    for (int64_t i = 0; i < range.length; ++i, ++local) {
      if (range.begin + i == global) return local;
    }
  }
  return -1;
}

Array get_rows(const Tensor& node, const Sources& src) {
  const Array &table = *src[0], &ids = *src[1];
  return tabulate(node.shape, [&](const Index& i) {
    const auto id = static_cast<int64_t>(ids[{i[1], i[2], i[3], 0}]);
    const int64_t row = local_row(params<SelectParams>(node), table.shape[1], id);
    return row < 0 ? 0.0 : table[with(i, 1, row)];
  });
}

Array set_rows(const Tensor& node, const Sources& src) {
  Array cache = *src[0];
  const Array& ids = *src[2];
  for_each(src[1]->shape, [&](const Index& i) {
    const int64_t own2 = ids.shape[1] == 1 ? 0 : i[2], own3 = ids.shape[2] == 1 ? 0 : i[3];
    const auto id = static_cast<int64_t>(ids[{i[1], own2, own3, 0}]);
    const int64_t row = local_row(params<SelectParams>(node), cache.shape[1], id);
    if (row >= 0) cache[with(i, 1, row)] = (*src[1])[i];
  });
  return cache;
}

Array set_slice(const Tensor& node, const Sources& src) {
  Array cache = *src[0];
  const auto& p = params<SetSliceParams>(node);
  for_each(src[1]->shape, [&](const Index& i) {
    const int64_t at = local_row({p.ranges}, cache.shape[p.axis], p.begin + i[p.axis]);
    if (at >= 0) cache[with(i, p.axis, at)] = (*src[1])[i];
  });
  return cache;
}

Array mul_mat(const Tensor& node, const Sources& src) {
  const Array &a = *src[0], &b = *src[1];
  return tabulate(node.shape, [&](const Index& i) {
    const int64_t c = a.shape[2] ? i[2] / (b.shape[2] / a.shape[2]) : 0;
    const int64_t d = a.shape[3] ? i[3] / (b.shape[3] / a.shape[3]) : 0;
    return dot(a.row({0, i[0], c, d}), b.row({0, i[1], i[2], i[3]}));
  });
}

Array mul_mat_id(const Tensor& node, const Sources& src) {
  const Array &experts = *src[0], &x = *src[1], &ids = *src[2];
  return tabulate(node.shape, [&](const Index& i) {
    const auto id = static_cast<int64_t>(ids[{i[1], i[2], 0, 0}]);
    const int64_t expert = local_row(params<SelectParams>(node), experts.shape[2], id);
    return expert < 0 ? 0.0 : dot(experts.row({0, i[0], expert, 0}), x.row({0, x.shape[1] == 1 ? 0 : i[1], i[2], 0}));
  });
}

double broadcast_at(const Array& array, Index i) {
  for (int axis = 0; axis < kMaxDims; ++axis) i[axis] = array.shape[axis] == 1 ? 0 : i[axis];
  return array[i];
}

template <class F>
Array binary(const Tensor& node, const Sources& src) {
  return tabulate(node.shape,
                  [&](const Index& i) -> double { return F{}(broadcast_at(*src[0], i), broadcast_at(*src[1], i)); });
}

Array compare(const Tensor& node, const Sources& src) {
  switch (params<CompareParams>(node).kind) {
    case CompareKind::kEqual:
      return binary<std::equal_to<>>(node, src);
    case CompareKind::kNotEqual:
      return binary<std::not_equal_to<>>(node, src);
    case CompareKind::kLess:
      return binary<std::less<>>(node, src);
    case CompareKind::kLessEqual:
      return binary<std::less_equal<>>(node, src);
    case CompareKind::kGreater:
      return binary<std::greater<>>(node, src);
    default:
      return binary<std::greater_equal<>>(node, src);
  }
}

Array where(const Tensor& node, const Sources& src) {
  return tabulate(node.shape, [&](const Index& i) {
    return broadcast_at(*src[0], i) != 0 ? broadcast_at(*src[1], i) : broadcast_at(*src[2], i);
  });
}

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}
double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}
double gelu_erf(double x) {
  return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);  // 1 + erf would lose precision for negative x
}

double apply(UnaryKind kind, double x) {
  switch (kind) {
    case UnaryKind::kAbs:
      return std::fabs(x);
    case UnaryKind::kNeg:
      return -x;
    case UnaryKind::kSgn:
      return x > 0 ? 1 : x < 0 ? -1 : 0;
    case UnaryKind::kStep:
      return x > 0 ? 1 : 0;
    case UnaryKind::kTanh:
      return std::tanh(x);
    case UnaryKind::kElu:
      return x > 0 ? x : std::exp(x) - 1;
    case UnaryKind::kRelu:
      return x > 0 ? x : 0;
    case UnaryKind::kSigmoid:
      return sigmoid(x);
    case UnaryKind::kGelu:
      return gelu(x);
    case UnaryKind::kGeluErf:
      return gelu_erf(x);
    case UnaryKind::kGeluQuick:
      return x * sigmoid(1.702 * x);
    case UnaryKind::kSilu:
      return x * sigmoid(x);
    case UnaryKind::kHardSwish:
      return x * std::clamp(x / 6 + 0.5, 0.0, 1.0);
    case UnaryKind::kHardSigmoid:
      return std::clamp(x / 6 + 0.5, 0.0, 1.0);
    case UnaryKind::kExp:
      return std::exp(x);
    case UnaryKind::kLog:
      return std::log(x);
    case UnaryKind::kSqr:
      return x * x;
    case UnaryKind::kSqrt:
      return std::sqrt(x);
    case UnaryKind::kSin:
      return std::sin(x);
    case UnaryKind::kCos:
      return std::cos(x);
    case UnaryKind::kSoftplus:
      return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x)));
    case UnaryKind::kCount:
      break;
  }
  fail<InvalidArgument>("unknown kind of unary");
}

Array unary(const Tensor& node, const Sources& src) {
  return tabulate(node.shape, [&](const Index& i) { return apply(params<UnaryParams>(node).kind, (*src[0])[i]); });
}

Array scale(const Tensor& node, const Sources& src) {
  const auto [factor, bias] = params<ScaleParams>(node);
  return tabulate(node.shape, [&, f = factor, b = bias](const Index& i) { return (*src[0])[i] * f + b; });
}

Array clamp(const Tensor& node, const Sources& src) {
  const auto [min, max] = params<ClampParams>(node);
  return tabulate(node.shape, [&, low = min, high = max](const Index& i) {
    return std::min<double>(std::max<double>((*src[0])[i], low), high);
  });
}

Array glu(const Tensor& node, const Sources& src) {
  constexpr std::array kActs = {UnaryKind::kSilu, UnaryKind::kGelu, UnaryKind::kGeluErf, UnaryKind::kGeluQuick,
                                UnaryKind::kRelu};
  const UnaryKind act = kActs.at(static_cast<size_t>(params<GluParams>(node).kind));
  return tabulate(node.shape, [&](const Index& i) {
    const double up = src[1] ? (*src[1])[i] : (*src[0])[with(i, 0, node.shape[0] + i[0])];
    return apply(act, (*src[0])[i]) * up;
  });
}

/// Mean of f(element) over all elements of the row at index i.
template <class F>
double row_mean(const Array& x, const Index& i, F&& f) {
  double sum = 0;
  for (int64_t j = 0; j < x.shape[0]; ++j) sum += f(x[with(i, 0, j)]);
  return sum / static_cast<double>(x.shape[0]);
}

Array rms_norm(const Tensor& node, const Sources& src) {
  return tabulate(node.shape, [&](const Index& i) {
    const double squares = row_mean(*src[0], i, [](double v) { return v * v; });
    return (*src[0])[i] / std::sqrt(squares + params<NormParams>(node).eps);
  });
}

Array layer_norm(const Tensor& node, const Sources& src) {
  return tabulate(node.shape, [&](const Index& i) {
    const double mean = row_mean(*src[0], i, [](double v) { return v; });
    const double variance = row_mean(*src[0], i, [mean](double v) { return (v - mean) * (v - mean); });
    return ((*src[0])[i] - mean) / std::sqrt(variance + params<NormParams>(node).eps);
  });
}

/// Replaces logits by their soft-max. `sink` is an additional logit, which only increases the sum of the exponentials.
/// If all logits are -infinity, the results are zeros.
void soft_max_of(Values& logits, double sink) {
  double top = sink;
  for (const double logit : logits) top = std::max(top, logit);
  double sum = sink == kMinusInfinity ? 0 : std::exp(sink - top);
  for (double& logit : logits) {
    logit = logit == kMinusInfinity ? 0 : std::exp(logit - top);
    sum += logit;
  }
  for (double& logit : logits) logit = sum == 0 ? 0 : logit / sum;
}

double sink_of(const Array* sinks, int64_t head) {
  return sinks ? (*sinks)[{head, 0, 0, 0}] : kMinusInfinity;
}

Array soft_max(const Tensor& node, const Sources& src) {
  Array result(node.shape);
  for_each_row(node.shape, [&](const Index& row) {
    Values logits(node.shape[0]);
    for (int64_t j = 0; j < node.shape[0]; ++j) {
      logits[j] = (*src[0])[with(row, 0, j)] * params<SoftMaxParams>(node).scale;
      if (!src[1]) continue;
      const Shape& mask = src[1]->shape;
      logits[j] += (*src[1])[{j, row[1], mask[2] == 1 ? 0 : row[2], mask[3] == 1 ? 0 : row[3]}];
    }
    soft_max_of(logits, sink_of(src[2], row[2]));
    for (int64_t j = 0; j < node.shape[0]; ++j) result[with(row, 0, j)] = logits[j];
  });
  return result;
}

/// The rotation angle of a pair at a position (see RopeParams).
double rope_angle(const RopeParams& p, const Array* factors, int64_t pair, double position) {
  const double exponent = -2.0 * static_cast<double>(pair) / static_cast<double>(p.dims);
  double angle = position * std::pow(static_cast<double>(p.base), exponent);
  if (factors) angle /= (*factors)[{pair, 0, 0, 0}];
  const double interpolated = p.freq_scale * angle;
  if (p.ext_factor == 0) return interpolated;
  // The index (possibly fractional) of the pair that makes `turns` full rotations in `original_context` positions.
  const auto pair_at = [&](double turns) {
    const double wave = static_cast<double>(p.original_context) / (turns * 2 * std::numbers::pi);
    return static_cast<double>(p.dims) * std::log(wave) / (2 * std::log(static_cast<double>(p.base)));
  };
  const double fast = pair_at(p.beta_fast), slow = pair_at(p.beta_slow);
  const double low = std::max(0.0, p.truncate ? std::floor(fast) : fast);
  const double high = std::min<double>(static_cast<double>(p.dims) - 1, p.truncate ? std::ceil(slow) : slow);
  const double ramp = std::clamp((static_cast<double>(pair) - low) / std::max(0.001, high - low), 0.0, 1.0);
  const double mix = (1 - ramp) * p.ext_factor;
  return interpolated * (1 - mix) + angle * mix;
}

Array rope(const Tensor& node, const Sources& src) {
  const auto& p = params<RopeParams>(node);
  double magnitude = p.attn_factor;
  if (p.ext_factor != 0) magnitude *= 1 + 0.1 * std::log(1 / static_cast<double>(p.freq_scale));
  Array result = *src[0];
  for_each_row(node.shape, [&](const Index& row) {
    for (int64_t pair = 0; pair < p.dims / 2; ++pair) {
      const bool halves = p.mode == RopeMode::kHalves;
      const Index first = with(row, 0, p.offset + (halves ? pair : 2 * pair));
      const Index second = with(row, 0, p.offset + (halves ? pair + p.dims / 2 : 2 * pair + 1));
      const double angle = rope_angle(p, src[2], pair, (*src[1])[{row[2], 0, 0, 0}]);
      const double a = (*src[0])[first], b = (*src[0])[second];
      result[first] = magnitude * (a * std::cos(angle) - b * std::sin(angle));
      result[second] = magnitude * (a * std::sin(angle) + b * std::cos(angle));
    }
  });
  return result;
}

Array sum_rows(const Tensor& node, const Sources& src) {
  Array result(node.shape);
  for_each(src[0]->shape, [&](const Index& i) { result[with(i, 0, 0)] += (*src[0])[i]; });
  return result;
}

/// The indices of a row's elements in descending order of the elements. Equal elements stay in index order.
std::vector<int64_t> order_of(const Array& x, const Index& row) {
  std::vector<int64_t> order(x.shape[0]);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return x[with(row, 0, a)] > x[with(row, 0, b)]; });
  return order;
}

Array best(const Tensor& node, const Sources& src) {
  Array result(node.shape);
  for_each_row(node.shape, [&](const Index& row) {
    const auto indices = order_of(*src[0], row);
    for (int64_t j = 0; j < node.shape[0]; ++j) {
      result[with(row, 0, j)] = indices.empty() ? 0 : static_cast<double>(indices[j]);
    }
  });
  return result;
}

/// Number of rows of a sequence, including rows that no query may see.
int64_t rows_of_sequence(const Tensor& node, const Sources& src) {
  return src[6] ? src[6]->shape[0] * params<AttentionParams>(node).page : src[1]->shape[1];
}

/// Returns the index of a sequence's row on the KV axis, or -1 if there is no such row.
int64_t kv_row(const Tensor& node, const Sources& src, int64_t token, int64_t row) {
  if (!src[6]) return row;
  const int64_t page = params<AttentionParams>(node).page;
  const auto sequence = static_cast<int64_t>((*src[7])[{token, 0, 0, 0}]);
  if (sequence < 0 || sequence >= src[6]->shape[1]) return -1;
  const auto number = static_cast<int64_t>((*src[6])[{row / page, sequence, 0, 0}]);
  return number < 0 || number >= src[1]->shape[1] / page ? -1 : number * page + row % page;
}

/// The attention score of a query row and a row of its sequence; -infinity if the query must not see the row.
double attention_score(const Tensor& node, const Sources& src, const Index& query, int64_t row) {
  const auto& p = params<AttentionParams>(node);
  const Array &q = *src[0], &k = *src[1];
  const int64_t stored = kv_row(node, src, query[1], row);
  if (stored < 0) return kMinusInfinity;
  const auto [t, h, z] = std::array{query[1], query[2], query[3]};
  if (src[3]) {
    const auto position = static_cast<int64_t>((*src[3])[{t, src[3]->shape[1] == 1 ? 0 : z, 0, 0}]);
    if (p.causal && row > position) return kMinusInfinity;
    if (p.window > 0 && row <= position - p.window) return kMinusInfinity;
  }
  const int64_t of = q.shape[3] == 1 ? 0 : z;
  double score = p.scale * dot(q.row({0, t, h, of}), k.row({0, stored, h / (q.shape[2] / k.shape[2]), z}));
  if (p.softcap > 0) score = p.softcap * std::tanh(score / p.softcap);
  if (!src[4]) return score;
  const Array& mask = *src[4];
  return score + mask[{row, t, mask.shape[2] == 1 ? 0 : h, mask.shape[3] == 1 ? 0 : z}];
}

double log_sum_exp(const Values& values) {
  double top = kMinusInfinity, sum = 0;
  for (const double value : values) top = std::max(top, value);
  if (top == kMinusInfinity) return top;
  for (const double value : values) sum += std::exp(value - top);
  return top + std::log(sum);
}

Array attention(const Tensor& node, const Sources& src) {
  const Array &q = *src[0], &v = *src[2];
  Array result(node.shape);
  for_each_row({1, q.shape[1], q.shape[2], v.shape[3]}, [&](const Index& query) {
    const auto [t, h, z] = std::array{query[1], query[2], query[3]};
    const int64_t rows = rows_of_sequence(node, src);
    Values weights(rows);
    for (int64_t row = 0; row < rows; ++row) weights[row] = attention_score(node, src, query, row);
    if (node.shape[0] > v.shape[0]) {
      Values scores = weights;
      if (src[5]) scores.push_back(sink_of(src[5], h));
      result[{v.shape[0], h, t, z}] = log_sum_exp(scores);
    }
    soft_max_of(weights, sink_of(src[5], h));
    for (int64_t row = 0; row < rows; ++row) {
      if (weights[row] == 0) continue;
      const std::span<double> sums = result.row({0, h, t, z});
      const std::span<const double> values = v.row({0, kv_row(node, src, t, row), h / (q.shape[2] / v.shape[2]), z});
      for (size_t i = 0; i < values.size(); ++i) sums[i] += weights[row] * values[i];
    }
  });
  return result;
}

Array merge_attention(const Tensor& node, const Sources& src) {
  const Array &parts = *src[0], &lse = *src[1];
  Array result(node.shape);
  for_each_row(node.shape, [&](const Index& row) {
    const auto [h, t] = std::array{row[1], row[2]};
    Values all;
    for (int64_t i = 0; i < lse.shape[0]; ++i) all.push_back(lse[{i, h, t, 0}]);
    const double of_all = log_sum_exp(all);
    for (int64_t z = 0; z < parts.shape[3]; ++z) {
      const double own = parts[{node.shape[0], h, t, z}];
      if (own == kMinusInfinity) continue;
      for (int64_t i = 0; i < node.shape[0]; ++i) result[{i, h, t, 0}] += std::exp(own - of_all) * parts[{i, h, t, z}];
    }
  });
  return result;
}

/// The sequences of an op with a state. The source `first` has the positions. The next two sources are StateSlots.
class StateBatch {
 public:
  StateBatch(const Sources& src, int first)
      : positions_(*src[first]), sequences_(src[first + 1]), slots_(src[first + 2]) {}
  int64_t count() const { return slots_ == nullptr ? 1 : slots_->shape[0]; }
  /// The slot with the state of a sequence. The result is outside [0, slots) if the state is zeros.
  int64_t slot(int64_t y) const { return slots_ == nullptr ? 0 : static_cast<int64_t>((*slots_)[{y, 0, 0, 0}]); }
  /// Calls f(token, whether the token starts the sequence) for each token of a sequence.
  template <class F>
  void for_tokens(int64_t y, F&& f) const {
    for (int64_t t = 0; t < positions_.shape[0]; ++t) {
      const double position = positions_[{t, 0, 0, 0}];
      const bool own = sequences_ == nullptr || (*sequences_)[{t, 0, 0, 0}] == static_cast<double>(y);
      if (own && position >= 0) f(t, position == 0);
    }
  }
  /// Whether the new state of a sequence is zeros, because the sequence has no tokens.
  bool is_idle(int64_t y) const {
    int64_t tokens = 0;
    for_tokens(y, [&](int64_t, bool) { ++tokens; });
    return slots_ != nullptr && tokens == 0;
  }

 private:
  const Array& positions_;
  const Array *sequences_, *slots_;
};

/// Keeps all inputs of each channel since the start of the sequence. The state contains the last inputs of earlier
/// runs.
Array causal_conv(const Tensor& node, const Sources& src) {
  const Array &x = *src[0], &weight = *src[1], &state = *src[2];
  const StateBatch batch(src, 3);
  const int64_t tokens = x.shape[1], taps = weight.shape[0], rows = taps - 1;
  Array result(node.shape);
  const auto run = [&](int64_t c, int64_t y) {
    Values inputs;
    for (int64_t i = batch.slot(y) * rows; i < (batch.slot(y) + 1) * rows; ++i) {
      inputs.push_back(i >= 0 && i < state.shape[1] ? state[{c, i, 0, 0}] : 0.0);
    }
    const auto back = [&](int64_t steps) {  // back(0) is the latest input
      const auto known = static_cast<int64_t>(inputs.size());
      return steps < known ? inputs[known - 1 - steps] : 0.0;
    };
    batch.for_tokens(y, [&](int64_t t, bool starts) {
      if (starts) inputs.clear();
      inputs.push_back(x[{c, t, 0, 0}]);
      for (int64_t j = 0; j < taps; ++j) result[{c, t, 0, 0}] += weight[{j, c, 0, 0}] * back(taps - 1 - j);
    });
    for (int64_t i = 0; i < rows && !batch.is_idle(y); ++i)
      result[{c, tokens + y * rows + i, 0, 0}] = back(rows - 1 - i);
  };
  for (int64_t c = 0; c < x.shape[0]; ++c) {
    for (int64_t y = 0; y < batch.count(); ++y) run(c, y);
  }
  return result;
}

/// The state of a slot and head, with the axes [key element, value element]. The state is zeros if the slot does not
/// exist.
class DeltaState {
 public:
  DeltaState(const Array& state, int64_t slot, int64_t head) : size_(state.shape[0]), s_({size_, size_, 1, 1}) {
    if (slot < 0 || (slot + 1) * size_ > state.shape[1]) return;
    for_each(s_.shape, [&](const Index& i) { s_[i] = state[{i[0], slot * size_ + i[1], head, 0}]; });
  }
  void clear() { s_ = Array(s_.shape); }
  double operator()(int64_t i, int64_t j) const { return s_[{i, j, 0, 0}]; }
  /// Sum of S[i, j] * row[i] over i.
  double times(const Array& rows, int64_t head, int64_t token, int64_t j) const {
    return dot(s_.row({0, j, 0, 0}), rows.row({0, head, token, 0}));
  }
  void scale(double factor) {
    for (double& value : s_.values) value *= factor;
  }
  void add(const Array& k, int64_t head, int64_t token, int64_t j, double error) {
    const std::span<double> column = s_.row({0, j, 0, 0});
    const std::span<const double> key = k.row({0, head, token, 0});
    for (size_t i = 0; i < column.size(); ++i) column[i] += key[i] * error;
  }

 private:
  int64_t size_;
  Array s_;
};

Array gated_delta(const Tensor& node, const Sources& src) {
  const Array &q = *src[0], &k = *src[1], &v = *src[2], &decay = *src[3], &beta = *src[4];
  const StateBatch batch(src, 6);
  const int64_t size = q.shape[0], groups = q.shape[1], tokens = q.shape[2], heads = v.shape[1];
  Array result(node.shape);
  const auto run = [&](int64_t head, int64_t y) {
    const int64_t of_key = params<GatedDeltaParams>(node).tiled ? head % groups : head / (heads / groups);
    DeltaState s(*src[5], batch.slot(y), head);
    batch.for_tokens(y, [&](int64_t t, bool starts) {
      if (starts) s.clear();
      s.scale(std::exp(decay[{head, t, 0, 0}]));
      for (int64_t j = 0; j < size; ++j) {
        const double error = beta[{head, t, 0, 0}] * (v[{j, head, t, 0}] - s.times(k, of_key, t, j));
        s.add(k, of_key, t, j, error);
        result[{j, t, head, 0}] = s.times(q, of_key, t, j);
      }
    });
    if (batch.is_idle(y)) return;
    const int64_t first = tokens + y * size;
    for_each({size, size, 1, 1}, [&](const Index& i) { result[{i[0], first + i[1], head, 0}] = s(i[0], i[1]); });
  };
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t y = 0; y < batch.count(); ++y) run(head, y);
  }
  return result;
}

Array cumsum(const Tensor& node, const Sources& src) {
  Array result = *src[0];
  for_each(node.shape, [&](const Index& i) {
    if (i[0] > 0) result[i] += result[with(i, 0, i[0] - 1)];
  });
  return result;
}

Array same(const Tensor& node, const Sources& src) {
  return {node.shape, src[0]->values};
}

/// Casts between floats and integers. Floats are rounded to the nearest integer.
Array cast(const Tensor& node, const Sources& src) {
  Array result = *src[0];
  const bool to_integer = node.dtype == DType::kI32 || node.dtype == DType::kI64;
  for (double& value : result.values) value = to_integer ? std::nearbyint(value) : value;
  return result;
}

Array concat(const Tensor& node, const Sources& src) {
  const int axis = params<ConcatParams>(node).axis;
  Array result(node.shape);
  int64_t begin = 0;
  for (const Array* source : src) {
    for_each(source->shape, [&](const Index& i) { result[with(i, axis, begin + i[axis])] = (*source)[i]; });
    begin += source->shape[axis];
  }
  return result;
}

Array repeat(const Tensor& node, const Sources& src) {
  return tabulate(node.shape, [&](Index i) {
    for (int axis = 0; axis < kMaxDims; ++axis) i[axis] %= src[0]->shape[axis];
    return (*src[0])[i];
  });
}

Array fill(const Tensor& node, const Sources&) {
  return Array(node.shape, params<FillParams>(node).value);
}

Array slice(const Tensor& node, const Sources& src) {
  const auto& p = params<SliceParams>(node);
  return tabulate(node.shape, [&](const Index& i) { return (*src[0])[with(i, p.axis, p.begin + i[p.axis] * p.step)]; });
}

Array permute(const Tensor& node, const Sources& src) {
  const auto& axes = params<PermuteParams>(node).axes;
  return tabulate(node.shape, [&](const Index& i) {
    Index from;
    for (int axis = 0; axis < kMaxDims; ++axis) from[axes[axis]] = i[axis];
    return (*src[0])[from];
  });
}

/// The evaluation function of each op. Collectives have no evaluation function.
const std::map<Op, Eval> kEvals = {
    {Op::kGetRows, get_rows},
    {Op::kSetRows, set_rows},
    {Op::kSetSlice, set_slice},
    {Op::kMulMat, mul_mat},
    {Op::kMulMatId, mul_mat_id},
    {Op::kAdd, binary<std::plus<>>},
    {Op::kSub, binary<std::minus<>>},
    {Op::kMul, binary<std::multiplies<>>},
    {Op::kDiv, binary<std::divides<>>},
    {Op::kScale, scale},
    {Op::kUnary, unary},
    {Op::kClamp, clamp},
    {Op::kGlu, glu},
    {Op::kCompare, compare},
    {Op::kWhere, where},
    {Op::kRmsNorm, rms_norm},
    {Op::kLayerNorm, layer_norm},
    {Op::kSoftMax, soft_max},
    {Op::kRope, rope},
    {Op::kSumRows, sum_rows},
    {Op::kCumsum, cumsum},
    {Op::kArgmax, best},
    {Op::kTopK, best},
    {Op::kAttention, attention},
    {Op::kMergeAttention, merge_attention},
    {Op::kPool2d, pool_2d},
    {Op::kPad, pad},
    {Op::kUpsample, upsample},
    {Op::kConv2d, conv_2d},
    {Op::kConvTranspose2d, conv_transpose_2d},
    {Op::kCausalConv, causal_conv},
    {Op::kGatedDelta, gated_delta},
    {Op::kCast, cast},
    {Op::kContiguous, same},
    {Op::kConcat, concat},
    {Op::kRepeat, repeat},
    {Op::kFill, fill},
    {Op::kReshape, same},
    {Op::kSlice, slice},
    {Op::kPermute, permute},
    {Op::kReshard, same},
};

/// Whether the op writes into an existing cache (set_rows, set_slice).
bool writes(const Tensor& node) {
  return info(node.op).alias == Alias::kWrites;
}

/// The values of all tensors during a run. After an op writes to a cache, all views of the cache have the new values.
class Evaluation {
 public:
  explicit Evaluation(TensorValues leaves) : values_(std::move(leaves)) {}

  const Values& run(const Tensor& node) {
    Values result = stored(node, evaluate(node));
    if (writes(node)) values_.at(node.storage()) = result;
    return values_[&node] = std::move(result);
  }

  TensorValues finish(const Graph& graph) {
    for (const Tensor* node : graph.nodes()) {
      if (node->storage()->role == Role::kCache) values_[node] = present(*node).values;
    }
    return std::move(values_);
  }

 private:
  static Values stored(const Tensor& node, Array result) {
    return node.dtype == DType::kF32 ? std::move(result.values) : rounded(node.dtype, result.values);
  }

  Array evaluate(const Tensor& node) const {
    std::vector<Array> arrays;
    arrays.reserve(node.src.size());
    Sources sources;
    for (const Tensor* source : node.src) {
      if (source) arrays.push_back(present(*source));
      sources.push_back(source ? &arrays.back() : nullptr);
    }
    const auto found = kEvals.find(node.op);
    require<InvalidArgument>(found != kEvals.end(), "[{} {}] tests/support/reference.cpp has no such op",
                             name_of(node.op), node.name);
    return found->second(node, sources);
  }

  Array present(const Tensor& tensor) const {
    if (writes(tensor)) return {tensor.shape, values_.at(tensor.storage())};
    if (is_view(tensor.op)) return evaluate(tensor);
    return {tensor.shape, values_.at(&tensor)};
  }

  TensorValues values_;
};

}  // namespace

TensorValues reference_eval(const Graph& graph, TensorValues leaves, const SeenNode& seen) {
  Evaluation evaluation(std::move(leaves));
  for (const Tensor* node : graph.nodes()) {
    const Values& values = evaluation.run(*node);
    if (seen) seen(*node, values);
  }
  return evaluation.finish(graph);
}

}  // namespace shoal::test
