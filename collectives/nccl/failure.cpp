#include "collectives/nccl/failure.h"

#include <chrono>
#include <thread>

#include "base/error.h"

namespace shoal::collectives::nccl {
namespace {

/// Waits for `done`, a moment at most.
template <class F>
bool wait_a_moment(std::chrono::milliseconds moment, F&& done) {
  constexpr std::chrono::milliseconds kLook{1};
  for (std::chrono::milliseconds waited{0}; waited < moment && !done(); waited += kLook) {
    std::this_thread::sleep_for(kLook);
  }
  return done();
}

}  // namespace

Failure::Failure(ProcessGroup& group, std::atomic<uint32_t>& speaks)
    : group_(&group), speaks_(&speaks), hearing_(std::make_shared<Hearing>()) {
  hearing_->failure = this;
  callback_ = group.on_failure([hearing = hearing_](const std::string& message) {
    const std::lock_guard lock(hearing->mutex);
    if (hearing->failure != nullptr) hearing->failure->hear(message);
  });
}

Failure::~Failure() {
  if (group_ == nullptr) return;
  group_->forget(callback_);
  const std::lock_guard lock(hearing_->mutex);
  hearing_->failure = nullptr;
}

bool Failure::note(const std::string& message) {
  const std::lock_guard lock(mutex_);
  if (!message_.empty()) return false;
  message_ = message;
  failed_.store(true, std::memory_order_release);
  return true;
}

void Failure::set(const std::string& message) {
  group_ != nullptr ? tell_all(message) : void(note(message));
}

void Failure::set_late(const std::string& message) {
  if (group_ != nullptr) return tell_all(message);
  if (note(message)) report_.say(message);
}

void Failure::tell_all(const std::string& message) {
  constexpr std::chrono::seconds kOthersWords{2};
  if (is_set()) return;
  if (speaks_->exchange(1) != 0 && wait_a_moment(kOthersWords, [this] { return is_set(); })) return;
  try {
    group_->fail(message);
  } catch (const CommError& error) {  // this one, or an earlier one
    hear(error.what());
  }
}

// Every message of a time-out ends with what users can do.
void Failure::hear(const std::string& message) {
  if (note(message) && message.ends_with(kTimeoutRemedy)) report_.say(message);
}

void Failure::let_others_tell() const {
  constexpr std::chrono::seconds kTheirWords{1};
  if (group_ != nullptr) wait_a_moment(kTheirWords, [this] { return is_set(); });
}

void Failure::throw_if_set() const {
  if (!is_set()) return;
  const std::lock_guard lock(mutex_);
  throw CommError(message_);
}

}  // namespace shoal::collectives::nccl
