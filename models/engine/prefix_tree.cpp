#include "models/engine/prefix_tree.h"

#include <algorithm>

namespace shoal::models {
namespace {

/// The hash function FNV-1a.
uint64_t hash_of(std::span<const int32_t> tokens) {
  uint64_t value = 0xcbf2'9ce4'8422'2325;
  for (const int32_t token : tokens) value = (value ^ static_cast<uint32_t>(token)) * 0x100'0000'01b3;
  return value;
}

}  // namespace

/// Destroys the nodes one after the other, because nested destructors of a long chain would need much stack.
PrefixTree::~PrefixTree() {
  std::vector<std::unique_ptr<PrefixNode>> nodes;
  const auto take = [&](PrefixNode& node) {
    for (auto& [hash, child] : node.children) nodes.push_back(std::move(child));
  };
  for (auto& [salt, root] : roots_) take(root);
  while (!nodes.empty()) {
    const std::unique_ptr<PrefixNode> node = std::move(nodes.back());
    nodes.pop_back();
    take(*node);
  }
}

PrefixNode& PrefixTree::root(const std::string& salt) {
  return roots_[salt];
}

PrefixNode* PrefixTree::find(const PrefixNode& parent, std::span<const int32_t> tokens) const {
  const auto [begin, end] = parent.children.equal_range(hash_of(tokens));
  const auto found =
      std::find_if(begin, end, [&](const auto& child) { return std::ranges::equal(child.second->tokens, tokens); });
  return found == end ? nullptr : found->second.get();
}

PrefixNode& PrefixTree::add(PrefixNode& parent, std::span<const int32_t> tokens) {
  if (PrefixNode* known = find(parent, tokens)) return *known;
  auto child = std::make_unique<PrefixNode>();
  child->parent = &parent;
  child->tokens.assign(tokens.begin(), tokens.end());
  child->pages.assign(groups_, -1);
  ++nodes_;
  return *parent.children.emplace(hash_of(tokens), std::move(child))->second;
}

void PrefixTree::prune(PrefixNode& node) {
  PrefixNode* at = &node;
  while (true) {
    const bool has_pages = std::any_of(at->pages.begin(), at->pages.end(), [](int32_t page) { return page >= 0; });
    if (has_pages || at->slot >= 0 || at->users > 0 || !at->children.empty()) return;
    PrefixNode* parent = at->parent;
    if (parent == nullptr) {
      std::erase_if(roots_, [&](const auto& root) { return &root.second == at; });
      return;
    }
    const auto [begin, end] = parent->children.equal_range(hash_of(at->tokens));
    parent->children.erase(std::find_if(begin, end, [&](const auto& child) { return child.second.get() == at; }));
    --nodes_;
    at = parent;
  }
}

}  // namespace shoal::models
