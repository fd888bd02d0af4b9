// Shards: the parts of one global tensor on a mesh, as a layout and one local tensor for each rank. ShardStore owns the
// local tensors of persistent tensors. Placing a tensor in a meta buffer adds the tensor to a store. To make a plan
// without loaded weights, a program calls declare() for its tensors. Only one thread may add tensors.
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
  std::vector<Tensor*> local;  ///< one tensor for each rank, even if the rank's shard is empty
};

class ShardStore {
 public:
  /// Throws InvalidArgument for fewer than one rank.
  explicit ShardStore(int ranks);
  int ranks() const { return ranks_; }
  /// Creates unplaced local tensors with local shapes and with the name, dtype and role of the tensor. Throws if the
  /// tensor is already declared.
  const Shards& declare(const Tensor& tensor, Layout layout);
  /// Lets the tensor share the shards that `from` has declared for this tensor. Throws InvalidArgument if `from` has a
  /// different number of ranks or has not declared the tensor.
  void adopt(const Tensor& tensor, const ShardStore& from);
  /// Returns nullptr if the tensor is not declared.
  const Shards* find(const Tensor& tensor) const;
  /// Like find(), but the shards stay valid even after the store has removed them.
  std::shared_ptr<const Shards> share(const Tensor& tensor) const;
  void erase(const Tensor& tensor);

 private:
  struct Entry {
    Shards shards;
    std::vector<std::unique_ptr<Tensor>> owned;
  };
  int ranks_;
  std::unordered_map<const Tensor*, std::shared_ptr<Entry>> entries_;
};

}  // namespace shoal::meta
