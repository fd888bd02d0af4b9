#include "meta/rules/rule_cache.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "graph/text.h"

namespace shoal::meta {
namespace {

class Hash {
 public:
  void add(uint64_t value) { value_ = (value_ ^ value) * 0x9e3779b97f4a7c15, value_ ^= value_ >> 29; }
  void add(const Tensor& tensor) {
    add(static_cast<uint64_t>(tensor.dtype));
    for (const int64_t length : tensor.shape) add(static_cast<uint64_t>(length));
  }
  void add(const OpParams& params) {
    add(params.index());
    for_each_param(params, [&](std::string_view, const auto& value) { add_value(value); });
  }
  uint64_t value() const { return value_; }

 private:
  template <class Value>
  void add_value(const Value& value) {
    if constexpr (std::is_same_v<Value, float>) {
      add(std::bit_cast<uint32_t>(value));
    } else if constexpr (std::is_same_v<Value, IndexRange>) {
      add_value(value.begin), add_value(value.length);
    } else if constexpr (std::is_arithmetic_v<Value> || std::is_enum_v<Value>) {
      add(static_cast<uint64_t>(value));
    } else {
      for (const auto& item : value) add_value(item);
    }
  }

  uint64_t value_ = 0xcbf29ce484222325;
};

uint64_t hash_of(const Tensor& node) {
  Hash hash;
  hash.add(static_cast<uint64_t>(node.op));
  hash.add(node.params);
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

std::optional<Rule> ask(const RuleLookup& rules, const Tensor& node) {
  const std::optional<std::string> text = rules(node);
  require<InvalidArgument>(text || info(node.op).alias != Alias::kWrites,
                           "'{}' has no sharding rule; an op that writes in place needs a rule (MetaOptions::rules)",
                           to_string(node));
  return text ? std::optional(parse_rule(*text, node)) : std::nullopt;
}

}  // namespace

const Rule* RuleCache::find(const Tensor& node) {
  const Entry*& known = known_[static_cast<size_t>(node.id)];
  if (known == nullptr) {
    const uint64_t hash = hash_of(node);
    const auto [begin, end] = kinds_.equal_range(hash);
    const auto found = std::find_if(begin, end, [&](const auto& kind) { return same_kind(*kind.second->node, node); });
    known = found != end ? found->second : &entries_.emplace_back(Entry{&node, ask(rules_, node)});
    if (found == end) kinds_.emplace(hash, known);
  }
  return known->rule ? &*known->rule : nullptr;
}

}  // namespace shoal::meta
