#include "models/session/inputs.h"

#include <algorithm>
#include <cmath>

#include "devices/buffer.h"

namespace shoal::models {
namespace {

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

void write_pages(const PageInputs& to, const KvCache& cache, size_t group, const BatchInputs& inputs) {
  std::vector<int32_t> table(static_cast<size_t>(to.table->elements())), rows;
  const auto width = static_cast<size_t>(to.table->shape[0]);
  for (size_t i = 0; i < inputs.of.size(); ++i) {
    std::copy(inputs.of[i].pages[group].begin(), inputs.of[i].pages[group].end(), table.begin() + i * width);
  }
  for (size_t i = 0; i < inputs.positions.size(); ++i) {
    const int32_t position = inputs.positions[i];
    const int64_t row = position < 0
                            ? -1
                            : row_of(cache, cache.groups[group],
                                     inputs.of[static_cast<size_t>(inputs.sequences[i])].pages[group], position);
    rows.push_back(static_cast<int32_t>(row));
  }
  write(*to.table, table);
  write(*to.cache_rows, rows);
}

void write_part_positions(Tensor& last_rows, std::span<const int32_t> positions) {
  std::vector<int32_t> last;
  for (int64_t part = 0; part < last_rows.shape[1]; ++part) {
    for (const int32_t position : positions) {
      last.push_back(static_cast<int32_t>(last_row_in_part(position, last_rows.shape[1], part)));
    }
  }
  write(last_rows, last);
}

void write_states(const DecoderGraph& graph, std::span<const BatchSequence> sequences) {
  std::vector<int32_t> slots(static_cast<size_t>(graph.slots->elements()), -1);
  for (size_t i = 0; i < sequences.size(); ++i) slots[i] = sequences[i].reads;
  write(*graph.slots, slots);
  for (const StateInput& state : graph.states) {
    std::vector<int32_t> ids(static_cast<size_t>(state.ids->elements()), -1);
    for (size_t i = 0; i < sequences.size(); ++i) {
      if (sequences[i].writes < 0) continue;
      for (int64_t row = 0; row < state.rows; ++row) {
        ids[i * static_cast<size_t>(state.rows) + static_cast<size_t>(row)] =
            static_cast<int32_t>(sequences[i].writes * state.rows + row);
      }
    }
    write(*state.ids, ids);
  }
}

}  // namespace

void write_inputs(const DecoderGraph& graph, const Hparams& hparams, const KvCache& cache, const BatchInputs& inputs) {
  const std::span<const int32_t> positions = inputs.positions, sequences = inputs.sequences;
  tensor_set(*graph.positions, positions.data(), 0, positions.size_bytes());
  tensor_set(*graph.sequences, sequences.data(), 0, sequences.size_bytes());
  if (graph.temperature != nullptr) write(*graph.temperature, temperatures(hparams.temperature, positions));
  for (size_t group = 0; group < graph.pages.size(); ++group) write_pages(graph.pages[group], cache, group, inputs);
  if (graph.last_rows != nullptr) write_part_positions(*graph.last_rows, positions);
  if (graph.slots != nullptr) write_states(graph, inputs.of);
}

WholeCache::WholeCache(const KvCache& cache) : cache_(cache) {
  for (const PageGroup& group : cache.groups) {
    std::vector<int32_t>& pages = pages_.emplace_back();
    for (int64_t page = 0; page < cache.most_pages(); ++page) pages.push_back(static_cast<int32_t>(page % group.pages));
  }
}

BatchSequence WholeCache::sequence() const {
  return {{pages_.begin(), pages_.end()}};
}

void WholeCache::write_inputs(const DecoderGraph& graph, const Hparams& hparams,
                              std::span<const int32_t> positions) const {
  const BatchSequence one = sequence();
  const std::vector<int32_t> sequences(positions.size(), 0);
  models::write_inputs(graph, hparams, cache_, {positions, sequences, {&one, 1}});
}

}  // namespace shoal::models
