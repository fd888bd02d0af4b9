#include "models/session/inputs.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "devices/buffer.h"

namespace shoal::models {
namespace {

// Mask values as bits of f16 numbers.
constexpr uint16_t kSeen = 0, kHidden = 0xfc00;  // 0, -inf

template <class T>
void write(Tensor& tensor, const std::vector<T>& values) {
  tensor_set(tensor, values.data(), 0, values.size() * sizeof(T));
}

/// Returns the factor by which the queries of each token are scaled.
std::vector<float> temperatures(const AttentionTemperature& of, std::span<const int32_t> positions) {
  std::vector<float> factors;
  for (const int32_t position : positions) {
    const int64_t contexts = std::max<int64_t>(position, 0) / of.context;
    factors.push_back(1.0f + of.scale * std::log1p(static_cast<float>(contexts)));
  }
  return factors;
}

/// Unmasks positions [begin, end) for one token. end - begin is at most mask.size(). The mask value of position p is
/// element p % mask.size().
void show(std::span<uint16_t> mask, int64_t begin, int64_t end) {
  const auto rows = static_cast<int64_t>(mask.size());
  const int64_t first = begin % rows, to_the_end = std::min(end - begin, rows - first);
  std::fill_n(mask.begin() + first, to_the_end, kSeen);
  std::fill_n(mask.begin(), end - begin - to_the_end, kSeen);
}

void write_window(const WindowInputs& inputs, std::span<const int32_t> positions) {
  const int32_t last = *std::max_element(positions.begin(), positions.end());
  const auto rows = static_cast<int32_t>(inputs.rows);
  std::vector<int32_t> written, behind;
  std::vector<uint16_t> mask(positions.size() * static_cast<size_t>(rows), kHidden);
  for (size_t i = 0; i < positions.size(); ++i) {
    const int32_t position = positions[i];
    written.push_back(position < 0 ? position : position % rows);
    behind.push_back(position < 0 ? position : std::min(last, rows - 1));
    if (position < 0) continue;
    const int64_t end = position + 1;
    show(std::span(mask).subspan(i * static_cast<size_t>(rows), static_cast<size_t>(rows)),
         std::max<int64_t>(0, end - inputs.window), end);
  }
  write(*inputs.cache_rows, written);
  write(*inputs.last_rows, behind);
  write(*inputs.mask, mask);
}

void write_parts(const DecoderGraph& graph, std::span<const int32_t> positions) {
  const int64_t parts = graph.last_rows->shape[1];
  std::vector<int32_t> written, last;
  for (const int32_t position : positions) {
    written.push_back(static_cast<int32_t>(row_in_parts(position, parts, graph.part_rows)));
  }
  for (int64_t part = 0; part < parts; ++part) {
    for (const int32_t position : positions) {
      last.push_back(static_cast<int32_t>(last_row_in_part(position, parts, part)));
    }
  }
  write(*graph.cache_rows, written);
  write(*graph.last_rows, last);
}

}  // namespace

void write_inputs(const DecoderGraph& graph, const Hparams& hparams, std::span<const int32_t> positions) {
  tensor_set(*graph.positions, positions.data(), 0, positions.size_bytes());
  if (graph.last_rows == nullptr) {
    tensor_set(*graph.cache_rows, positions.data(), 0, positions.size_bytes());
  } else {
    write_parts(graph, positions);
  }
  if (graph.temperature != nullptr) write(*graph.temperature, temperatures(hparams.temperature, positions));
  if (graph.state_rows != nullptr) {
    std::vector<int32_t> rows(static_cast<size_t>(graph.state_rows->shape[0]));
    std::iota(rows.begin(), rows.end(), 0);
    write(*graph.state_rows, rows);
  }
  for (const WindowInputs& window : graph.windows) write_window(window, positions);
}

}  // namespace shoal::models
