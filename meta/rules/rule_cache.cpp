#include "meta/rules/rule_cache.h"

#include <algorithm>

namespace shoal::meta {
namespace {

class Hash {
 public:
  void add(uint64_t value) { value_ = (value_ ^ value) * 0x9e3779b97f4a7c15, value_ ^= value_ >> 29; }
  void add(const Tensor& tensor) {
    add(static_cast<uint64_t>(tensor.dtype));
    for (const int64_t length : tensor.shape) add(static_cast<uint64_t>(length));
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325;
};

uint64_t hash_of(const Tensor& node) {
  Hash hash;
  hash.add(static_cast<uint64_t>(node.op));
  hash.add(node);
  for (const Tensor* source : node.src) {
    if (source != nullptr)
      hash.add(*source);
    else
      hash.add(1);
  }
  return hash.value();
}

bool alike(const Tensor* a, const Tensor* b) {
  if (a == nullptr || b == nullptr) return a == b;
  return a->dtype == b->dtype && a->shape == b->shape;
}

bool same_kind(const Tensor& a, const Tensor& b) {
  return a.op == b.op && alike(&a, &b) && std::ranges::equal(a.src, b.src, alike) && a.params == b.params;
}

}  // namespace

const Rule* RuleCache::find(const Tensor& node) {
  const Entry*& known = known_[static_cast<size_t>(node.id)];
  if (known == nullptr) {
    const uint64_t hash = hash_of(node);
    const auto [begin, end] = kinds_.equal_range(hash);
    const auto found = std::find_if(begin, end, [&](const auto& kind) { return same_kind(*kind.second->node, node); });
    known = found != end ? found->second : &entries_.emplace_back(Entry{&node, rules_(node)});
    if (found == end) kinds_.emplace(hash, known);
  }
  return known->rule ? &*known->rule : nullptr;
}

}  // namespace shoal::meta
