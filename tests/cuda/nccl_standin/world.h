// Internals of the stand-in for NCCL: ranks, and the World object through which they exchange data. The operations of a
// rank run in its stream. A launch is a call or a group of calls, and launches run one after the other. Each launch
// gives the rank's data to the World object, then waits for the data of the other ranks. Each process has one World
// object per NCCL unique id.
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
  int root = 0;  ///< rank of the root or peer
};

size_t bytes_of(DataType type);

using Bytes = std::vector<std::byte>;

/// Header of a message from one rank to all other ranks. In the file of World, the data follow the header.
struct Header {
  enum What : uint32_t { kHello, kPart, kLetter, kFinal };
  What what = kHello;
  int32_t rank = 0;  ///< rank of the sender
  Kind kind = Kind::kAllReduce;
  DataType type = DataType::kInt8;
  int32_t root = 0;     ///< rank of the root or peer; for kHello, the GPU of the sender
  int32_t process = 0;  ///< process id of the sender; used only in the file
  uint64_t number = 0, count = 0;
  uint64_t size = 0;  ///< size of the data in bytes; used only in the file
};
struct Parcel {
  Header header;
  Bytes data = {};
};

/// The state of all ranks of one NCCL unique id, as this process sees it. Processes append their messages to a file
/// whose path is the id.
struct World {
  World(const std::string& id, int ranks);

  /// One collective. The meeting exists until every rank of this process has taken its result.
  struct Meeting {
    std::vector<Bytes> parts;
    Header like{};
    size_t arrived = 0, done = 0;
  };

  std::mutex mutex;  ///< guards all members below
  std::condition_variable changed;
  std::vector<int> gpus;       ///< GPU of each rank; -1 until the rank has connected
  std::vector<int> processes;  ///< process id of each connected rank
  std::vector<bool> gone;      ///< whether each rank was finalized
  std::map<uint64_t, Meeting> meetings;
  std::map<std::pair<int, int>, std::deque<Bytes>> letters;  ///< data that was sent but not yet received; the key is
                                                             ///< (sender, receiver)
  bool is_lost = false;                                      ///< whether a process died before its ranks were finalized
  size_t size() const { return gpus.size(); }
  /// Whether all ranks have connected.
  bool is_whole() const;

  /// A rank calls this function when all ranks have connected or when the rank has ended. The function unlinks the
  /// file. If all ranks belong to this process, the function also closes the file.
  void settle();
  /// give() delivers the parcel to all ranks. tell_others() sends the parcel to other processes. apply() delivers the
  /// parcel to the ranks of this process.
  void give(const Parcel& parcel);
  void tell_others(const Parcel& parcel);
  void apply(Parcel parcel, int process);
  /// Reads the messages of other processes.
  void look();
  /// Waits until `done` returns true, and reads the messages of other processes meanwhile. The caller holds the mutex.
  void wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& done);
  /// Erases the meeting if all ranks have arrived and the ranks of this process have taken their results.
  void erase(uint64_t number);

 private:
  /// Whether other processes have ranks, or may still add ranks.
  bool is_shared() const;
  void apply_part(Parcel parcel);

  const std::string path_;
  int file_;
  size_t read_ = 0;
};

/// Returns the World object of an NCCL unique id. The first call for an id creates the object.
std::shared_ptr<World> world_of(const std::string& id, int ranks);

}  // namespace shoal::nccl_standin

/// ncclComm, which represents one rank.
struct shoal::collectives::nccl::Comm : std::enable_shared_from_this<Comm> {
  Comm(std::shared_ptr<nccl_standin::World> of, int number, const cuda::emulator::Exported& runtime)
      : world(std::move(of)), rank(number), cuda(runtime) {}

  /// Runs `work` in another thread. The rank is in the state ncclInProgress until `work` returns.
  void start(std::function<Result()> work);
  /// Queues a launch on a stream.
  Result queue(cudaStream_t stream, std::vector<nccl_standin::Operation> operations);
  /// Announces the rank and its GPU, unless a test called never_connect(), and waits for the other ranks.
  Result meet_all(int gpu);
  /// Waits until this rank has sent all messages and the other ranks are also finalized.
  Result finalize();
  /// Ends the rank and waits until no queued or captured work refers to the rank. Messages in flight are lost.
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
  /// Sends this rank's data for the operation. Returns the number of the meeting, or 0 for a send or receive.
  uint64_t send(const nccl_standin::Operation& operation);
  void give(nccl_standin::Parcel parcel);
  /// Waits for the operation's result; returns false if the rank has ended.
  bool receive(const nccl_standin::Operation& operation, uint64_t number, std::unique_lock<std::mutex>& lock);
  void take_result(const nccl_standin::Operation& operation, const Meeting& meeting) const;

  uint64_t meetings_ = 0;                               ///< number of collectives that this rank has started
  int on_way_ = 0;                                      ///< number of delayed messages
  std::shared_ptr<int> use_ = std::make_shared<int>();  ///< queued and captured work hold copies of this pointer
  std::thread worker_;
};
