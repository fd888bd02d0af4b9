#include "meta/layout/shards.h"

#include "base/error.h"

namespace shoal::meta {

ShardStore::ShardStore(int ranks) : ranks_(ranks) {
  require<InvalidArgument>(ranks >= 1, "a store of shards needs at least one rank, got {}", ranks);
}

const Shards& ShardStore::declare(const Tensor& tensor, Layout layout) {
  require<InvalidArgument>(!entries_.contains(&tensor), "{} has shards already", tensor.name);
  check_layout(layout, tensor.dtype, tensor.shape, ranks_, tensor.name);
  const auto made = std::make_shared<Entry>();
  Entry& entry = *made;
  entry.shards.layout = std::move(layout);
  for (int rank = 0; rank < ranks_; ++rank) {
    auto local = std::make_unique<Tensor>();
    local->name = tensor.name;
    local->dtype = tensor.dtype;
    local->role = tensor.role;
    local->shape = entry.shards.layout.local_shape(tensor.shape, rank);
    local->strides = contiguous_strides(local->dtype, local->shape);
    entry.shards.local.push_back(local.get());
    entry.owned.push_back(std::move(local));
  }
  entries_.emplace(&tensor, made);
  return entry.shards;
}

void ShardStore::adopt(const Tensor& tensor, const ShardStore& from) {
  require<InvalidArgument>(from.ranks_ == ranks_,
                           "{} has shards of {} ranks in the other store; this store has {} ranks", tensor.name,
                           from.ranks_, ranks_);
  const auto found = from.entries_.find(&tensor);
  require<InvalidArgument>(found != from.entries_.end(), "{} is not in the other store; declare the tensor there first",
                           describe(tensor));
  entries_.insert_or_assign(&tensor, found->second);
}

const Shards* ShardStore::find(const Tensor& tensor) const {
  const auto found = entries_.find(&tensor);
  return found == entries_.end() ? nullptr : &found->second->shards;
}

std::shared_ptr<const Shards> ShardStore::share(const Tensor& tensor) const {
  const auto found = entries_.find(&tensor);
  if (found == entries_.end()) return nullptr;
  return {found->second, &found->second->shards};
}

void ShardStore::erase(const Tensor& tensor) {
  entries_.erase(&tensor);
}

}  // namespace shoal::meta
