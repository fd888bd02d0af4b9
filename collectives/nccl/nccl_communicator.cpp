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
#include "collectives/nccl/nccl_api.h"
#include "devices/cuda/cuda_api.h"
#include "devices/cuda/cuda_backend.h"
#include "devices/cuda/waiting_kernels.h"
#include "devices/timeouts.h"

namespace shoal::collectives::nccl {
namespace {

using Clock = std::chrono::steady_clock;
/// More than NCCL needs to end a rank that no CUDA graph refers to.
constexpr auto kEndTime = std::chrono::seconds(1);
using cuda::CudaBackend;

/// Elements as NCCL counts them: of a type that it knows, or bytes.
struct Elements {
  DataType type;
  size_t bytes;  ///< of one
};

Elements elements_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return {DataType::kFloat32, 4};
    case DType::kF16:
      return {DataType::kFloat16, 2};
    case DType::kBF16:
      return {DataType::kBFloat16, 2};
    case DType::kI32:
      return {DataType::kInt32, 4};
    default:
      return {DataType::kInt8, 1};  // only moved, never added
  }
}

/// The first failure, for all ranks.
class Failure {
 public:
  /// False: there has been another one.
  bool set(const std::string& message) {
    const std::lock_guard lock(mutex_);
    const bool first = message_.empty();
    if (first) message_ = message;
    failed_ = true;
    return first;
  }
  bool is_set() const { return failed_; }
  void throw_if_set() const {
    if (!failed_) return;
    const std::lock_guard lock(mutex_);
    throw CommError(message_);
  }

 private:
  mutable std::mutex mutex_;
  std::string message_;
  std::atomic<bool> failed_{false};
};

class NcclCommunicator;

/// What messages say of a call, which may be gone by then.
struct Name {
  Collective kind = Collective::kAllReduce;
  std::string what;
};

/// A rank's side; all but `arrived` belongs to the launcher's thread.
struct Rank {
  static constexpr uint64_t kNames = 64;

  NcclCommunicator& owner;
  const int rank;
  CudaBackend& backend;
  Comm* comm = nullptr;
  std::thread aborting = {};            ///< NCCL's end of `comm`, after a failure
  std::atomic<bool> ended{false};       ///< and its end has come
  std::atomic<uint64_t> arrived{0};     ///< calls so far
  std::array<Name, kNames> names = {};  ///< of the latest ones, by their number
  const Name& name(uint64_t number) const { return names[number % kNames]; }
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::span<Backend* const> backends, const Options& options)
      : waiting_(cuda::places_of(backends)), api_(api()), timeout_(options.timeout) {
    for (Backend* backend : backends) {
      ranks_.emplace_back(new Rank{*this, static_cast<int>(ranks_.size()), dynamic_cast<CudaBackend&>(*backend)});
    }
    for (const auto& rank : ranks_) {
      rank->backend.launcher().add_watch(
          this, {[this, own = rank.get()](std::chrono::nanoseconds stuck) { poll(*own, stuck, "finish"); },
                 [this] { failure_.throw_if_set(); }});
    }
  }
  ~NcclCommunicator() override {
    for (const auto& rank : ranks_) rank->backend.launcher().remove_watch(this);
    cuda::free_what_is_left(kEndTime);
    // Destroying one waits for its peers, aborting does not; nothing is queued any more.
    for (const auto& rank : ranks_) abandon(*rank);
    for (const auto& rank : ranks_) {
      if (!rank->aborting.joinable()) continue;
      while (!rank->ended) {
        cuda::free_what_is_left(std::chrono::milliseconds(0));  // graphs of the rank
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      rank->aborting.join();
    }
  }

  std::string_view name() const override { return "nccl"; }
  int size() const override { return static_cast<int>(ranks_.size()); }
  bool can_be_recorded() const override { return true; }
  /// NCCL keeps to itself what it needs.
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
    ranks_[static_cast<size_t>(rank)]->backend.push_launch({run, ranks_[static_cast<size_t>(rank)].get(), &call});
  }

 private:
  static std::string text_of(Collective kind, std::string_view what) {
    return fmt::format("{} {}", name_of(kind), what);
  }
  static std::string text_of(const Rank& rank) { return fmt::format("rank {} ({})", rank.rank, rank.backend.name()); }

  void run(Rank& rank, const Call& call, const cuda::LaunchContext& context, bool failed) {
    if (failed) {
      // The stream keeps its own, earlier error; here only the peers need to hear of it.
      return leave(rank, call, "earlier work on it failed");
    }
    failure_.throw_if_set();
    const uint64_t number = rank.arrived;
    rank.names[number % Rank::kNames] = {call.kind, call.what};
    rank.arrived = number + 1;
    try {
      if (rank.comm == nullptr) connect(rank, call, context);
      const auto gate = cuda::launch_waiting_kernels();
      queue(rank, call, context.stream);
      settle(rank, "be queued");
    } catch (const CommError&) {
      throw;
    } catch (const std::exception& error) {  // this rank's own
      leave(rank, call, error.what());
      throw;
    }
  }

  /// The peers need not wait for this rank.
  void leave(Rank& rank, const Call& call, std::string_view why) {
    failure_.set(fmt::format("[{}] {} cannot take part: {}", text_of(call.kind, call.what), text_of(rank), why));
    abandon(rank);
  }

  void connect(Rank& rank, const Call& call, const cuda::LaunchContext& context) {
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    cudaStreamIsCapturing(context.stream, &capturing);
    if (capturing != cudaStreamCaptureStatusNone) {
      fail<DeviceError>("[{}] ranks cannot be connected while they are recorded; run it once before",
                        text_of(call.kind, call.what));
    }
    Config config;
    Comm* comm = nullptr;
    const Result status = api_.comm_init_rank_config(&comm, size(), mesh_id(), rank.rank, &config);
    check_status(status, "connect its ranks");
    rank.comm = comm;
    settle(rank, "connect to the others");
  }

  /// Made by the first rank that needs it.
  const UniqueId& mesh_id() {
    const std::lock_guard lock(id_mutex_);
    if (!id_) {
      UniqueId made;
      check_status(api_.get_unique_id(&made), "make an id for its ranks");
      id_ = made;
    }
    return *id_;
  }

  /// Waits until NCCL has done its part of the latest call (not the GPU); the other ranks do theirs meanwhile.
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

  /// Something may be wrong: with NCCL, with another rank, or nothing has happened for too long.
  void poll(Rank& rank, std::chrono::nanoseconds stuck, std::string_view what) {
    if (rank.comm == nullptr) return;  // nothing of it is in the stream; what failed was said, or its next call says it
    if (failure_.is_set()) stop(rank);
    Result state = Result::kSuccess;
    api_.comm_get_async_error(rank.comm, &state);
    if (state != Result::kSuccess && state != Result::kInProgress) {
      const Name& latest = rank.name(rank.arrived - 1);
      failure_.set(fmt::format("[{}] {} cannot {}: {}", text_of(latest.kind, latest.what), text_of(rank), what,
                               api_.get_error_string(state)));
      stop(rank);
    }
    if (stuck > timeout_) {
      const std::string message = describe_missing(rank, std::chrono::duration<double>(stuck).count(), what);
      if (failure_.set(message)) report_.say(message);
      stop(rank);
    }
  }

  /// The ranks that have arrived at fewer calls than this one, at the first that they have not come to. A replayed
  /// recording is no call: then no rank can be named.
  std::string describe_missing(const Rank& rank, double waited, std::string_view what) const {
    const uint64_t own = rank.arrived;
    uint64_t first = own;
    for (const auto& peer : ranks_) first = std::min(first, peer->arrived.load());
    if (first == own || own - first > Rank::kNames) {
      const Name& latest = rank.name(own - 1);
      return fmt::format(
          "[{}] {} could not {} this, or one before it, within {:.1f} s, because another rank did not; {}",
          text_of(latest.kind, latest.what), text_of(rank), what, waited, kTimeoutRemedy);
    }
    std::string who;
    for (const auto& peer : ranks_) {
      if (peer->arrived == first)
        who += fmt::format("{}{} ({})", who.empty() ? "" : ", ", peer->rank, peer->backend.name());
    }
    const Name& missed = rank.name(first);
    return fmt::format("[{}] rank {} of {} did not arrive within {:.1f} s, says {}; {}",
                       text_of(missed.kind, missed.what), who, size(), waited, text_of(rank), kTimeoutRemedy);
  }

  /// Ends what this rank has on its GPU.
  [[noreturn]] void stop(Rank& rank) {
    abandon(rank);
    failure_.throw_if_set();
    fail<InternalError>("internal error: stopped without a failure");
  }

  /// NCCL tells its kernels to end, and then waits until no CUDA graph refers to the rank any more, which may be long
  /// after its launcher has gone on.
  void abandon(Rank& rank) {
    Comm* comm = std::exchange(rank.comm, nullptr);
    if (comm == nullptr) return;
    rank.aborting = std::thread([this, comm, &rank] {
      api_.comm_abort(comm);
      rank.ended = true;
    });
    // What NCCL was about to queue should not come into the stream later.
    const Clock::time_point begin = Clock::now();
    while (!rank.ended && Clock::now() - begin < kEndTime) std::this_thread::sleep_for(std::chrono::microseconds(50));
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

  static size_t count(const Elements& type, DType dtype, int64_t elements) {
    return bytes_for(dtype, elements) / type.bytes;
  }

  void all_reduce(Rank& rank, const Call& call, cudaStream_t stream) {
    const Elements type = elements_of(call.dtype);
    const size_t n = count(type, call.dtype, call.count);
    if (n > 0)
      check_status(api_.all_reduce(call.in, call.out, n, type.type, RedOp::kSum, rank.comm, stream), "all_reduce");
  }

  void broadcast(Rank& rank, const Call& call, cudaStream_t stream) {
    const Elements type = elements_of(call.dtype);
    const size_t n = count(type, call.dtype, call.count);
    const void* in = rank.rank == call.root ? call.in : call.out;
    if (n > 0) check_status(api_.broadcast(in, call.out, n, type.type, call.root, rank.comm, stream), "broadcast");
  }

  static bool are_equal(std::span<const int64_t> counts) {
    return std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end();
  }

  // Uneven parts: one broadcast from each rank, all in one group.
  void all_gather(Rank& rank, const Call& call, cudaStream_t stream) {
    const Elements type = elements_of(call.dtype);
    if (are_equal(call.counts)) {
      const size_t n = count(type, call.dtype, call.counts[0]);
      if (n > 0) check_status(api_.all_gather(call.in, call.out, n, type.type, rank.comm, stream), "all_gather");
      return;
    }
    group([&] {
      auto* out = static_cast<std::byte*>(call.out);
      for (int root = 0; root < size(); ++root) {
        const size_t n = count(type, call.dtype, call.counts[static_cast<size_t>(root)]);
        const void* in = root == rank.rank ? call.in : out;
        if (n > 0) check_status(api_.broadcast(in, out, n, type.type, root, rank.comm, stream), "all_gather");
        out += n * type.bytes;
      }
    });
  }

  void reduce_scatter(Rank& rank, const Call& call, cudaStream_t stream) {
    const Elements type = elements_of(call.dtype);
    if (are_equal(call.counts)) {
      const size_t n = count(type, call.dtype, call.counts[0]);
      if (n == 0) return;
      check_status(api_.reduce_scatter(call.in, call.out, n, type.type, RedOp::kSum, rank.comm, stream),
                   "reduce_scatter");
      return;
    }
    group([&] {
      const auto* in = static_cast<const std::byte*>(call.in);
      for (int root = 0; root < size(); ++root) {
        const size_t n = count(type, call.dtype, call.counts[static_cast<size_t>(root)]);
        if (n > 0) {
          check_status(api_.reduce(in, call.out, n, type.type, RedOp::kSum, root, rank.comm, stream), "reduce_scatter");
        }
        in += n * type.bytes;
      }
    });
  }

  void all_to_all(Rank& rank, const Call& call, cudaStream_t stream) {
    const Elements type = elements_of(call.dtype);
    const auto part = [&](int from, int to) {
      return count(type, call.dtype, call.counts[static_cast<size_t>(from * size() + to)]);
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
      api_.group_end();  // or what this thread calls next would belong to it
      throw;
    }
    check_status(api_.group_end(), "end a group of calls");
  }

  const cuda::WaitingKernels waiting_;
  const Api& api_;
  const std::chrono::milliseconds timeout_;
  std::mutex id_mutex_;
  std::optional<UniqueId> id_;
  Failure failure_;
  TimeoutReport report_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace

std::string why_not(std::span<Device* const> ranks) {
  std::set<int> gpus;
  for (Device* rank : ranks) {
    const auto* device = dynamic_cast<cuda::CudaDevice*>(rank);
    if (device == nullptr) return fmt::format("[nccl] {} is no CUDA device", rank->name());
    gpus.insert(device->gpu().traits.gpu);
  }
  int version = 0;
  try {
    version = api().version;
  } catch (const DeviceError& error) {
    return error.what();
  }
  const char* enabled = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  const bool may_share = version >= kMultiRankVersion && enabled != nullptr && std::string_view(enabled) == "1";
  if (gpus.size() == ranks.size() || may_share) return "";
  return "[nccl] several ranks share a GPU, which needs NCCL 2.30 and NCCL_MULTI_RANK_GPU_ENABLE=1";
}

std::unique_ptr<Communicator> make_nccl_communicator(std::span<Backend* const> ranks, const Options& options) {
  if (const std::string reason = why_not(devices_of(ranks)); !reason.empty()) throw DeviceError(reason);
  return std::make_unique<NcclCommunicator>(ranks, options);
}

}  // namespace shoal::collectives::nccl
