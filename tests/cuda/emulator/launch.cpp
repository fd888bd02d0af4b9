#include "tests/cuda/emulator/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "tests/cuda/emulator/block.h"

namespace shoal::cuda::emulator {
namespace {

constexpr int kMostHelpers = 256;
constexpr uint64_t kEarlyBlocks = 4;

/// Whether SHOAL_EMULATED_BLOCKS is `reverse`. The default is `forward`.
bool blocks_in_reverse() {
  const char* value = std::getenv("SHOAL_EMULATED_BLOCKS");
  return value != nullptr && std::string_view(value) == "reverse";
}

}  // namespace

Launch::Launch(std::shared_ptr<const Kernel> kernel, Workers& workers)
    : kernel_(std::move(kernel)), workers_(workers), blocks_(uint64_t{size().grid.x} * size().grid.y * size().grid.z) {}

void Launch::begin_early() {
  early_ = std::min(blocks_, kEarlyBlocks);
  next_ = early_;
  moving_ = static_cast<int>(early_);
  may_go_on_ = false;
  for (uint64_t nth = 0; nth < early_; ++nth) {
    start_worker([this, nth] { run_block(nth); });
  }
  while (const int moving = moving_) moving_.wait(moving);
}

void Launch::note_stand() {
  if (--moving_ == 0) moving_.notify_all();
}

void Launch::run() {
  may_go_on_.store(true, std::memory_order_release);
  may_go_on_.notify_all();
#ifdef __SANITIZE_THREAD__
  start_helper();  // the thread sanitizer finds data races between blocks only if the blocks run on two OS threads
#endif
  work();
  {
    std::unique_lock lock(helpers_->mutex);
    helpers_->changed.wait(lock, [&] { return helpers_->running == 0; });
  }
  check_waits();
}

void Launch::work() {
  for (uint64_t nth = next_++; nth < blocks_; nth = next_++) run_block(nth);
}

void Launch::run_block(uint64_t nth) {
  // Blocks at both ends of the grid begin early, because most special cases occur in these blocks.
  const uint64_t first = (early_ + 1) / 2, last = early_ / 2;
  uint64_t block = nth < first ? nth : nth < early_ ? blocks_ - 1 - (nth - first) : nth - last;
  if (blocks_in_reverse()) block = blocks_ - 1 - block;
  const uint64_t row = block / size().grid.x;
  g_runner->run_block(*this,
                      uint3{static_cast<unsigned>(block % size().grid.x), static_cast<unsigned>(row % size().grid.y),
                            static_cast<unsigned>(row / size().grid.y)});
}

void Launch::start_helper() {
  if (next_ < blocks_) start_worker([this] { work(); });
}

void Launch::start_worker(std::function<void()> work) {
  {
    const std::lock_guard lock(helpers_->mutex);
    if (++helpers_->running > kMostHelpers) {
      g_runner->die(*g_thread, fmt::format("more than {} blocks wait for each other", kMostHelpers));
    }
  }
  workers_.start([work = std::move(work), helpers = helpers_] {
    work();
    const std::lock_guard lock(helpers->mutex);
    if (--helpers->running == 0) helpers->changed.notify_all();
  });
}

Seat Launch::take_seat() {
  Seat seat;
  {
    const std::lock_guard lock(held_mutex_);
    if (!held_.empty()) seat = std::move(held_.back()), held_.pop_back();
  }
  if (seat == nullptr) seat = emulator::take_seat(kernel_->gpu, kernel_->room);
  if (++started_ == blocks_) offer_room();
  return seat;
}

void Launch::note_wait_for_previous() {
  if (!waits_for_previous_.load(std::memory_order_relaxed)) waits_for_previous_.store(true, std::memory_order_relaxed);
}

void Launch::note_let_next_start() {
  ++let_next_start_;
  offer_room();
}

void Launch::set_next(Launch* next) {
  next_launch_ = next;
  offer_room();
}

void Launch::offer_room() {
  Launch* const next = next_launch_;
  if (next != nullptr && started_ == blocks_ && let_next_start_ == blocks_) next->hold_room();
}

/// Takes slots for as many blocks as fit on the GPU. These blocks occupy the GPU while they wait.
void Launch::hold_room() {
  if (!residency_counts()) return;
  const std::lock_guard lock(held_mutex_);
  while (held_.size() < blocks_) {
    Seat seat = try_take_seat(kernel_->gpu, kernel_->room);
    if (seat == nullptr) return;
    held_.push_back(std::move(seat));
  }
  // The next kernel may also take slots if all blocks of this kernel have slots and all early blocks called
  // let_next_start().
  Launch* const next = next_launch_;
  if (next != nullptr && !may_go_on() && let_next_start_ == early_) next->hold_room();
}

/// Aborts if a kernel was launched early but never calls wait_for_previous(). Such a kernel may end before its
/// predecessor. The next kernel could then run while the predecessor still runs.
void Launch::check_waits() const {
  if (!size().early || waits_for_previous_) return;
  std::fprintf(stderr, "CUDA emulator: kernel launched early at %s: none of its threads calls wait_for_previous()\n",
               text(size().where).c_str());
  std::abort();
}

}  // namespace shoal::cuda::emulator
