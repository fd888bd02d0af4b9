// Leaders: what the first rank of each node exchanges with those of the others, by messages between their processes.
// The first message between two nodes in a call carries the mark of the call, and small data with it: so the nodes see
// that they agree before anything is taken from it, and small calls need one message each way. Used by the thread of
// the node's leader alone, but for the constructor.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collectives/host/call_mark.h"
#include "collectives/mpi/seating.h"

namespace shoal::collectives::mpi {

/// Bytes on their way from or to another node.
struct Passage {
  bool sends = false;  ///< otherwise they come from there
  int node = 0;
  std::byte* data = nullptr;
  size_t size = 0;
};

class Leaders {
 public:
  using Fail = std::function<void(const std::string& message)>;

  /// `limit`: for the answer of another node. `fail`: what to do with calls that differ. Collective.
  Leaders(const Seating& seating, ProcessGroup& group, std::chrono::milliseconds limit, Fail fail);
  ~Leaders();

  /// To and from each node in the same order as there. `is_first` of the call: between all nodes, also where nothing
  /// passes. Throws CommError.
  void exchange(std::span<const Passage> passages, const Call& call, bool is_first);

 private:
  struct Letter;

  void exchange_first(std::span<const Passage> passages, const Call& call);
  void leave_it_to_the_first() const;
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
  std::unique_ptr<Letter[]> outbox_, inbox_;  ///< one for each node; none where another process leads
};

}  // namespace shoal::collectives::mpi
