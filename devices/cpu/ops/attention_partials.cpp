#include "devices/cpu/ops/attention_partials.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace shoal::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// Number of levels of the tree.
int64_t levels_of(const AttentionShape& shape) {
  return std::bit_width(static_cast<uint64_t>(std::max<int64_t>(shape.segments, 1) - 1)) + 1;
}

}  // namespace

void merge(Partial& into, const Partial& from, int64_t e) {
  if (from.sum == 0) return;
  if (into.sum == 0) {
    into.top = from.top, into.sum = from.sum;
    std::memcpy(into.values, from.values, e * sizeof(float));
    return;
  }
  const float top = std::max(into.top, from.top);
  const float keep = std::exp(into.top - top), take = std::exp(from.top - top);
  into.top = top;
  into.sum = into.sum * keep + from.sum * take;
#pragma omp simd
  for (int64_t i = 0; i < e; ++i) into.values[i] = into.values[i] * keep + from.values[i] * take;
}

void finish(const Tensor& node, const Partial& partial, int64_t head, float* to) {
  const int64_t e = source(node, AttentionSource::kV)->shape[0];
  const Tensor* sinks = source(node, AttentionSource::kSinks);
  const float sink =
      sinks == nullptr ? kMinusInfinity : *reinterpret_cast<const float*>(sinks->data + head * sinks->strides[0]);
  const bool has_lse = node.shape[0] > e;
  if (partial.sum == 0) {
    std::memset(to, 0, e * sizeof(float));
    if (has_lse) to[e] = sink;
    return;
  }
  float keep = 1, sum = partial.sum, top = partial.top;
  if (sinks != nullptr) {
    top = std::max(top, sink);
    keep = std::exp(partial.top - top);
    sum = sum * keep + std::exp(sink - top);
  }
  if (has_lse) to[e] = top + std::log(sum);
  const float factor = keep / sum;
#pragma omp simd
  for (int64_t i = 0; i < e; ++i) to[i] = partial.values[i] * factor;
}

void PartialRows::merge(int64_t row, const Partial& from) const {
  Partial into = (*this)[row];
  cpu::merge(into, from, e_);
  float* at = data_ + row * floats(e_);
  at[0] = into.top, at[1] = into.sum;
}

PartialTree::PartialTree(const AttentionShape& shape, int64_t rows, int64_t level, float* scratch)
    : e_(shape.e), rows_(rows), level_(level) {
  for (int64_t i = level; i < levels_of(shape); ++i) {
    slots_[i] = scratch + (i - level) * rows * PartialRows::floats(shape.e);
  }
}

int64_t PartialTree::floats(const AttentionShape& shape, int64_t rows) {
  return levels_of(shape) * rows * PartialRows::floats(shape.e);
}

void PartialTree::clear(int64_t level) const {
  for (int64_t row = 0; row < rows_; ++row) slot(level).clear(row);
}

/// Moves the group `index` to higher levels while it is the right half of a larger group.
void PartialTree::carry(int64_t index) {
  int64_t level = level_;
  for (; (index & 1) != 0; ++level) {
    index >>= 1;
    pending_ &= ~(uint64_t{1} << level);
    if (joins(index, level + 1)) {
      for (int64_t row = 0; row < rows_; ++row) slot(level + 1).merge(row, slot(level)[row]);
    } else {
      std::swap(slots_[level], slots_[level + 1]);
    }
  }
  pending_ |= uint64_t{1} << level;
}

PartialRows PartialTree::finish() {
  if (pending_ == 0) {
    clear(level_);
    return slot(level_);
  }
  int level = std::countr_zero(pending_);
  for (uint64_t left = pending_ & (pending_ - 1); left != 0; left &= left - 1) {
    const int next = std::countr_zero(left);
    for (int64_t row = 0; row < rows_; ++row) slot(next).merge(row, slot(level)[row]);
    level = next;
  }
  return slot(level);
}

}  // namespace shoal::cpu
