// Claims: which thread does which part of a step. A step that is shared is cut into parts, one for each thread of the
// team; each thread takes its own part first, so that weights are read by the same core every time, and then those
// that no thread has begun. Kernels can cut their parts further into pieces, which are given to those who ask first
// (for_shared()): a thread that has lost its core holds up what it is at, and no more.
//
//   part 0  |######## thread 0 ########|        steps are numbered upwards for the whole life of the team, so that a
//   part 1  |##1##|...|== thread 0 ==|          thread that comes late finds every part of its step taken
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

  /// True for one caller for each part of a step. Nothing of the step may be touched before.
  bool claim(int part, uint64_t step) {
    std::atomic<uint64_t>& word = words_[part].value;
    uint64_t now = word.load(std::memory_order_relaxed);
    do {
      if (step_of(now) > step || (step_of(now) == step && (now & kBegun) != 0)) return false;
    } while (!word.compare_exchange_weak(now, (step_of(now) == step ? now : first_of(step)) | kBegun,
                                         std::memory_order_acq_rel, std::memory_order_relaxed));
    return true;
  }
  /// By a thread that has claimed a part of the step: the number of the next piece of `part`, from 0 on, each given out
  /// once. That part itself need not be claimed.
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
    std::atomic<uint64_t> value{0};  ///< latest step, whether the part is claimed, and how many pieces have been taken
  };
  std::unique_ptr<Word[]> words_;
};

/// Items [begin, end) of piece `piece` of a part with `count` of them: half of those that are left, so that threads end
/// together; empty behind the last. Of 13: 7, 3, 2, 1.
inline std::pair<int64_t, int64_t> piece_of(int64_t count, int64_t piece) {
  const int64_t left = count >> std::min<int64_t>(piece, 62);
  return {count - left, count - left / 2};
}

/// Calls f(item) for all of `count` items when every part calls this: each does its share, and then what is left of
/// the shares of the next few parts. Looking at all of them would cost large teams more than it gains.
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
