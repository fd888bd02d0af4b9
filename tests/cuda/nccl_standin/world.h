// Inside the stand-in for NCCL: ranks and the world in which they meet. A rank's operations run in its stream, one
// launch (a call, or a group of calls) after the other; each gives the world what it sends, then waits for what the
// others send. Each process has a world of its own for an id.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collectives/nccl/nccl_api.h"
#include "tests/cuda/emulator/exported.h"

namespace shoal::nccl_standin {

using collectives::nccl::DataType;
using collectives::nccl::Result;

enum class Kind { kAllReduce, kBroadcast, kReduce, kAllGather, kReduceScatter, kSend, kRecv };

struct Operation {
  Kind kind;
  const void* in = nullptr;
  void* out = nullptr;
  size_t count = 0;
  DataType type = DataType::kInt8;
  int root = 0;  ///< or the peer
};

size_t bytes_of(DataType type);

using Bytes = std::vector<std::byte>;

/// Something that a rank tells all others: a header and data, which follow each other in the file.
struct Header {
  enum What : uint32_t { kHello, kPart, kLetter, kFinal };
  What what = kHello;
  int32_t rank = 0;  ///< that sends it
  Kind kind = Kind::kAllReduce;
  DataType type = DataType::kInt8;
  int32_t root = 0;     ///< or the peer, or the GPU of a hello
  int32_t process = 0;  ///< in the file
  uint64_t number = 0, count = 0;
  uint64_t size = 0;  ///< of the data, in the file
};
struct Parcel {
  Header header;
  Bytes data = {};
};

/// Ranks made with one id, as this process sees them. Processes append their parcels to the file that the id names.
struct World {
  World(const std::string& id, int ranks);

  /// One collective, until every rank of this process has taken its result.
  struct Meeting {
    std::vector<Bytes> parts;
    Header like{};
    size_t arrived = 0, done = 0;
  };

  std::mutex mutex;  ///< of all that follows
  std::condition_variable changed;
  std::vector<int> gpus;       ///< of the ranks that have come, -1 for the others
  std::vector<int> processes;  ///< of the ranks that have come
  std::vector<bool> gone;      ///< finalized
  std::map<uint64_t, Meeting> meetings;
  std::map<std::pair<int, int>, std::deque<Bytes>> letters;  ///< from, to
  bool is_lost = false;                                      ///< a process has gone before its ranks were finalized
  size_t size() const { return gpus.size(); }
  /// Have all ranks come?
  bool is_whole() const;

  /// A rank has met the others, or has ended: the file needs no name any more, and none if all are of this process.
  void settle();
  /// From a rank of this process to all; to other processes; to this one.
  void give(const Parcel& parcel);
  void tell_others(const Parcel& parcel);
  void apply(Parcel parcel, int process);
  /// Takes the parcels of other processes.
  void look();
  /// Waits with the mutex until `done` and looks meanwhile.
  void wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& done);
  /// The meeting, once all have come and the ranks of this process have taken their results.
  void forget(uint64_t number);

 private:
  /// Are there ranks of other processes, or may there be?
  bool is_shared() const;
  void apply_part(Parcel parcel);

  const std::string path_;
  int file_;
  size_t read_ = 0;
};

/// The world of an id, made by the first rank that asks.
std::shared_ptr<World> world_of(const std::string& id, int ranks);

}  // namespace shoal::nccl_standin

/// ncclComm: a rank.
struct shoal::collectives::nccl::Comm : std::enable_shared_from_this<Comm> {
  Comm(std::shared_ptr<nccl_standin::World> of, int number, const cuda::emulator::Exported& runtime)
      : world(std::move(of)), rank(number), cuda(runtime) {}

  /// Does `work` in another thread; the rank is in progress until then.
  void start(std::function<Result()> work);
  /// Queues a launch.
  Result queue(cudaStream_t stream, std::vector<nccl_standin::Operation> operations);
  /// Comes to the world with a GPU, unless it is never to connect, and waits for the other ranks.
  Result meet_all(int gpu);
  /// Waits until everything has been sent and the other ranks are as far.
  Result finalize();
  /// Ends it; waits until nothing refers to it any more. Its parcels on their way are lost.
  void end();

  const std::shared_ptr<nccl_standin::World> world;
  const int rank;
  const cuda::emulator::Exported& cuda;
  std::atomic<bool> in_progress{false};
  std::atomic<bool> ended{false};
  std::atomic<Result> error{Result::kSuccess};

 private:
  using Meeting = nccl_standin::World::Meeting;

  void run(const std::vector<nccl_standin::Operation>& operations);
  /// The meeting's number; 0 for letters.
  uint64_t send(const nccl_standin::Operation& operation);
  void give(nccl_standin::Parcel parcel);
  /// Waits for it; false: ended.
  bool receive(const nccl_standin::Operation& operation, uint64_t number, std::unique_lock<std::mutex>& lock);
  void take_result(const nccl_standin::Operation& operation, const Meeting& meeting) const;

  uint64_t meetings_ = 0;                               ///< in the order of the stream
  int on_way_ = 0;                                      ///< parcels that are delayed
  std::shared_ptr<int> use_ = std::make_shared<int>();  ///< also held by what is queued or captured
  std::thread worker_;
};
