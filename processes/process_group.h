// The processes of one run, on one host or several. They exchange bytes of host memory, texts and failures. Each
// process has a number.
//
//   process 0 on host a, process 1 on host b:
//   group.exchange({{.sends = true, .peer = 1, .tag = 7, .data = x, .size = 64}}, "x");    in process 0
//   group.exchange({{.sends = false, .peer = 0, .tag = 7, .data = y, .size = 64}}, "x");   in process 1
//
// Failure: after fail() in any process, every call in all processes throws the same CommError, which names the failed
// process and its host. The group also calls the callbacks registered with on_failure(). A process that ends without
// leave(), is stopped, or cannot be reached also counts as a failure. The listener, a thread of the group, detects
// this: it receives from all other processes and sends them a sign of life every half a second. After a failure the
// group cannot be used again.
//
// Every process must make the collective calls, in the same order.
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
  /// Maximum size in bytes of one MPI message, because MPI counts bytes with an int. Longer messages are sent in
  /// pieces.
  static constexpr size_t kLongestPiece = size_t{1} << 30;

  /// `silence`: a process that sends no sign of life for this long counts as failed. `longest_piece`: in bytes, equal
  /// in all processes. Collective. Throws CommError.
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
  /// Processes of one node share memory. Nodes are numbered from 0 in the order of their first processes. Two
  /// containers on one host that cannot see each other's memory are two nodes.
  int node(int process) const { return processes_[static_cast<size_t>(process)].node; }
  std::vector<int> processes_of(int node) const;
  int nodes() const;

  /// Starts all messages and waits for them. If a peer does not answer within `limit`, the group fails (nullopt: no
  /// limit while the peer lives). `what` names the messages in errors. Several threads may call it concurrently. Sender
  /// and receiver of a message longer than a piece must give the same size. Throws CommError.
  void exchange(std::span<const Message> messages, std::string_view what,
                std::optional<std::chrono::milliseconds> limit = std::nullopt);
  void send(int peer, int tag, std::span<const std::byte> bytes, std::string_view what);
  void receive(int peer, int tag, std::span<std::byte> bytes, std::string_view what);
  /// Returns the text of each process. Collective.
  std::vector<std::string> gather(std::string_view text, std::string_view what);
  /// Returns the `text` of process 0 in every process. Collective.
  std::string broadcast(std::string text, std::string_view what);

  /// Reserves kTagsOfChannel consecutive tags and returns the first. Collective.
  static constexpr int kTagsOfChannel = 16;
  int open_channel() { return next_channel_++ * kTagsOfChannel; }
  /// Reserves a tag for one message between this process and `peer`, in either direction. Both processes get the same
  /// tag if they reserve tags for their messages in the same order.
  int passage_tag(int peer);

  /// Zeroed memory that all processes of the node share. Collective.
  SharedMemory share(size_t size);

  /// Fails the run. All processes get the message, prefixed with the name of this process. Only the first failure
  /// counts.
  void fail(std::string_view message);
  bool has_failed() const { return failed_.load(std::memory_order_acquire); }
  /// Throws CommError if there was a failure.
  void throw_if_failed() const;
  /// Registers a callback, which is called with the message of a failure, on any thread. If the run has already failed,
  /// the callback is called immediately. It must not block. Returns the callback's number, never 0.
  int on_failure(std::function<void(const std::string&)> callback);
  /// Unregisters a callback. Waits while another thread is calling it.
  void remove_callback(int callback);

  /// Ends a successful run. Collective; throws CommError.
  void leave();
  /// Whether every process has called leave(); the transport may still be closing. Any thread.
  bool all_have_left() const { return all_left_; }
  /// Call it before this process exits after a failure. Waits until the failure has reached the other processes, but at
  /// most a second.
  void leave_failed() noexcept;

 private:
  struct Process {
    std::string host;
    int pid = 0;
    int node = 0;
  };
  struct Control;
  struct Line;  ///< the listener's connection to one other process
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
  std::vector<std::unique_ptr<Line>> lines_;  ///< used only by the listener
  std::vector<std::atomic<bool>> has_left_;   ///< per peer: whether it has said goodbye
  std::atomic<int> next_channel_;
  std::vector<uint32_t> passages_;  ///< per peer: number of passage tags reserved

  mutable std::mutex mutex_;
  std::atomic<bool> failed_{false};
  std::string failure_;  ///< guarded by mutex_
  std::atomic<bool> broadcasts_failure_{false};
  std::map<int, std::function<void(const std::string&)>> callbacks_;
  int next_callback_ = 1;
  int called_ = 0;                       ///< the callback that caller_ is running; 0 if none
  std::thread::id caller_;               ///< the thread that runs the callbacks registered before the failure
  bool leaves_ = false, stops_ = false;  ///< guarded by mutex_
  std::atomic<int> told_{0};             ///< number of processes known to have received the failure
  std::atomic<bool> all_left_{false};    ///< all processes have exchanged goodbyes with this process
  std::condition_variable wake_;
  std::thread listener_;
};

}  // namespace shoal
