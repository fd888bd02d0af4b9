#include "collectives/cuda/cuda_communicator.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "collectives/absent_communicator.h"
#include "collectives/nccl/nccl_communicator.h"
#include "collectives/p2p/p2p_communicator.h"
#include "collectives/thresholds.h"
#include "devices/cuda/cuda_backend.h"
#include "devices/cuda/cuda_family.h"
#include "processes/remote_device.h"

namespace shoal::collectives::cuda {
namespace {

using shoal::cuda::ColumnForms;
using shoal::cuda::CudaBackend;
using shoal::cuda::LaunchContext;

void refuse_others(const Options& options) {
  const std::string& wanted = options.implementation;
  require<InvalidArgument>(wanted != "host" && wanted != "mpi",
                           "[cuda communicator] '{}' needs devices that compute in host memory; use auto, p2p, "
                           "nccl or staged",
                           wanted);
  require<InvalidArgument>(wanted != "p2p" || options.processes == nullptr,
                           "[cuda communicator] 'p2p' needs all ranks in one process, but there are several processes; "
                           "use auto, nccl or staged");
}

p2p::P2pOptions p2p_options(const Options& options, const Thresholds& measured, const Device& device) {
  p2p::P2pOptions p2p{.bf16_wire = options.wire == DType::kBF16,
                      .whole_gpus = shoal::cuda::devices_per_gpu() == 1,
                      .off = dynamic_cast<const shoal::cuda::CudaDevice&>(device).gpu().traits.off};
  if (measured.one_shot_to_bytes) {
    const auto bytes = static_cast<int64_t>(std::min<size_t>(*measured.one_shot_to_bytes, INT64_MAX));
    p2p.thresholds = {bytes, bytes, bytes};
  }
  return p2p;
}

/// The GPU of each rank of this process. Throws InvalidArgument for devices of other families.
std::vector<int> gpus_of(std::span<Device* const> devices) {
  std::vector<int> gpus;
  for (Device* device : devices) {
    if (is_remote(*device)) continue;
    const auto* cuda = dynamic_cast<shoal::cuda::CudaDevice*>(device);
    require<InvalidArgument>(cuda != nullptr, "[cuda communicator] {} is not a CUDA device", device->name());
    gpus.push_back(cuda->gpu().traits.gpu);
  }
  return gpus;
}

/// Reduces the limits to the sizes of messages that p2p transfers. If NCCL is available, NCCL transfers all messages of
/// at least `nccl_from_bytes`.
FusedLimits below(FusedLimits limits, bool has_nccl, size_t nccl_from_bytes) {
  if (has_nccl) limits.elements = std::min(limits.elements, static_cast<int64_t>((nccl_from_bytes + 3) / 4) - 1);
  return limits.elements > 0 ? limits : FusedLimits{};
}

/// A Communicator that queues each call on the backends' streams as kernels of p2p::P2pCommunicator.
class PeerCommunicator final : public Communicator {
 public:
  PeerCommunicator(std::span<Backend* const> backends, const Options& options, const Thresholds& measured)
      : peers_(shoal::cuda::places_of(backends), options, p2p_options(options, measured, backends[0]->device())) {
    for (size_t rank = 0; rank < backends.size(); ++rank) {
      backends_.push_back(&dynamic_cast<CudaBackend&>(*backends[rank]));
      ranks_.push_back({this, static_cast<int>(rank)});
      backends_[rank]->launcher().add_watch(
          this, {nullptr, [this, rank] { peers_.check(static_cast<int>(rank)); }});  // the kernels of p2p check the
                                                                                     // time-out
    }
  }
  ~PeerCommunicator() override {
    for (CudaBackend* backend : backends_) backend->launcher().remove_watch(this);
  }
  std::string_view name() const override { return "p2p"; }
  int size() const override { return peers_.size(); }
  void abort(std::string_view reason) override { peers_.abort(reason); }
  size_t buffer_bytes(int rank) const override { return peers_.buffer_bytes(rank); }
  bool can_be_recorded() const override { return true; }
  bool can(const Call& call) const { return peers_.can(call); }
  FusedLimits fused_limits() const override { return peers_.fused_limits(); }

  void enqueue(int rank, const Call& call) override {
    validate(rank, call);
    push(rank, call);
  }
  void enqueue_fused(int rank, const FusedNorm& norm) override { push(rank, norm); }

 private:
  struct Rank {
    PeerCommunicator* owner;
    int rank;
  };

  static p2p::NormReduction reduction_of(const FusedNorm& norm, const LaunchContext& context) {
    return {.in = norm.in,
            .residual = norm.residual,
            .weight = norm.weight,
            .sum = norm.sum,
            .normed = norm.normed,
            .row = norm.row,
            .rows = norm.rows,
            .epsilon = norm.epsilon,
            .record = context.record(ColumnForms::of(norm.normed_forms))};
  }

  template <class Work>
  void push(int rank, const Work& work) {
    const auto run = [](void* object, const void* argument, const LaunchContext& context, bool failed) {
      const Rank& own = *static_cast<Rank*>(object);
      const Work& queued = *static_cast<const Work*>(argument);
      describe_span(queued);
      failed ? own.owner->give_up(own.rank, queued) : own.owner->launch(own.rank, context, queued);
    };
    backends_[static_cast<size_t>(rank)]->push_launch({run, &ranks_[static_cast<size_t>(rank)], &work});
  }
  void launch(int rank, const LaunchContext&, const Call& call) { peers_.launch(rank, call); }
  void launch(int rank, const LaunchContext& context, const FusedNorm& norm) {
    LaunchContext own = context;
    own.reads = ColumnForms::of(norm.column_forms);
    peers_.launch(rank, reduction_of(norm, context), norm.what, norm.product, own);
  }
  /// The stream already stores an earlier error, so give_up() only notifies the peers.
  void give_up(int rank, const Call& call) { give_up(rank, name_of(call.kind), call.what); }
  void give_up(int rank, const FusedNorm& norm) { give_up(rank, "all_reduce_norm", norm.what); }
  void give_up(int rank, std::string_view kind, std::string_view what) {
    peers_.abort(fmt::format("[{} {}] rank {} ({}) cannot take part: earlier work on this rank failed", kind, what,
                             rank, backends_[static_cast<size_t>(rank)]->name()));
  }

  p2p::P2pCommunicator peers_;
  std::vector<CudaBackend*> backends_;
  std::vector<Rank> ranks_;
};

class CudaCommunicator final : public Communicator {
 public:
  /// With several processes, all processes must call the constructor. The constructor chooses the same implementation
  /// in all processes.
  CudaCommunicator(std::span<Backend* const> backends, const Options& options)
      : options_(options),
        backends_(backends.begin(), backends.end()),
        measured_(thresholds_or_found(options.thresholds, devices_of(backends))),
        nccl_from_bytes_(measured_.nccl_from_bytes.value_or(kNcclFromBytes)) {
    gpus_of(devices_of(backends));  // throws for devices of other families
    const std::string& wanted = options.implementation;
    refuse_others(options);
    if (options.processes == nullptr && (wanted == "auto" || wanted == "p2p")) connect_peers();
    if (wanted == "auto" || wanted == "nccl") connect_nccl();
    const bool is_needed = wanted == "auto" && peers_ == nullptr && nccl_ == nullptr;
    if (wanted == "staged" || is_needed) staged_ = make_staged_communicator(backends, options);
  }

  std::string_view name() const override {
    return options_.implementation == "auto" ? "cuda" : std::string_view(options_.implementation);
  }
  int size() const override { return static_cast<int>(backends_.size()); }
  size_t buffer_bytes(int rank) const override {
    size_t bytes = 0;
    for_each([&](const Communicator& one) { bytes += one.buffer_bytes(rank); });
    return bytes;
  }
  std::string remark() const override {
    if (options_.processes != nullptr) return no_nccl_;
    if (no_peers_.empty()) return {};
    return no_nccl_.empty() ? no_peers_ : fmt::format("{}; {}", no_peers_, no_nccl_);
  }
  bool can_be_recorded() const override { return staged_ == nullptr; }
  void abort(std::string_view reason) override {
    for_each([&](Communicator& one) { one.abort(reason); });
  }
  void enqueue(int rank, const Call& call) override {
    validate(rank, call);
    choose(call).enqueue(rank, call);
  }
  FusedLimits fused_limits() const override {
    return peers_ != nullptr ? below(peers_->fused_limits(), nccl_ != nullptr, nccl_from_bytes_) : FusedLimits{};
  }
  void enqueue_fused(int rank, const FusedNorm& norm) override {
    if (peers_ == nullptr) return Communicator::enqueue_fused(rank, norm);
    peers_->enqueue_fused(rank, norm);
  }

 private:
  /// Calls `function` with each communicator that exists.
  void for_each(const auto& function) const {
    for (Communicator* one : {static_cast<Communicator*>(peers_.get()), nccl_.get(), staged_.get()}) {
      if (one != nullptr) function(*one);
    }
  }
  void connect_peers() {
    try {
      peers_ = std::make_unique<PeerCommunicator>(backends_, options_, measured_);
    } catch (const DeviceError& error) {
      if (options_.implementation == "p2p") throw;
      no_peers_ = error.what();
    }
  }
  void connect_nccl() {
    try {
      nccl_ = nccl::make_nccl_communicator(backends_, options_);
    } catch (const DeviceError& error) {
      if (options_.implementation == "nccl") throw;
      no_nccl_ = error.what();
    }
  }

  /// Size in bytes of the largest message that any rank has in the call.
  static size_t message_bytes(const Call& call) {
    const int64_t sum = std::accumulate(call.counts.begin(), call.counts.end(), int64_t{0});
    return bytes_for(call.dtype, std::max(call.count, sum));
  }

  Communicator& choose(const Call& call) {
    const bool large = message_bytes(call) >= nccl_from_bytes_;
    const bool by_peers = peers_ != nullptr && peers_->can(call);
    if (by_peers && (!large || nccl_ == nullptr)) return *peers_;
    if (nccl_ != nullptr) return *nccl_;
    if (staged_ != nullptr) return *staged_;
    fail<DeviceError>("[{} {}] p2p does not support this call; use auto or staged", name_of(call.kind), call.what);
  }

  const Options options_;
  const std::vector<Backend*> backends_;
  const Thresholds measured_;
  const size_t nccl_from_bytes_;
  std::unique_ptr<PeerCommunicator> peers_;
  std::unique_ptr<Communicator> nccl_, staged_;
  std::string no_peers_, no_nccl_;  ///< reason why p2p or NCCL is unusable; "" if usable
};

/// The devices of this process that have the same names as `devices`. Another process owns all of `devices`. The result
/// is empty if any of these names is unknown in this process.
std::vector<Device*> likes_of(std::span<Device* const> devices) {
  std::vector<Device*> likes;
  for (Device* device : devices) {
    const RemoteSpec& spec = static_cast<RemoteDevice*>(device)->spec();
    BackendReg* const family = Registry::instance().find_family(spec.family);
    if (family == nullptr) return {};
    const auto known = family->devices();
    const auto like = std::find_if(known.begin(), known.end(), [&](Device* one) { return one->name() == spec.name; });
    if (like == known.end()) return {};
    likes.push_back(*like);
  }
  return likes;
}

}  // namespace

CommunicatorTraits describe_cuda_communicator(std::span<Device* const> devices, const Options& options) {
  const std::string& wanted = options.implementation;
  refuse_others(options);
  if (options.processes == nullptr && are_absent(devices)) {
    const std::vector<Device*> likes = likes_of(devices);
    if (!likes.empty()) return describe_cuda_communicator(likes, options);
    return {std::vector<size_t>(devices.size(), 0), {}};
  }
  if (wanted == "staged") return describe_staged_communicator(devices, options);
  const std::vector<int> gpus = gpus_of(devices);
  std::string no_nccl = wanted == "p2p" ? "p2p was requested" : nccl::why_not(devices);
  if (wanted == "nccl" && !no_nccl.empty()) throw DeviceError(no_nccl);
  const bool has_nccl = no_nccl.empty();
  if (wanted != "nccl" && options.processes == nullptr) {
    try {
      const Thresholds measured = thresholds_or_found(options.thresholds, devices);
      CommunicatorTraits traits = p2p::P2pCommunicator::describe(gpus, p2p_options(options, measured, *devices[0]));
      traits.fused = below(traits.fused, has_nccl, measured.nccl_from_bytes.value_or(kNcclFromBytes));
      return traits;
    } catch (const DeviceError&) {
      if (wanted == "p2p") throw;
    }
  }
  if (!has_nccl) return describe_staged_communicator(devices, options);
  return {std::vector<size_t>(devices.size(), 0), {}};  // NCCL does not report how much memory it uses
}

std::unique_ptr<Communicator> make_cuda_communicator(std::span<Backend* const> ranks, const Options& options) {
  require<InvalidArgument>(!ranks.empty(), "[cuda communicator] needs at least one rank");
  return std::make_unique<CudaCommunicator>(ranks, options);
}

}  // namespace shoal::collectives::cuda
