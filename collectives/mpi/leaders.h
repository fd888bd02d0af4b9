// Leaders: the message exchange between the leaders (first ranks) of the nodes. In each call, the first message between
// two nodes contains the call's mark (CallMark, a description of the call). If the data are small, this message also
// contains the data. A small call therefore needs only one message in each direction. The nodes check that their marks
// agree before they use the data. After construction, only the leader's thread may use a Leaders object.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collectives/host/call_mark.h"
#include "collectives/mpi/seating.h"

namespace shoal::collectives::mpi {

/// Bytes to send to, or receive from, another node.
struct Passage {
  bool sends = false;  ///< true: send the bytes; false: receive the bytes
  int node = 0;
  std::byte* data = nullptr;
  size_t size = 0;
};

class Leaders {
 public:
  using Fail = std::function<void(const std::string& message)>;

  /// `limit`: longest wait for another node. `fail` is called if the calls of two nodes disagree. All processes must
  /// call the constructor.
  Leaders(const Seating& seating, ProcessGroup& group, std::chrono::milliseconds limit, Fail fail);
  ~Leaders();

  /// Sends and receives the passages. For each pair of nodes, both leaders must list the passages between the two nodes
  /// in the same order. The first exchange of a call (`is_first`) sends a message between all pairs of nodes, even
  /// without passages. Throws CommError.
  void exchange(std::span<const Passage> passages, const Call& call, bool is_first);

 private:
  struct Letter;

  void exchange_first(std::span<const Passage> passages, const Call& call);
  void await_first_node() const;
  static void write(Letter& letter, std::span<const Passage> passages, int node);
  static void read(const Letter& letter, std::span<const Passage> passages, int node);
  void add(const Passage& passage);
  void send_and_receive(const Call& call);
  int peer(int node) const { return seating_.process_of(seating_.leader(node)); }

  const Seating& seating_;
  ProcessGroup& group_;
  const std::chrono::milliseconds limit_;
  const Fail fail_;
  const int channel_;
  std::vector<Message> messages_;
  std::unique_ptr<Letter[]> outbox_, inbox_;  ///< one letter (first message of a call) per node; null if this process
                                              ///< does not lead its node
};

}  // namespace shoal::collectives::mpi
