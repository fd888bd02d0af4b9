// Masks of allowed tokens that another thread computes. The other thread computes the mask for the next token while the
// devices compute, so the engine usually does not wait.
//
//   auto feed = std::make_shared<MaskFeed>();
//   options.mask = [feed](auto answer, auto mask) { feed->wait(answer.size(), mask); };
//   feed->put(0, first mask);  ...  after each token: feed->put(number of tokens, mask);
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace shoal::models {

/// Any thread may call any function.
class MaskFeed {
 public:
  explicit MaskFeed(std::chrono::milliseconds longest = std::chrono::seconds(5)) : longest_(longest) {}

  /// Sets the mask for the token after `answered` tokens of the answer. Bit i % 32 of word i / 32 stands for token i.
  void put(size_t answered, std::vector<uint32_t> mask);
  /// Makes wait() throw from now on.
  void fail(const std::string& error);
  /// Copies the mask for the token after `answered` tokens, once it is known. Throws InvalidArgument after fail(), for
  /// a mask of another size, and if the mask is unknown after the longest time.
  void wait(size_t answered, std::span<uint32_t> mask);

 private:
  const std::chrono::milliseconds longest_;
  std::mutex mutex_;  // guards the next members
  std::condition_variable ready_;
  size_t answered_ = 0;
  std::vector<uint32_t> mask_;  // empty: unknown
  std::string error_;
};

}  // namespace shoal::models
