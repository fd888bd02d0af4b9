// Claims decide which thread runs which part of a step (team.h). A shared step has one part per thread of the team.
// Each thread first claims its own part, so that the same core reads the same weights in every run. The thread then
// claims parts that no thread has begun. A kernel can divide its parts further into pieces. Each piece goes to the
// first thread that asks for a piece (for_shared()). So a thread that has lost its core delays only its current piece.
//
//   part 0  |######## thread 0 ########|
//   part 1  |##1##|...|== thread 0 ==|
//
// Step numbers grow during the whole life of the team. So a thread that reaches a step too late finds that every part
// of the step is claimed.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "devices/cpu/op_kernel.h"
#include "devices/cpu/waiting.h"

namespace shoal::cpu {

class Claims {
 public:
  explicit Claims(int parts) : words_(std::make_unique<Word[]>(static_cast<size_t>(parts))) {}

  /// For each part of a step, returns true to exactly one caller. Only that caller may access the part.
  bool claim(int part, uint64_t step) {
    std::atomic<uint64_t>& word = words_[part].value;
    uint64_t now = word.load(std::memory_order_relaxed);
    do {
      if (step_of(now) > step || (step_of(now) == step && (now & kBegun) != 0)) return false;
    } while (!word.compare_exchange_weak(now, (step_of(now) == step ? now : first_of(step)) | kBegun,
                                         std::memory_order_acq_rel, std::memory_order_relaxed));
    return true;
  }
  /// Returns the number of the next piece of `part`. Numbers start at 0, and each number is returned once. The calling
  /// thread must have claimed some part of the step, not necessarily `part`.
  int64_t next_piece(int part, uint64_t step) {
    std::atomic<uint64_t>& word = words_[part].value;
    for (uint64_t now = word.load(std::memory_order_relaxed); step_of(now) != step;) {
      if (word.compare_exchange_weak(now, first_of(step) + 1, std::memory_order_relaxed)) return 0;
    }
    return static_cast<int64_t>(word.fetch_add(1, std::memory_order_relaxed) & (kBegun - 1));
  }

 private:
  static constexpr int kStepShift = 16;
  static constexpr uint64_t kBegun = 1 << 15;
  static uint64_t step_of(uint64_t word) { return word >> kStepShift; }
  static uint64_t first_of(uint64_t step) { return step << kStepShift; }

  struct alignas(kCacheLine) Word {
    std::atomic<uint64_t> value{0};  ///< contains the latest step, whether the part is claimed, and the number of
                                     ///< pieces taken
  };
  std::unique_ptr<Word[]> words_;
};

/// Returns the items [begin, end) of piece number `piece`, for a part with `count` items. Each piece contains half of
/// the remaining items, rounded up. The pieces shrink, so threads finish at about the same time. Pieces after the last
/// piece are empty. Example: 13 items give pieces of 7, 3, 2 and 1 items.
inline std::pair<int64_t, int64_t> piece_of(int64_t count, int64_t piece) {
  const int64_t left = count >> std::min<int64_t>(piece, 62);
  return {count - left, count - left / 2};
}

/// Calls f(item) once for each of `count` items. The kernel must call this function in every part. The thread that runs
/// a part processes the items of this part, and then helps with the items of the next four parts. In large teams, help
/// for all other parts would cost more time than it would save.
template <class F>
void for_shared(const TeamContext& ctx, int64_t count, F&& f) {
  constexpr int kPartsLookedAt = 5;
  for (int i = 0; i < std::min(ctx.parts, kPartsLookedAt); ++i) {
    TeamContext of = ctx;
    of.part = (ctx.part + i) % ctx.parts;
    const auto [first, last] = share(of, count);
    if (ctx.parts == 1) {
      for (int64_t item = first; item < last; ++item) f(item);
      return;
    }
    for (;;) {
      const int64_t piece = ctx.claims->next_piece(of.part, ctx.step);
      const auto [begin, end] = piece_of(last - first, piece);
      if (begin == end) break;
      for (int64_t item = first + begin; item < first + end; ++item) f(item);
    }
  }
}

}  // namespace shoal::cpu
