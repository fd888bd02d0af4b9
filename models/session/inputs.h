// Computes the inputs of a graph from the positions, pages and states of the sequences in a batch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/arch/architecture.h"

namespace shoal::models {

/// One sequence of a batch.
struct BatchSequence {
  std::vector<std::span<const int32_t>> pages;  ///< list of pages for each page group of the cache (kv_cache.h), at
                                                ///< most KvCache::most_pages() pages each
  int32_t reads = 0;                            ///< slot of the state before the batch; < 0: no state
  int32_t writes = 0;                           ///< slot of the state after the batch; < 0: the state is dropped
};

/// The tokens of one run of a graph. All tokens of a sequence are consecutive and have consecutive positions.
struct BatchInputs {
  std::span<const int32_t> positions;  ///< position of each token; negative for padding, which is at the end
  std::span<const int32_t> sequences;  ///< index in `of` for each token; any number for padding
  std::span<const BatchSequence> of;   ///< at most BatchShape::sequences sequences
};

/// Writes all inputs of a graph except tokens and out_ids.
void write_inputs(const DecoderGraph& graph, const Hparams& hparams, const KvCache& cache, const BatchInputs& inputs);

/// The lists of pages of a sequence that has the whole cache. If a group has fewer pages than the sequence needs, the
/// sequence uses the pages as a ring.
class WholeCache {
 public:
  explicit WholeCache(const KvCache& cache);
  BatchSequence sequence() const;
  /// Writes the inputs of a batch of this sequence.
  void write_inputs(const DecoderGraph& graph, const Hparams& hparams, std::span<const int32_t> positions) const;

 private:
  const KvCache& cache_;
  std::vector<std::vector<int32_t>> pages_;
};

}  // namespace shoal::models
