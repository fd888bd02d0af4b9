// Lines between the worlds of several processes of one computer that were made with one id. The process that made the
// id listens, as NCCL's does; each other one has a line to it, and what comes over one line goes on over the others. So
// every process learns what all ranks send, in the order in which each of them did.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace shoal::nccl_standin {

struct World;
using Bytes = std::vector<std::byte>;

/// One message between processes.
struct Parcel {
  enum What : uint32_t { kJoin, kHello, kPart, kLetter, kFinal };
  What what = kHello;
  int32_t rank = 0;  ///< that sends it
  int32_t kind = 0, type = 0, root = 0;
  uint64_t number = 0, count = 0;
  Bytes data = {};
};

/// What it has to send is guarded by the world's mutex.
class Line : public std::enable_shared_from_this<Line> {
 public:
  explicit Line(int socket) : socket_(socket) {}
  /// Sends and receives from now on, until the other process has gone.
  void start(std::shared_ptr<World> world);
  /// False: the other process has gone.
  bool read(Parcel& parcel) const;

  std::deque<Parcel> outbox;
  bool is_sending = false;

 private:
  void send_all(World& world);
  bool write(const Parcel& parcel) const;

  const int socket_;
};

/// The beginning of ids that this process makes; others find it by them.
const std::string& own_address();
/// To the process that made the id, with a world of `ranks` ranks; nullptr: it has gone.
std::shared_ptr<Line> join(const std::string& id, size_t ranks);
/// Did this process make it?
bool is_own(const std::string& id);

}  // namespace shoal::nccl_standin
