// Shards: what stands for one global tensor on a mesh: its layout and one local tensor for each rank.
// ShardStore owns the local tensors of persistent tensors; it fills up as tensors are placed in meta buffers
// (or, for plans made without loading, as they are declared). Building is single-threaded.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"
#include "meta/layout/layout.h"

namespace shoal::meta {

struct Shards {
  Layout layout;
  std::vector<Tensor*> local;  ///< one for each rank, also where its shard is empty
};

class ShardStore {
 public:
  /// Throws InvalidArgument for fewer than one rank.
  explicit ShardStore(int ranks);
  int ranks() const { return ranks_; }
  /// Makes local tensors (same name, dtype and role, local shapes, unplaced). Throws when declared already.
  const Shards& declare(const Tensor& tensor, Layout layout);
  /// Shares what another store, of as many ranks, has declared of the tensor, in place of what is here. Throws
  /// InvalidArgument when it has declared none.
  void adopt(const Tensor& tensor, const ShardStore& from);
  /// nullptr when not declared.
  const Shards* find(const Tensor& tensor) const;
  /// The same, for who needs them even after they are forgotten.
  std::shared_ptr<const Shards> share(const Tensor& tensor) const;
  void forget(const Tensor& tensor);

 private:
  struct Entry {
    Shards shards;
    std::vector<std::unique_ptr<Tensor>> owned;
  };
  int ranks_;
  std::unordered_map<const Tensor*, std::shared_ptr<Entry>> entries_;
};

}  // namespace shoal::meta
