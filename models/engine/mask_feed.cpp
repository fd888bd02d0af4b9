#include "models/engine/mask_feed.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace shoal::models {

void MaskFeed::put(size_t answered, std::vector<uint32_t> mask) {
  const std::lock_guard lock(mutex_);
  answered_ = answered;
  mask_ = std::move(mask);
  ready_.notify_all();
}

void MaskFeed::fail(const std::string& error) {
  const std::lock_guard lock(mutex_);
  error_ = error;
  ready_.notify_all();
}

void MaskFeed::wait(size_t answered, std::span<uint32_t> mask) {
  std::unique_lock lock(mutex_);
  const bool is_known =
      ready_.wait_for(lock, longest_, [&] { return !error_.empty() || (!mask_.empty() && answered_ == answered); });
  require<InvalidArgument>(error_.empty(), "{}", error_);
  require<InvalidArgument>(is_known, "no mask arrived within {} ms; use a simpler grammar or schema", longest_.count());
  require<InvalidArgument>(mask_.size() == mask.size(), "the mask has {} words, but the vocabulary needs {}",
                           mask_.size(), mask.size());
  std::copy(mask_.begin(), mask_.end(), mask.begin());
}

}  // namespace shoal::models
