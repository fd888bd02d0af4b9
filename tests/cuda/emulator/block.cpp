#include "tests/cuda/emulator/block.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>
#include <string_view>
#include <thread>
#include <utility>

namespace shoal::cuda::emulator {
namespace {

constexpr size_t kPatience = 100;  // number of pauses before a waiting OS thread starts to sleep

std::string text(const uint3& index) {
  return fmt::format("({}, {}, {})", index.x, index.y, index.z);
}

/// Returns the order in which the threads of a block start: forward (default), reverse or random. SHOAL_EMULATED_ORDER
/// contains this order. Results of kernels must not depend on this order.
std::string_view thread_order() {
  const char* value = std::getenv("SHOAL_EMULATED_ORDER");
  return value == nullptr ? "forward" : value;
}

}  // namespace

constinit thread_local Thread* g_thread = nullptr;
constinit thread_local Runner* g_runner = nullptr;

std::string text(const std::source_location& where) {
  return fmt::format("{}:{} ({})", where.file_name(), where.line(), where.function_name());
}

Runner::Runner() {
  g_runner = this;
}

Runner::~Runner() {
  g_runner = nullptr;
}

void Runner::run_block(Launch& launch, uint3 index) {
  launch_ = &launch;
  block_index_ = index;
  goes_on_ = launch.may_go_on();
  moves_ = !goes_on_;
  if (goes_on_) seat_ = launch.take_seat();
  start_block();
  main_.switch_to(fiber_for_unstarted());
  g_thread = nullptr;
  end_block();
}

void Runner::start_block() {
  const dim3& block = launch_->size().block;
  const size_t count = size_t{block.x} * block.y * block.z;
  threads_.assign(count, Thread{});
  warps_.resize((count + 31) / 32);
  for (Warp& warp : warps_) warp.live = 0;
  for (size_t i = 0; i < count; ++i) {
    Thread& thread = threads_[i];
    const auto n = static_cast<unsigned>(i);
    thread.index = {n % block.x, n / block.x % block.y, n / block.x / block.y};
    thread.lane = n % 32;
    thread.warp = &warps_[i / 32];
    thread.warp->live |= 1u << thread.lane;
  }
  order_.resize(count);
  std::iota(order_.begin(), order_.end(), 0u);
  if (const std::string_view order = thread_order(); order == "reverse") {
    std::reverse(order_.begin(), order_.end());
  } else if (order == "random") {
    for (size_t i = count; i > 1; --i) std::swap(order_[i - 1], order_[next_random(random_) % i]);
  }
  started_ = 0;
  live_ = count;
  ready_.resize(count);
  ready_begin_ = ready_count_ = 0;
  stores_.start_block();
  pauses_ = os_pauses_ = 0;
  has_helper_ = lets_next_start_ = false;

  const size_t bytes = launch_->size().shared_bytes;
  if (bytes != shared_bytes_) {
    void* memory = nullptr;
    if (bytes > 0 && posix_memalign(&memory, 128, bytes) != 0) throw std::bad_alloc();
    shared_.reset(memory);
    shared_bytes_ = bytes;
  }
  if (bytes > 0) std::memset(shared_.get(), 0xFF, bytes);
}

void Runner::end_block() {
  stores_.end_block();
  let_next_start();
  if (!goes_on_) {  // the block began early, and none of its threads called wait_for_previous()
    stand();
    go_on();
  }
  seat_.reset();
  launch_->offer_room();
}

Thread* Runner::next_unstarted() {
  return started_ < threads_.size() ? &threads_[order_[started_++]] : nullptr;
}

Fiber& Runner::fiber_for_unstarted() {
  if (idle_.empty()) return *fibers_.emplace_back(std::make_unique<Fiber>(&Runner::fiber_main, this));
  Fiber& fiber = *idle_.back();
  idle_.pop_back();
  return fiber;
}

void Runner::fiber_main(Fiber& self, void* argument) {
  Runner& runner = *static_cast<Runner*>(argument);
  for (;;) {
    while (Thread* const thread = runner.next_unstarted()) {
      thread->fiber = &self;
      g_thread = thread;
      runner.launch_->kernel().run_thread();
      runner.end(*thread);
    }
    if (runner.ready_count_ == 0 && runner.live_ > 0) runner.wait_for_any();
    Fiber* const next = runner.ready_count_ > 0 ? runner.pop_ready().fiber : &runner.main_;
    runner.idle_.push_back(&self);
    self.switch_to(*next);
  }
}

Thread& Runner::pop_ready() {
  Thread& thread = *ready_[ready_begin_];
  if (++ready_begin_ == ready_.size()) ready_begin_ = 0;
  --ready_count_;
  return thread;
}

void Runner::wake(Thread& thread) {
  thread.waits_in = nullptr;
  size_t end = ready_begin_ + ready_count_;
  if (end >= ready_.size()) end -= ready_.size();
  ready_[end] = &thread;
  ++ready_count_;
}

void Runner::yield(Thread& self) {
  Fiber* next = nullptr;
  if (started_ < threads_.size()) {
    next = &fiber_for_unstarted();
  } else {
    if (ready_count_ == 0) wait_for_any();
    Thread& thread = pop_ready();
    if (&thread == &self) return;
    next = thread.fiber;
  }
  self.fiber->switch_to(*next);
  g_thread = &self;
}

void Runner::wait(Thread& self, const char* name, const std::source_location& where) {
  self.waits_in = name;
  self.where = where;
  yield(self);
}

void Runner::spin() {
  if (g_thread == nullptr) return;
  if (!goes_on_) {
    stand();
    if (launch_->may_go_on()) go_on();
  }
  Thread& self = *g_thread;
  const bool alone = ready_count_ == 0 && started_ == threads_.size();
  if (alone || ++pauses_ >= live_) let_others_run();
  wake(self);
  yield(self);
}

void Runner::wait_for_previous(const std::source_location& where) {
  for (PendingCopy& copy : g_thread->copies) copy.read();
  launch_->note_wait_for_previous();
  if (goes_on_) return;
  at_gate_.push_back(g_thread);
  wait(*g_thread, "wait_for_previous", where);
}

void Runner::stand() {
  if (std::exchange(moves_, false)) launch_->note_stand();
}

void Runner::go_on() {
  launch_->wait_to_go_on();
  goes_on_ = true;
  seat_ = launch_->take_seat();
  for (Thread* thread : at_gate_) wake(*thread);
  at_gate_.clear();
}

void Runner::wait_for_any() {
  if (at_gate_.empty()) report_deadlock();
  stores_.deliver_all();
  stand();
  go_on();
}

void Runner::let_next_start() {
  if (!std::exchange(lets_next_start_, true)) launch_->note_let_next_start();
}

void Runner::let_others_run() {
  pauses_ = 0;
  stores_.deliver_some();
  if (!has_helper_) {
    has_helper_ = true;
    launch_->start_helper();
  }
  if (++os_pauses_ < kPatience) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

void Runner::end(Thread& thread) {
  thread.ended = true;
  --live_;
  thread.warp->live &= ~(1u << thread.lane);
  if (thread.warp->live == 0) thread.warp->products.reset();
  for (Meeting& meeting : thread.warp->meetings) {
    if (meeting.arrived != 0 && meeting.arrived == (meeting.mask & thread.warp->live)) complete(meeting, nullptr);
  }
  if (live_ > 0 && at_barrier_.size() == live_) release_barrier(false);
}

int Runner::meet_block(bool vote, const char* name, const std::source_location& where) {
  Thread& self = *g_thread;
  if (!at_barrier_.empty()) check_same_place(self, name, where, *at_barrier_.front());
  if (at_barrier_.size() + 1 == live_) return release_barrier(vote);
  self.vote = vote;
  at_barrier_.push_back(&self);
  wait(self, name, where);
  return self.result;
}

int Runner::release_barrier(bool vote) {
  int votes = vote ? 1 : 0;
  for (const Thread* thread : at_barrier_) votes += thread->vote ? 1 : 0;
  for (Thread* thread : at_barrier_) {
    thread->result = votes;
    wake(*thread);
  }
  at_barrier_.clear();
  return votes;
}

void Runner::meet_warpgroup(const std::source_location& where) {
  constexpr unsigned kThreads = 128;
  constexpr const char* kName = "sync_warpgroup";
  Thread& self = *g_thread;
  std::vector<Thread*>& others = at_warpgroup_barriers_[self.index.x / kThreads];
  if (!others.empty()) check_same_place(self, kName, where, *others.front());
  if (others.size() + 1 < kThreads) {
    others.push_back(&self);
    return wait(self, kName, where);
  }
  for (Thread* thread : others) wake(*thread);
  others.clear();
}

void Runner::meet_lanes(uint32_t mask, void* argument, Meeting::Compute compute, const char* name,
                        const std::source_location& where) {
  Thread& self = *g_thread;
  Meeting& meeting = join_meeting(self, mask, name, where);
  meeting.compute = compute;
  meeting.lanes[self.lane] = &self;
  meeting.arguments[self.lane] = argument;
  meeting.arrived |= 1u << self.lane;
  if (meeting.arrived == (mask & self.warp->live)) {
    complete(meeting, &self);
  } else {
    wait(self, name, where);
  }
}

Meeting& Runner::join_meeting(Thread& self, uint32_t mask, const char* name, const std::source_location& where) {
  if ((mask >> self.lane & 1) == 0) {
    self.where = where;
    die(self, fmt::format("calls {} with mask {:#x}, which lacks the calling lane {}", name, mask, self.lane));
  }
  Meeting* free = nullptr;
  for (Meeting& meeting : self.warp->meetings) {
    if (meeting.arrived == 0) {
      free = &meeting;
    } else if (meeting.mask == mask) {
      check_same_place(self, name, where, *meeting.lanes[std::countr_zero(meeting.arrived)]);
      return meeting;
    }
  }
  if (free == nullptr) free = &self.warp->meetings.emplace_back();
  free->mask = mask;
  free->name = name;
  free->where = where;
  return *free;
}

void Runner::complete(Meeting& meeting, const Thread* running) {
  const uint32_t present = meeting.arrived;
  if (meeting.compute != nullptr) {
    meeting.compute(meeting.arguments, present);
  }
  meeting.arrived = 0;
  for (uint32_t lanes = present; lanes != 0; lanes &= lanes - 1) {
    Thread* const thread = meeting.lanes[std::countr_zero(lanes)];
    if (thread != running) wake(*thread);
  }
}

void Runner::check_same_place(const Thread& self, const char* name, const std::source_location& where,
                              const Thread& other) const {
  // Equal literals in different files may have different addresses. Therefore, the function compares the characters if
  // the addresses differ.
  const auto same = [](const char* a, const char* b) { return a == b || std::strcmp(a, b) == 0; };
  if (where.line() == other.where.line() && where.column() == other.where.column() && same(name, other.waits_in) &&
      same(where.file_name(), other.where.file_name())) {
    return;
  }
  die(self, fmt::format("is in {} at {}, but thread {} is in {} at {}: all threads that meet must be at the same line",
                        name, text(where), text(other.index), other.waits_in, text(other.where)));
}

void Runner::die(const Thread& thread, const std::string& message) const {
  std::fprintf(stderr, "CUDA emulator: kernel launched at %s: block %s, thread %s %s\n",
               text(launch_->size().where).c_str(), text(block_index_).c_str(), text(thread.index).c_str(),
               message.c_str());
  std::abort();
}

void Runner::report_deadlock() const {
  std::map<std::string, std::pair<size_t, const Thread*>> waiting;
  const Thread* first = nullptr;
  for (const Thread& thread : threads_) {
    if (thread.ended || thread.waits_in == nullptr) continue;
    if (first == nullptr) first = &thread;
    auto& [count, example] = waiting[fmt::format("{} at {}", thread.waits_in, text(thread.where))];
    if (count++ == 0) example = &thread;
  }
  std::string message = fmt::format("waits for ever; {} of {} threads are left:", live_, threads_.size());
  for (const auto& [place, group] : waiting) {
    message += fmt::format("\n  {} in {}, the first is {}", group.first, place, text(group.second->index));
  }
  die(*first, message);
}

}  // namespace shoal::cuda::emulator
