// The processes of one run, on one host or several, and what they tell each other: bytes of host memory, texts, and
// that one of them has failed. Each process has a number; process 0 leads.
//
//   process 0 on host a, process 1 on host b:
//   group.exchange({{.sends = true, .peer = 1, .tag = 7, .data = x, .size = 64}}, "x");    in process 0
//   group.exchange({{.sends = false, .peer = 0, .tag = 7, .data = y, .size = 64}}, "x");   in process 1
//
// Failure. fail() in any process makes every call in all of them throw the same CommError, which names the process and
// its host, and calls what on_failure() was given. So does a process that ends without leave(), is stopped, or cannot
// be reached: a thread of the group listens to the others and says every half a second that this one lives. A failure
// is final; the program ends.
//
// Calls that are collective are made by all processes, in the same order.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "processes/shared_memory.h"
#include "processes/transport.h"

namespace shoal {

class ProcessGroup {
 public:
  /// What is longer goes in pieces of this size: MPI counts bytes with an int.
  static constexpr size_t kLongestPiece = size_t{1} << 30;

  /// `silence`: after how long without a sign of life a process counts as lost. `longest_piece`: bytes, the same in all
  /// processes. Collective. Throws CommError.
  ProcessGroup(std::unique_ptr<Transport> transport, std::chrono::milliseconds silence,
               size_t longest_piece = kLongestPiece);
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int own() const { return own_; }
  int size() const { return static_cast<int>(processes_.size()); }
  const std::string& host(int process) const { return processes_[static_cast<size_t>(process)].host; }
  /// "process 1 (node7)"
  std::string describe(int process) const;
  /// Processes of one node share memory: numbers from 0 on, in the order of their first processes. Two containers of
  /// one host that cannot see each other are two nodes.
  int node(int process) const { return processes_[static_cast<size_t>(process)].node; }
  std::vector<int> processes_of(int node) const;
  int nodes() const;

  /// Starts all messages and waits for them; what others do not answer within `limit` (nullopt: as long as they live)
  /// fails the group. `what`: for that message. Any thread, several at a time. The receiver of a message longer than
  /// a piece says its very size. Throws CommError.
  void exchange(std::span<const Message> messages, std::string_view what,
                std::optional<std::chrono::milliseconds> limit = std::nullopt);
  void send(int peer, int tag, std::span<const std::byte> bytes, std::string_view what);
  void receive(int peer, int tag, std::span<std::byte> bytes, std::string_view what);
  /// The text of each process. Collective.
  std::vector<std::string> gather(std::string_view text, std::string_view what);
  /// `text` of process 0, everywhere. Collective.
  std::string broadcast(std::string text, std::string_view what);

  /// Tags of one's own, kTagsOfChannel from the one returned on. Collective.
  static constexpr int kTagsOfChannel = 16;
  int open_channel() { return next_channel_++ * kTagsOfChannel; }
  /// A tag for one message between this process and `peer`, in either direction: the same in both where both take one
  /// for the same message in the same order.
  int passage_tag(int peer);

  /// Memory that all processes of the node see, zeroed. Collective.
  SharedMemory share(size_t size);

  /// Ends the run: all processes get the message, with the name of this one. The first failure counts.
  void fail(std::string_view message);
  bool has_failed() const { return failed_.load(std::memory_order_acquire); }
  /// Throws CommError if there was a failure.
  void throw_if_failed() const;
  /// What is called, on any thread, with the message of a failure; at once, if there has been one. Must not wait. 0 is
  /// never returned.
  int on_failure(std::function<void(const std::string&)> callback);
  /// It is not called any more; waits while it is being called by another thread.
  void forget(int callback);

  /// The end of a run that went well. Collective; throws CommError.
  void leave();
  /// Every process has called leave(); the transport may still be closing. Any thread.
  bool all_have_left() const { return all_gone_; }
  /// Before this process ends with a failure: waits until the others can know, a moment at most.
  void leave_failed() noexcept;

 private:
  struct Process {
    std::string host;
    int pid = 0;
    int node = 0;
  };
  struct Control;
  struct Line;  ///< to one other process
  using Clock = std::chrono::steady_clock;

  void meet_others();
  void listen();
  void take_news(int peer);
  void say_all(uint32_t kind, std::string_view text);
  void look_after(int peer, std::chrono::nanoseconds passed);
  void take_failure(const std::string& message, bool tells_others);
  std::string late_one() const;

  const std::shared_ptr<Transport> transport_;
  const std::chrono::milliseconds silence_;
  const size_t longest_piece_;
  const int own_;
  std::vector<Process> processes_;
  std::vector<std::unique_ptr<Line>> lines_;  ///< of the listener, but for what their mutexes guard
  std::vector<std::atomic<bool>> has_gone_;   ///< it has said goodbye
  std::atomic<int> next_channel_;
  std::vector<uint32_t> passages_;  ///< so far, with each process

  mutable std::mutex mutex_;
  std::atomic<bool> failed_{false};
  std::string failure_;  ///< guarded by mutex_
  std::atomic<bool> tells_failure_{false};
  std::map<int, std::function<void(const std::string&)>> callbacks_;
  int next_callback_ = 1;
  int called_ = 0;                       ///< the callback that caller_ is in; 0: none
  std::thread::id caller_;               ///< of the callbacks that were there at the failure
  bool leaves_ = false, stops_ = false;  ///< guarded by mutex_
  std::atomic<int> told_{0};             ///< processes that the failure has reached, as far as is known
  std::atomic<bool> all_gone_{false};    ///< all have said goodbye, and know it of this one
  std::condition_variable wake_;
  std::thread listener_;
};

}  // namespace shoal
