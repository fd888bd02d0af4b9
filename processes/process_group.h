// The processes of one run, on one host or several hosts. The processes exchange bytes of host memory, texts and
// failures. Each process has a number.
//
//   process 0 on host a, process 1 on host b:
//   group.exchange({{.sends = true, .peer = 1, .tag = 7, .data = x, .size = 64}}, "x");    in process 0
//   group.exchange({{.sends = false, .peer = 0, .tag = 7, .data = y, .size = 64}}, "x");   in process 1
//
// After fail() in any process, every call in every process throws the same CommError. The error names the failed
// process and its host. The group also calls the callbacks that on_failure() has registered. A process that ends
// without leave(), is stopped, or cannot be reached also counts as failed. A thread of the group, the listener, detects
// such processes. The listener receives messages from all other processes, and sends each of them a sign of life every
// half second. After a failure, the group cannot be used again.
//
// Some calls are collective: every process must make these calls, in the same order.
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
  /// Maximum number of bytes in one message of the transport. The limit exists because MPI counts bytes with an int.
  /// Longer messages are sent in pieces.
  static constexpr size_t kLongestPiece = size_t{1} << 30;

  /// Connects the processes. A process that sends no sign of life for the time `silence` counts as failed.
  /// `longest_piece` is the largest piece of a message, in bytes. All processes must give the same `longest_piece`.
  /// This call is collective. Throws CommError.
  ProcessGroup(std::unique_ptr<Transport> transport, std::chrono::milliseconds silence,
               size_t longest_piece = kLongestPiece);
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int own() const { return own_; }
  int size() const { return static_cast<int>(processes_.size()); }
  const std::string& host(int process) const { return processes_[static_cast<size_t>(process)].host; }
  /// Returns the name of a process for messages, such as "process 1 (node7)".
  std::string describe(int process) const;
  /// Returns the number of the node of a process. Processes of one node share memory. Nodes have numbers from 0 on, in
  /// the order of their first processes. Two containers on one host are two nodes if they cannot see each other's
  /// memory.
  int node(int process) const { return processes_[static_cast<size_t>(process)].node; }
  std::vector<int> processes_of(int node) const;
  int nodes() const;

  /// Starts all messages and waits until all have finished. If a peer does not answer within `limit`, the group fails.
  /// If `limit` is nullopt, this call waits as long as the peer lives. `what` names the messages in errors. Several
  /// threads may call this function at the same time. If a message is longer than a piece, its sender and its receiver
  /// must give the same size. Throws CommError.
  void exchange(std::span<const Message> messages, std::string_view what,
                std::optional<std::chrono::milliseconds> limit = std::nullopt);
  void send(int peer, int tag, std::span<const std::byte> bytes, std::string_view what);
  void receive(int peer, int tag, std::span<std::byte> bytes, std::string_view what);
  /// Returns the text of each process. This call is collective.
  std::vector<std::string> gather(std::string_view text, std::string_view what);
  /// Returns the `text` of process 0 in every process. This call is collective.
  std::string broadcast(std::string text, std::string_view what);

  /// Reserves kTagsOfChannel consecutive tags and returns the first tag. This call is collective.
  static constexpr int kTagsOfChannel = 16;
  int open_channel() { return next_channel_++ * kTagsOfChannel; }
  /// Reserves a tag for one message between this process and `peer`, in either direction. Both processes get the same
  /// tag if they reserve the tags of their messages in the same order.
  int passage_tag(int peer);

  /// Returns zeroed memory that all processes of the node share. This call is collective.
  SharedMemory share(size_t size);

  /// Fails the run and throws CommError. All processes get `message` with the name of this process as a prefix. Only
  /// the first failure of a run counts.
  void fail(std::string_view message);
  bool has_failed() const { return failed_.load(std::memory_order_acquire); }
  /// Throws CommError if the run has failed.
  void throw_if_failed() const;
  /// Registers a callback. When the run fails, the thread that finds the failure calls the callback with the message of
  /// the failure. If the run has already failed, this function calls the callback. The callback must not block. Returns
  /// the callback's number, which is never 0.
  int on_failure(std::function<void(const std::string&)> callback);
  /// Unregisters a callback. If another thread is running the callback, this function waits until the callback returns.
  void remove_callback(int callback);

  /// Ends a successful run. This call is collective. Throws CommError.
  void leave();
  /// Whether every process has called leave(). The transport may still be closing. Thread-safe.
  bool all_have_left() const { return all_left_; }
  /// Call this function before this process exits after a failure. The function waits until the failure has reached the
  /// other processes, but at most one second.
  void leave_failed() noexcept;

 private:
  struct Process {
    std::string host;
    int pid = 0;
    int node = 0;
  };
  struct Control;
  struct Line;  ///< connection of the listener to one other process
  using Clock = std::chrono::steady_clock;

  void meet_others();
  void listen();
  void receive_control(int peer);
  void send_control(uint32_t kind, std::string_view text);
  void check_liveness(int peer, std::chrono::nanoseconds passed);
  void take_failure(const std::string& message, bool broadcasts);
  std::string late_process() const;

  const std::shared_ptr<Transport> transport_;
  const std::chrono::milliseconds silence_;
  const size_t longest_piece_;
  const int own_;
  std::vector<Process> processes_;
  std::vector<std::unique_ptr<Line>> lines_;  ///< only the listener uses the connections
  std::vector<std::atomic<bool>> has_left_;   ///< for each peer, whether it has sent a goodbye message
  std::atomic<int> next_channel_;
  std::vector<uint32_t> passages_;  ///< for each peer, number of tags that passage_tag() has reserved

  mutable std::mutex mutex_;
  std::atomic<bool> failed_{false};
  std::string failure_;  ///< guarded by mutex_
  std::atomic<bool> broadcasts_failure_{false};
  std::map<int, std::function<void(const std::string&)>> callbacks_;
  int next_callback_ = 1;
  int called_ = 0;                       ///< number of the callback that the thread `caller_` is running, or 0
  std::thread::id caller_;               ///< the thread that calls the callbacks after the failure
  bool leaves_ = false, stops_ = false;  ///< guarded by mutex_
  std::atomic<int> told_{0};             ///< number of processes that have received the failure
  std::atomic<bool> all_left_{false};    ///< whether all processes have exchanged goodbye messages with this process
  std::condition_variable wake_;
  std::thread listener_;
};

}  // namespace shoal
