#include "models/engine/cache_memory.h"

#include <algorithm>

#include "base/error.h"

namespace shoal::models {

CacheMemory::CacheMemory(const KvCache& cache)
    : page_(cache.page),
      groups_(cache.groups),
      slots_(std::any_of(cache.specs.begin(), cache.specs.end(),
                         [](const CacheTensor& spec) { return spec.part == CachePart::kConv; })
                 ? cache.slots
                 : 0),
      tree_(cache.groups.size()) {
  for (const PageGroup& group : groups_) pages_.emplace_back(group.pages);
}

int64_t CacheMemory::most_tokens() const {
  int64_t most = INT32_MAX;
  for (size_t group = 0; group < groups_.size(); ++group) {
    if (groups_[group].window == 0) most = std::min(most, pages_[group].size() * page_);
  }
  return most;
}

int32_t CacheMemory::take_page(size_t group) {
  const auto [page, lost] = pages_[group].take();
  if (lost != nullptr) {
    lost->pages[group] = -1;
    tree_.prune(*lost);
  }
  return page;
}

int32_t CacheMemory::take_slot() {
  const auto [slot, lost] = slots_.take();
  if (lost != nullptr) {
    lost->slot = -1;
    tree_.prune(*lost);
  }
  return slot;
}

void CacheMemory::forget_slot(PrefixNode& node) {
  slots_.label(node.slot, nullptr);
  node.slot = -1;
}

SequenceMemory::SequenceMemory(CacheMemory& cache, const std::string& salt)
    : cache_(cache),
      root_(cache.tree_.root(salt)),
      last_(&root_),
      pages_(cache.groups_.size()),
      first_(cache.groups_.size(), 0) {
  root_.users += 2;  // as root_ and as last_
}

SequenceMemory::~SequenceMemory() {
  release();
  root_.users -= 2;
  cache_.tree_.prune(root_);
}

void SequenceMemory::move_to(PrefixNode& node) {
  PrefixNode* before = last_;
  ++node.users;
  --before->users;
  last_ = &node;
  cache_.tree_.prune(*before);
}

int64_t SequenceMemory::attach(std::span<const int32_t> tokens, int64_t limit) {
  check(computed_ == 0 && reads_ < 0, "only an empty sequence can take a cached beginning");
  const auto page = static_cast<size_t>(cache_.page_);
  const size_t groups = cache_.groups_.size();
  std::vector<PrefixNode*> path;
  // For each group, the number of consecutive nodes at the end of the path that have a page.
  std::vector<size_t> run(groups, 0);
  size_t best = 0;
  for (PrefixNode* at = &root_; (path.size() + 1) * page <= std::min(tokens.size(), static_cast<size_t>(limit));) {
    at = cache_.tree_.find(*at, tokens.subspan(path.size() * page, page));
    if (at == nullptr) break;
    path.push_back(at);
    bool is_whole = !cache_.has_states() || at->slot >= 0;
    bool is_broken = false;
    for (size_t group = 0; group < groups; ++group) {
      run[group] = at->pages[group] >= 0 ? run[group] + 1 : 0;
      const int64_t window = cache_.groups_[group].window;
      if (window == 0) is_broken |= run[group] < path.size();
      // The next token sees window - 1 tokens before it.
      const size_t needed =
          window == 0 ? path.size() : std::min(path.size(), (static_cast<size_t>(window) + page - 2) / page);
      is_whole &= run[group] >= needed;
    }
    if (is_broken) {
      path.pop_back();
      break;
    }
    if (is_whole) best = path.size();
  }
  if (best > 0) {
    for (size_t group = 0; group < groups; ++group) {
      const auto window = static_cast<size_t>(cache_.groups_[group].window);
      first_[group] = window == 0 || best * page < window ? 0 : (best * page - window + 1) / page;
      pages_[group].assign(best, -1);
      for (size_t i = first_[group]; i < best; ++i) {
        pages_[group][i] = path[i]->pages[group];
        cache_.pages_[group].hold(pages_[group][i]);
      }
    }
    if (cache_.has_states()) {
      reads_ = path[best - 1]->slot;
      cache_.slots_.hold(reads_);
    }
    move_to(*path[best - 1]);
  }
  published_ = static_cast<int64_t>(best);
  computed_ = published_ * cache_.page_;
  return static_cast<int64_t>(path.size() * page);
}

std::vector<int64_t> SequenceMemory::pages_for(int64_t to) const {
  const int64_t pages = (to + cache_.page_ - 1) / cache_.page_;
  std::vector<int64_t> more;
  for (const auto& list : pages_) more.push_back(std::max<int64_t>(0, pages - static_cast<int64_t>(list.size())));
  return more;
}

int64_t SequenceMemory::reach() const {
  int64_t pages = INT32_MAX / cache_.page_;
  for (size_t group = 0; group < pages_.size(); ++group) {
    pages = std::min(pages, static_cast<int64_t>(pages_[group].size()) + cache_.pages_[group].free_units());
  }
  return pages * cache_.page_;
}

bool SequenceMemory::extend(int64_t to, bool keeps_old) {
  const std::vector<int64_t> more = pages_for(to);
  for (size_t group = 0; group < more.size(); ++group) {
    if (more[group] > cache_.pages_[group].free_units()) return false;
  }
  if (cache_.has_states()) {
    const bool is_own = reads_ >= 0 && cache_.slots_.references(reads_) == 1;
    if (is_own && !keeps_old && cache_.slots_.label_of(reads_) == nullptr) {
      writes_ = reads_;
    } else if (cache_.slots_.free_units() > 0) {
      writes_ = cache_.take_slot();
    } else if (is_own && !keeps_old) {
      cache_.forget_slot(*cache_.slots_.label_of(reads_));
      writes_ = reads_;
    } else {
      return false;
    }
  }
  for (size_t group = 0; group < more.size(); ++group) {
    for (int64_t i = 0; i < more[group]; ++i) pages_[group].push_back(cache_.take_page(group));
  }
  return true;
}

BatchSequence SequenceMemory::batch_sequence() const {
  return {{pages_.begin(), pages_.end()}, reads_, writes_};
}

void SequenceMemory::advance(std::span<const int32_t> tokens, int64_t to, Keep keep) {
  computed_ = to;
  if (writes_ >= 0) {
    if (reads_ >= 0 && reads_ != writes_) cache_.slots_.drop(reads_);
    reads_ = writes_;
    writes_ = -1;
  }
  publish(tokens);
  drop_behind_windows();
  if (keep != Keep::kNothing) keep_state(keep);
}

void SequenceMemory::discard() {
  if (writes_ >= 0 && writes_ != reads_) cache_.slots_.drop(writes_);
  writes_ = -1;
}

/// Adds the full pages to the tree. If the tree already has a page with the same contents, the sequence uses that page.
void SequenceMemory::publish(std::span<const int32_t> tokens) {
  for (; (published_ + 1) * cache_.page_ <= computed_; ++published_) {
    const auto i = static_cast<size_t>(published_), page = static_cast<size_t>(cache_.page_);
    PrefixNode& node = cache_.tree_.add(*last_, tokens.subspan(i * page, page));
    for (size_t group = 0; group < pages_.size(); ++group) {
      if (i < first_[group]) continue;
      int32_t& own = pages_[group][i];
      if (node.pages[group] >= 0 && node.pages[group] != own) {
        cache_.pages_[group].hold(node.pages[group]);
        cache_.pages_[group].drop(own);
        own = node.pages[group];
      } else if (node.pages[group] < 0) {
        node.pages[group] = own;
        cache_.pages_[group].label(own, &node);
      }
    }
    move_to(node);
  }
}

void SequenceMemory::drop_behind_windows() {
  for (size_t group = 0; group < pages_.size(); ++group) {
    const int64_t window = cache_.groups_[group].window;
    if (window == 0) continue;
    const int64_t needed = std::max<int64_t>(0, computed_ - window + 1) / cache_.page_;
    for (; static_cast<int64_t>(first_[group]) < needed; ++first_[group]) {
      int32_t& page = pages_[group][first_[group]];
      if (page >= 0) cache_.pages_[group].drop(page);
      page = -1;
    }
  }
}

void SequenceMemory::keep_state(Keep keep) {
  if (reads_ < 0 || computed_ == 0 || computed_ % cache_.page_ != 0) return;
  PrefixNode* const before = keep == Keep::kStateInsteadOfLast ? rolling_ : nullptr;
  if (before != nullptr && before != last_ && before->slot == rolling_slot_) cache_.forget_slot(*before);
  rolling_ = nullptr;
  if (last_->slot >= 0) return;  // another sequence has kept this state
  last_->slot = reads_;
  cache_.slots_.label(reads_, last_);
  if (keep == Keep::kStateInsteadOfLast) rolling_ = last_, rolling_slot_ = reads_;
}

void SequenceMemory::release() {
  discard();
  if (reads_ >= 0) cache_.slots_.drop(reads_);
  reads_ = -1;
  // The last pages become free first, so take() takes the end of a chain before its beginning.
  for (size_t group = 0; group < pages_.size(); ++group) {
    for (size_t i = pages_[group].size(); i > first_[group]; --i) cache_.pages_[group].drop(pages_[group][i - 1]);
    pages_[group].clear();
    first_[group] = 0;
  }
  move_to(root_);
  rolling_ = nullptr;
  computed_ = published_ = 0;
}

}  // namespace shoal::models
