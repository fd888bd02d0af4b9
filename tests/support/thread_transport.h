// ThreadHub: a transport between "processes" that are threads of one process. Messages are passed through mailboxes.
// The test chooses the host name of each process, so that processes can be on different nodes. A test can also cut off
// a process.
//
//   test::ThreadHub hub({"a", "a", "b"});
//   threads of processes 0 to 2: ProcessGroup group(hub.transport(process), 10s);
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "processes/transport.h"

namespace shoal::test {

class ThreadHub {
 public:
  /// `longest` is the size in bytes of the longest message that the transport accepts.
  explicit ThreadHub(std::vector<std::string> hosts, size_t longest = SIZE_MAX)
      : hosts_(std::move(hosts)), longest_(longest) {}
  ThreadHub(const ThreadHub&) = delete;
  ThreadHub& operator=(const ThreadHub&) = delete;

  int size() const { return static_cast<int>(hosts_.size()); }
  /// The hub must outlive the transport.
  std::unique_ptr<Transport> transport(int process) { return std::make_unique<Line>(*this, process); }
  /// Cuts the process off: later messages to or from this process never arrive, and neither the send nor the receive
  /// finishes.
  void cut_off(int process) {
    const std::lock_guard lock(mutex_);
    cut_off_.insert(process);
  }
  /// Number of messages that were sent but not yet received.
  size_t left_over() const {
    const std::lock_guard lock(mutex_);
    size_t count = 0;
    for (const auto& [key, box] : boxes_) count += box.sent.size();
    return count;
  }

 private:
  struct Handle {
    Message message;
    std::tuple<int, int, int> box;
    bool is_done = false;
  };
  struct Box {
    std::deque<std::vector<std::byte>> sent;
    std::deque<Handle*> waiting;
  };

  class Line final : public Transport {
   public:
    Line(ThreadHub& hub, int own) : hub_(hub), own_(own) {}
    int own() const override { return own_; }
    int size() const override { return hub_.size(); }
    std::string host() const override { return hub_.hosts_[static_cast<size_t>(own_)]; }
    void* start(const Message& message) override { return hub_.start(own_, message); }
    bool finished(void* handle) override { return hub_.finished(static_cast<Handle*>(handle)); }
    void cancel(void* handle) override { hub_.cancel(static_cast<Handle*>(handle)); }
    void close() override {}

   private:
    ThreadHub& hub_;
    const int own_;
  };

  Handle* start(int own, const Message& message) {
    const std::lock_guard lock(mutex_);
    require<CommError>(message.size <= longest_, "a message of {} bytes is too long", message.size);
    const int from = message.sends ? own : message.peer, to = message.sends ? message.peer : own;
    auto handle = std::make_unique<Handle>(Handle{message, {from, to, message.tag}});
    if (cut_off_.contains(from) || cut_off_.contains(to)) return handle.release();
    Box& box = boxes_[handle->box];
    if (message.sends) {
      box.sent.emplace_back(message.data, message.data + message.size);
      handle->is_done = true;
    } else {
      box.waiting.push_back(handle.get());
    }
    while (!box.sent.empty() && !box.waiting.empty()) deliver(box);
    return handle.release();
  }
  static void deliver(Box& box) {
    const std::vector<std::byte> bytes = std::move(box.sent.front());
    Handle& handle = *box.waiting.front();
    box.sent.pop_front(), box.waiting.pop_front();
    require<CommError>(bytes.size() <= handle.message.size, "a message of {} bytes exceeds its receive of {} bytes",
                       bytes.size(), handle.message.size);
    if (!bytes.empty()) std::memcpy(handle.message.data, bytes.data(), bytes.size());
    handle.is_done = true;
  }
  bool finished(Handle* handle) {
    const std::lock_guard lock(mutex_);
    if (!handle->is_done) return false;
    delete handle;
    return true;
  }
  void cancel(Handle* handle) {
    const std::lock_guard lock(mutex_);
    const std::unique_ptr<Handle> owned(handle);
    std::erase(boxes_[handle->box].waiting, handle);
  }

  const std::vector<std::string> hosts_;
  const size_t longest_;
  mutable std::mutex mutex_;
  std::map<std::tuple<int, int, int>, Box> boxes_;  ///< the key is sender, receiver and tag
  std::set<int> cut_off_;
};

}  // namespace shoal::test
