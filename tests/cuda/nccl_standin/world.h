// Inside the stand-in for NCCL: ranks and the world in which they meet. A rank's operations run in its stream, one
// launch (a call, or a group of calls) after the other; each gives the world what it sends, then waits for what the
// others send. Each process has a world of its own for an id, and tells the others what its ranks send (lines.h).
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
#include "tests/cuda/nccl_standin/lines.h"

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
/// Adds up in float, and in integers with wrap-around, in the order of the parts.
Bytes sum(const std::vector<Bytes>& parts, DataType type);

/// Ranks made with one id.
struct World {
  World(std::string name, int ranks)
      : id(std::move(name)),
        gpus(static_cast<size_t>(ranks), -1),
        own(static_cast<size_t>(ranks)),
        gone(static_cast<size_t>(ranks)) {}

  /// One collective, until every rank of this process has taken its result.
  struct Meeting {
    std::vector<Bytes> parts;
    std::vector<bool> here;
    Operation like{};
    size_t arrived = 0, done = 0;
  };

  const std::string id;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<int> gpus;        ///< of the ranks that have come, -1 for the others
  std::vector<bool> own, gone;  ///< of this process; finalized
  std::map<uint64_t, Meeting> meetings;
  std::map<std::pair<int, int>, std::deque<Bytes>> letters;  ///< from, to
  std::vector<std::shared_ptr<Line>> lines;
  bool has_joined = false;
  std::atomic<bool> is_lost{false};  ///< a process has gone before its ranks were finalized
  size_t size() const { return gpus.size(); }

  /// A line to a process that has come: it hears of the ranks that are there already.
  void add(const std::shared_ptr<Line>& line);
  /// Of a rank of this process; to the others, too. The mutex is held.
  void give(Parcel parcel);
  /// From another process, and on to the others.
  void take(Parcel parcel, const Line* from);
  void lose(const Line& line);
  /// The meeting, once all have come and those of this process have taken their results. The mutex is held.
  void forget(uint64_t number);
  /// Nothing is to be sent any more. The mutex is held.
  bool is_quiet() const;

 private:
  void apply(Parcel parcel);
  void apply_part(Parcel parcel);
};

/// The world of an id, made by the first rank that asks.
std::shared_ptr<World> world_of(const std::string& id, int ranks);
int live_ranks();

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
  /// Ends it; waits until nothing refers to it any more. What it has not sent is lost, unless it is finalized.
  void end();

  const std::shared_ptr<nccl_standin::World> world;
  const int rank;
  const cuda::emulator::Exported& cuda;
  std::atomic<bool> in_progress{false};
  std::atomic<bool> ended{false};
  std::atomic<bool> is_final{false};
  std::atomic<Result> error{Result::kSuccess};

 private:
  using Meeting = nccl_standin::World::Meeting;

  void run(const std::vector<nccl_standin::Operation>& operations);
  /// The meeting's number; 0 for letters.
  uint64_t send(const nccl_standin::Operation& operation);
  /// Waits for it; false: ended.
  bool receive(const nccl_standin::Operation& operation, uint64_t number, std::unique_lock<std::mutex>& lock);
  void take_result(const nccl_standin::Operation& operation, const Meeting& meeting) const;

  uint64_t meetings_ = 0;                               ///< in the order of the stream
  std::shared_ptr<int> use_ = std::make_shared<int>();  ///< also held by what is queued or captured
  std::thread worker_;
};
