#include "collectives/nccl/nccl_communicator.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "base/error.h"
#include "collectives/nccl/arrivals.h"
#include "collectives/nccl/failure.h"
#include "collectives/nccl/meeting.h"
#include "collectives/nccl/nccl_api.h"
#include "devices/cuda/cuda_api.h"
#include "devices/cuda/cuda_backend.h"
#include "processes/remote_device.h"

namespace shoal::collectives::nccl {
namespace {

using Clock = std::chrono::steady_clock;
/// Longest wait for NCCL to abort a rank. NCCL needs more time than this only if a CUDA graph refers to the rank.
constexpr auto kEndTime = std::chrono::seconds(1);
/// Longest wait of a destructor for ranks of other processes.
constexpr auto kFinalTime = std::chrono::seconds(2);
using cuda::CudaBackend;

/// NCCL's view of an array of dtype `dtype`. If NCCL does not support the dtype, the elements are bytes.
struct Elements {
  DType dtype;
  DataType type = DataType::kInt8;  // for unsupported dtypes: elements are bytes, which are moved but never added
  size_t bytes = 1;                 ///< size in bytes of one NCCL element

  explicit Elements(DType of) : dtype(of) {
    if (of == DType::kF32) type = DataType::kFloat32, bytes = 4;
    if (of == DType::kF16) type = DataType::kFloat16, bytes = 2;
    if (of == DType::kBF16) type = DataType::kBFloat16, bytes = 2;
    if (of == DType::kI32) type = DataType::kInt32, bytes = 4;
  }
  size_t count(int64_t elements) const { return bytes_for(dtype, elements) / bytes; }
};

/// Waits while the condition is true, but at most for the time `most`. Tests the condition every 50 microseconds.
template <class Condition>
void wait_while(Clock::duration most, const Condition& condition) {
  const Clock::time_point end = Clock::now() + most;
  while (condition() && Clock::now() < end) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

class NcclCommunicator;

/// Description of a call for error messages. The Call object may be destroyed before the message is written.
struct Name {
  Collective kind = Collective::kAllReduce;
  std::string what;
};

/// State of one rank of this process. The launcher's thread uses this state. Threads of other ranks use only `arrived`,
/// and the thread `aborting` writes only `ended`.
struct Rank {
  static constexpr uint64_t kNames = 64;

  NcclCommunicator& owner;
  const int rank;
  CudaBackend& backend;
  std::atomic<uint64_t>& arrived;  ///< number of calls that the rank has begun
  Comm* comm = nullptr;
  std::thread aborting = {};            ///< runs NCCL's abort of `comm` after a failure
  std::atomic<bool> ended{false};       ///< whether the abort has finished
  std::array<Name, kNames> names = {};  ///< names of the latest calls; call n has index n % kNames
  const Name& name(uint64_t number) const { return names[number % kNames]; }
};

class NcclCommunicator final : public Communicator {
 public:
  /// With several processes, `id` has a value, and all processes must call the constructor. With one process, `id` is
  /// empty.
  NcclCommunicator(std::span<Backend* const> backends, const Options& options, std::optional<UniqueId> id = {})
      : api_(api()),
        timeout_(options.timeout),
        spans_(options.processes != nullptr),
        names_(names_of(devices_of(backends), options.processes)),
        id_(id),
        arrivals_(devices_of(backends), options.processes),
        failure_(options.processes) {
    take_in(backends);
  }
  ~NcclCommunicator() override {
    for (Rank* rank : own_) rank->backend.launcher().remove_watch(this);
    if (spans_ && !failure_.is_set()) finish_sending();
    // Aborts NCCL's communicators instead of destroying them, because ncclCommDestroy waits for the peers. After the
    // aborts, no rank can queue calls.
    for (Rank* rank : own_) abandon(*rank);
    for (Rank* rank : own_) {
      if (rank->aborting.joinable()) rank->aborting.join();
    }
  }

  std::string_view name() const override { return "nccl"; }
  int size() const override { return static_cast<int>(ranks_.size()); }
  bool can_be_recorded() const override { return true; }
  /// NCCL does not report how much memory it uses.
  size_t buffer_bytes(int) const override { return 0; }
  void abort(std::string_view reason) override { failure_.set(fmt::format("[nccl communicator] aborted: {}", reason)); }

  void enqueue(int rank, const Call& call) override {
    validate(rank, call);
    const auto run = [](void* object, const void* argument, const cuda::LaunchContext& context, bool failed) {
      Rank& own = *static_cast<Rank*>(object);
      const Call& queued = *static_cast<const Call*>(argument);
      describe_span(queued);
      own.owner.run(own, queued, context, failed);
    };
    Rank* const own = ranks_[static_cast<size_t>(rank)].get();
    require<InvalidArgument>(own != nullptr, "[{}] {} belongs to another process", text_of(call.kind, call.what),
                             text_of(rank));
    own->backend.push_launch({run, own, &call});
  }

 private:
  static std::string text_of(Collective kind, std::string_view what) {
    return fmt::format("{} {}", name_of(kind), what);
  }
  std::string text_of(int rank) const { return fmt::format("rank {} ({})", rank, names_[static_cast<size_t>(rank)]); }
  std::string text_of(const Rank& rank) const { return text_of(rank.rank); }
  /// Returns the names of the ranks, for example "rank 1 (CUDA1), 3 (CUDA3)".
  std::string text_of(std::span<const int> ranks) const {
    std::string text;
    for (const int rank : ranks) {
      text += fmt::format("{}{} ({})", text.empty() ? "rank " : ", ", rank, names_[static_cast<size_t>(rank)]);
    }
    return text;
  }

  void take_in(std::span<Backend* const> backends) {
    for (Backend* backend : backends) {
      const auto number = static_cast<int>(ranks_.size());
      ranks_.emplace_back();
      if (is_remote(backend->device())) continue;
      ranks_.back().reset(new Rank{*this, number, dynamic_cast<CudaBackend&>(*backend), arrivals_.of(number)});
      own_.push_back(ranks_.back().get());
    }
    for (Rank* rank : own_) {
      rank->backend.launcher().add_watch(
          this, {[this, rank](std::chrono::nanoseconds stuck) { poll(*rank, stuck, "finish"); },
                 [this] { failure_.throw_if_set(); }});
    }
  }

  void run(Rank& rank, const Call& call, const cuda::LaunchContext& context, bool failed) {
    if (failed) {
      // The stream already stores an earlier error; leave() only notifies the peers.
      return leave(rank, call, "earlier work on this rank failed");
    }
    failure_.throw_if_set();
    const uint64_t number = rank.arrived;
    rank.names[number % Rank::kNames] = {call.kind, call.what};
    rank.arrived = number + 1;
    try {
      if (rank.comm == nullptr) connect(rank, call, context);
      queue(rank, call, context.stream);
      settle(rank, "queue the call");
    } catch (const CommError&) {
      throw;
    } catch (const std::exception& error) {  // an error of this rank, not of a peer
      leave(rank, call, error.what());
      throw;
    }
  }

  /// Fails the communicator, so that the peers do not wait for this rank.
  void leave(Rank& rank, const Call& call, std::string_view why) {
    failure_.set(fmt::format("[{}] {} cannot take part: {}", text_of(call.kind, call.what), text_of(rank), why));
    abandon(rank);
  }

  void connect(Rank& rank, const Call& call, const cuda::LaunchContext& context) {
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    cudaStreamIsCapturing(context.stream, &capturing);
    if (capturing != cudaStreamCaptureStatusNone) {
      fail<DeviceError>("[{}] ranks cannot connect during a CUDA graph capture; run the call once before the capture",
                        text_of(call.kind, call.what));
    }
    Config config;
    Comm* comm = nullptr;
    const Result status = api_.comm_init_rank_config(&comm, size(), mesh_id(), rank.rank, &config);
    check_status(status, "connect the ranks");
    rank.comm = comm;
    settle(rank, "connect to the other ranks");
  }

  /// In a single process, the first rank that needs the id creates the id.
  const UniqueId& mesh_id() {
    const std::lock_guard lock(id_mutex_);
    if (!id_) {
      UniqueId made;
      check_status(api_.get_unique_id(&made), "create an NCCL id for the ranks");
      id_ = made;
    }
    return *id_;
  }

  /// Waits until NCCL has queued the latest call on the GPU. Meanwhile the other ranks queue the same call.
  void settle(Rank& rank, std::string_view what) {
    cuda::WaitingTime waiting;
    for (;;) {
      Result state = Result::kSuccess;
      check_status(api_.comm_get_async_error(rank.comm, &state), what);
      if (state == Result::kSuccess) return;
      poll(rank, waiting.so_far(), what);
      std::this_thread::yield();
    }
  }

  /// Stops the rank after a failure of NCCL, after a failure of another rank, or if the rank has waited too long.
  void poll(Rank& rank, std::chrono::nanoseconds stuck, std::string_view what) {
    if (rank.comm == nullptr)
      return;  // the stream has no work of this rank; the failure was already reported, or the next call will report it
    if (failure_.is_set()) stop(rank);
    Result state = Result::kSuccess;
    api_.comm_get_async_error(rank.comm, &state);
    if (state != Result::kSuccess && state != Result::kInProgress) {
      // Another process may report the cause more precisely than NCCL, so this rank waits for such a report.
      if (spans_ && state == Result::kRemoteError) wait_while(kEndTime, [&] { return !failure_.is_set(); });
      const Name& latest = rank.name(rank.arrived - 1);
      failure_.set(fmt::format("[{}] {} cannot {}: {}", text_of(latest.kind, latest.what), text_of(rank), what,
                               api_.get_error_string(state)));
      stop(rank);
    }
    if (stuck > timeout_) look_for_missing(rank, stuck, what);
  }

  /// Reports the missing ranks if this rank knows them. Only the first report counts, so ranks with less precise
  /// reports wait longer:
  /// - With several processes, all ranks wait longer, because the process group itself reports an unresponsive process.
  /// - A rank waits longer if no rank of its node is missing, because a rank on the node of the missing rank can name
  ///   the missing rank.
  /// - On each node, all waiting ranks except the first waiting rank wait longer.
  void look_for_missing(Rank& rank, std::chrono::nanoseconds stuck, std::string_view what) {
    const std::vector<int> far = arrivals_.ranks(false);
    std::chrono::nanoseconds patience = spans_ ? timeout_ + timeout_ / 2 : timeout_;
    if (!far.empty() && arrivals_.behind(rank.arrived).empty()) patience += timeout_ / 2 + std::chrono::seconds(1);
    if (!arrivals_.is_first(rank.rank, rank.arrived)) patience += std::chrono::seconds(1);
    if (stuck < patience) return;
    failure_.set(describe_missing(rank, std::chrono::duration<double>(stuck).count(), what, far));
    stop(rank);
  }

  /// The message names the ranks that have begun fewer calls than this rank, and the first call that these ranks
  /// missed. Calls in a replayed recording are not counted, so the message names no rank for these calls.
  std::string describe_missing(const Rank& rank, double waited, std::string_view what, std::span<const int> far) const {
    const uint64_t own = rank.arrived;
    const std::vector<int> behind = arrivals_.behind(own);
    const uint64_t first = behind.empty() ? own : arrivals_.of(behind[0]).load();
    if (first >= own || own - first > Rank::kNames) {
      const Name& latest = rank.name(own - 1);
      const std::string who = far.empty() ? "another rank" : "another rank, such as " + text_of(far) + ",";
      return fmt::format("[{}] {} could not {} within {:.1f} s, because {} is late in this or an earlier call; {}",
                         text_of(latest.kind, latest.what), text_of(rank), what, waited, who, kTimeoutRemedy);
    }
    const Name& missed = rank.name(first);
    return fmt::format("[{}] {} of {} did not arrive within {:.1f} s, according to {}; {}",
                       text_of(missed.kind, missed.what), text_of(behind), size(), waited, text_of(rank),
                       kTimeoutRemedy);
  }

  /// Ranks of other processes may still need data of the last call. NCCL sends these data and reports when all ranks
  /// have finished. finish_sending() waits for late ranks, but at most for kFinalTime.
  void finish_sending() {
    for (Rank* rank : own_) {
      if (rank->comm != nullptr) api_.comm_finalize(rank->comm);
    }
    wait_while(kFinalTime, [&] {
      return !failure_.is_set() && std::any_of(own_.begin(), own_.end(), [&](const Rank* rank) {
        Result state = Result::kSuccess;
        return rank->comm != nullptr && api_.comm_get_async_error(rank->comm, &state) == Result::kSuccess &&
               state == Result::kInProgress;
      });
    });
  }

  /// Aborts the rank's work on its GPU and throws the failure.
  [[noreturn]] void stop(Rank& rank) {
    abandon(rank);
    failure_.throw_if_set();
    fail<InternalError>("internal error: the rank was stopped, but no failure is stored");
  }

  /// Makes NCCL abort the rank's communicator. NCCL stops its kernels, then waits until no CUDA graph refers to the
  /// rank. This wait can be long, so a separate thread waits.
  void abandon(Rank& rank) {
    Comm* comm = std::exchange(rank.comm, nullptr);
    if (comm == nullptr) return;
    rank.aborting = std::thread([this, comm, &rank] {
      api_.comm_abort(comm);
      rank.ended = true;
    });
    // Waits a limited time for the abort before the launcher continues.
    wait_while(kEndTime, [&] { return !rank.ended; });
  }

  void check_status(Result status, std::string_view what) const {
    if (status == Result::kSuccess || status == Result::kInProgress) return;
    fail<DeviceError>("[nccl] {} cannot {}: {}", api_.file, what, api_.get_error_string(status));
  }

  void queue(Rank& rank, const Call& call, cudaStream_t stream) {
    using Queue = void (NcclCommunicator::*)(Rank&, const Call&, cudaStream_t);
    constexpr Queue kCalls[] = {
#define SHOAL_COLLECTIVE(id, name, ...) &NcclCommunicator::name,
#include "graph/collectives.def"
    };
    (this->*kCalls[static_cast<size_t>(call.kind)])(rank, call, stream);
  }

  void all_reduce(Rank& rank, const Call& call, cudaStream_t stream) {
    const Elements type(call.dtype);
    const size_t n = type.count(call.count);
    if (n > 0)
      check_status(api_.all_reduce(call.in, call.out, n, type.type, RedOp::kSum, rank.comm, stream), "all_reduce");
  }

  void broadcast(Rank& rank, const Call& call, cudaStream_t stream) {
    const Elements type(call.dtype);
    const size_t n = type.count(call.count);
    const void* in = rank.rank == call.root ? call.in : call.out;
    if (n > 0) check_status(api_.broadcast(in, call.out, n, type.type, call.root, rank.comm, stream), "broadcast");
  }

  /// If all parts have the same size, calls whole(number of elements in one part). Otherwise calls part(root, number of
  /// elements, offset of the part in bytes) for each part. All calls of part() are in one NCCL group.
  template <class Whole, class PartOf>
  void for_parts(const Call& call, const Elements& type, const Whole& whole, const PartOf& part) {
    const std::span<const int64_t> counts = call.counts;
    if (std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end()) {
      const size_t n = type.count(counts[0]);
      if (n > 0) check_status(whole(n), name_of(call.kind));
      return;
    }
    group([&] {
      size_t begin = 0;
      for (int root = 0; root < size(); ++root) {
        const size_t n = type.count(counts[static_cast<size_t>(root)]);
        if (n > 0) check_status(part(root, n, begin), name_of(call.kind));
        begin += n * type.bytes;
      }
    });
  }

  // Uses ncclAllGather if all parts have the same size. Otherwise each rank broadcasts its part.
  void all_gather(Rank& rank, const Call& call, cudaStream_t stream) {
    const Elements type(call.dtype);
    auto* const out = static_cast<std::byte*>(call.out);
    for_parts(
        call, type, [&](size_t n) { return api_.all_gather(call.in, out, n, type.type, rank.comm, stream); },
        [&](int root, size_t n, size_t begin) {
          const void* in = root == rank.rank ? call.in : out + begin;
          return api_.broadcast(in, out + begin, n, type.type, root, rank.comm, stream);
        });
  }

  void reduce_scatter(Rank& rank, const Call& call, cudaStream_t stream) {
    const Elements type(call.dtype);
    const auto* const in = static_cast<const std::byte*>(call.in);
    for_parts(
        call, type,
        [&](size_t n) { return api_.reduce_scatter(in, call.out, n, type.type, RedOp::kSum, rank.comm, stream); },
        [&](int root, size_t n, size_t begin) {
          return api_.reduce(in + begin, call.out, n, type.type, RedOp::kSum, root, rank.comm, stream);
        });
  }

  void all_to_all(Rank& rank, const Call& call, cudaStream_t stream) {
    const Elements type(call.dtype);
    const auto part = [&](int from, int to) {
      return type.count(call.counts[static_cast<size_t>(from * size() + to)]);
    };
    group([&] {
      const auto* in = static_cast<const std::byte*>(call.in);
      auto* out = static_cast<std::byte*>(call.out);
      for (int peer = 0; peer < size(); ++peer) {
        const size_t sent = part(rank.rank, peer), received = part(peer, rank.rank);
        if (sent > 0) check_status(api_.send(in, sent, type.type, peer, rank.comm, stream), "all_to_all");
        if (received > 0) check_status(api_.recv(out, received, type.type, peer, rank.comm, stream), "all_to_all");
        in += sent * type.bytes;
        out += received * type.bytes;
      }
    });
  }

  template <class F>
  void group(F&& calls) {
    check_status(api_.group_start(), "begin a group of calls");
    try {
      calls();
    } catch (...) {
      api_.group_end();  // without group_end(), this thread's next calls would join the group
      throw;
    }
    check_status(api_.group_end(), "end a group of calls");
  }

  const Api& api_;
  const std::chrono::milliseconds timeout_;
  const bool spans_ = false;              ///< whether the ranks belong to several processes
  const std::vector<std::string> names_;  ///< names of all ranks
  std::mutex id_mutex_;
  std::optional<UniqueId> id_;
  const Arrivals arrivals_;
  Failure failure_;
  std::vector<std::unique_ptr<Rank>> ranks_;  ///< null for ranks of other processes
  std::vector<Rank*> own_;
};

}  // namespace

std::string why_not(std::span<Device* const> ranks) {
  std::set<int> gpus;
  size_t own = 0;
  for (Device* rank : ranks) {
    if (is_remote(*rank)) continue;
    const auto* device = dynamic_cast<cuda::CudaDevice*>(rank);
    if (device == nullptr) return fmt::format("[nccl] {} is not a CUDA device", rank->name());
    gpus.insert(device->gpu().traits.gpu);
    ++own;
  }
  if (own == 0) return "";
  try {
    api();
  } catch (const DeviceError& error) {
    return error.what();
  }
  return gpus.size() == own ? "" : "[nccl] several ranks share a GPU; use auto, p2p or staged";
}

std::unique_ptr<Communicator> make_nccl_communicator(std::span<Backend* const> ranks, const Options& options) {
  if (options.processes != nullptr) {
    const UniqueId id = meet(devices_of(ranks), *options.processes);
    try {
      return std::make_unique<NcclCommunicator>(ranks, options, id);
    } catch (const DeviceError& error) {  // the error occurred only in this process; fail() reports the error to the
                                          // other processes
      options.processes->fail(error.what());
      throw;
    }
  }
  if (const std::string reason = why_not(devices_of(ranks)); !reason.empty()) throw DeviceError(reason);
  return std::make_unique<NcclCommunicator>(ranks, options);
}

}  // namespace shoal::collectives::nccl
