// The tokens whose keys, values and states are in the cache, as a tree. A node stands for one full page of tokens after
// the tokens of its ancestors. Nodes are found by a hash of their tokens, and the tokens are compared. So a sequence
// never gets the contents of other tokens.
//
// A node exists as long as some pool has a unit with its contents, or a sequence or a child refers to it.
// Single-threaded.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace shoal::models {

struct PrefixNode {
  PrefixNode* parent = nullptr;  ///< nullptr: a root, which has no tokens
  std::vector<int32_t> tokens;
  std::vector<int32_t> pages;  ///< page of each group, or -1
  int32_t slot = -1;           ///< state after the tokens, or -1
  int32_t users = 0;           ///< number of sequences that end at this node; a root also counts all its sequences
  std::unordered_multimap<uint64_t, std::unique_ptr<PrefixNode>> children = {};  ///< by the hash of their tokens
};

class PrefixTree {
 public:
  explicit PrefixTree(size_t groups) : groups_(groups) {}
  ~PrefixTree();
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;
  /// The root for sequences with this salt. Sequences with different salts share nothing. The caller increments
  /// `users`.
  PrefixNode& root(const std::string& salt);
  /// Returns the child of `parent` with these tokens (one page); nullptr if there is none.
  PrefixNode* find(const PrefixNode& parent, std::span<const int32_t> tokens) const;
  /// Returns the child of `parent` with these tokens. Adds the child if there is none.
  PrefixNode& add(PrefixNode& parent, std::span<const int32_t> tokens);
  /// Removes the node if nothing refers to it. Then does the same with its ancestors.
  void prune(PrefixNode& node);
  /// Number of nodes without the roots.
  int64_t nodes() const { return nodes_; }
  int64_t roots() const { return static_cast<int64_t>(roots_.size()); }

 private:
  size_t groups_;
  int64_t nodes_ = 0;
  std::map<std::string, PrefixNode> roots_;
};

}  // namespace shoal::models
