#include "collectives/p2p/p2p_communicator.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <set>
#include <string_view>

#include "base/error.h"
#include "collectives/p2p/product_norm.h"
#include "devices/cuda/cuda_api.h"
#include "devices/cuda/peer_access.h"

namespace shoal::collectives::p2p {
namespace {

constexpr std::string_view kNormName = "all_reduce_norm";
constexpr uint32_t kNormKind = static_cast<uint32_t>(Collective::kCount);

/// The GPU of each rank. Empty for a mesh of one rank, because such a mesh launches no kernels.
std::vector<int> gpus_of(std::span<const Place> places) {
  std::vector<int> gpus;
  if (places.size() == 1) return gpus;
  for (const Place& place : places) gpus.push_back(place.gpu);
  return gpus;
}

void check_ranks(size_t ranks) {
  require<InvalidArgument>(ranks > 0 && ranks <= kMaxRanks, "[p2p communicator] takes 1 to {} ranks, got {}", kMaxRanks,
                           ranks);
}

std::vector<Place> checked(std::span<const Place> places) {
  check_ranks(places.size());
  std::set<cudaStream_t> streams;
  for (const Place& place : places) streams.insert(place.stream);
  require<InvalidArgument>(streams.size() == places.size(),
                           "[p2p communicator] every rank needs its own stream, got {} streams for {} ranks",
                           streams.size(), places.size());
  return {places.begin(), places.end()};
}

/// The launch context of each rank. The compute capability and the switches in the context determine the kernels that
/// launch() uses.
std::vector<cuda::LaunchContext> contexts_of(std::span<const Place> places, const cuda::SwitchedOff& off) {
  std::vector<cuda::LaunchContext> contexts;
  for (const Place& place : places) {
    int major = 0, minor = 0;
    cuda::check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, place.gpu), place.device_name,
                "query");
    cuda::check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, place.gpu), place.device_name,
                "query");
    contexts.push_back({place.stream, {.gpu = place.gpu, .compute_capability = major * 10 + minor, .off = off}});
  }
  return contexts;
}

void require_peers(std::span<const int> gpus) {
  const std::vector<std::string> problems = cuda::peer_problems(gpus);
  require<DeviceError>(problems.empty(),
                       "[p2p communicator] peer access does not work: {}; use another communicator (nccl, staged)",
                       fmt::join(problems, "; "));
}

uint32_t sign(uint32_t kind, std::initializer_list<int64_t> facts, std::span<const int64_t> counts = {}) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a over 64-bit words
  const auto mix = [&](int64_t value) { hash = (hash ^ static_cast<uint64_t>(value)) * 0x100000001b3; };
  mix(kind);
  for (int64_t fact : facts) mix(fact);
  for (int64_t count : counts) mix(count);
  const uint32_t low = static_cast<uint32_t>((hash ^ hash >> 24 ^ hash >> 48) & 0xffffff);
  // Flags contain the lower 16 bits of the signature. In new memory all flags are 0, so these bits must not be 0 in any
  // signature.
  return kind << 24 | low | ((low & 0xffff) == 0 ? 1 : 0);
}

std::string_view kind_name(uint32_t signature) {
  const uint32_t kind = signature >> 24;
  return kind < kNormKind ? name_of(static_cast<Collective>(kind)) : kNormName;
}

/// Largest number of elements for which the one-shot all_reduce is used.
int64_t most_one_shot(const Layout& layout, const P2pOptions& options, Element element) {
  return std::min(options.thresholds.one_shot(layout.ranks) / wire_bytes(element),
                  one_shot_capacity(element, layout.blocks));
}

Element float_element(const P2pOptions& options) {
  return options.bf16_wire ? Element::kF32AsBF16 : Element::kF32;
}

FusedLimits limits_of(const Layout& layout, const P2pOptions& options) {
  const Element element = float_element(options);
  if (layout.ranks < 2 || options.off.fuse) return {};
  const uint64_t products = element == Element::kF32 && !options.off.p2p_product ? product_norm_dtypes() : 0;
  return {norm_capacity(element), layout.blocks, most_one_shot(layout, options, element), products};
}

bool is_written(const FailureRecord& record) {
  return __atomic_load_n(&record.written, __ATOMIC_ACQUIRE) != 0;
}

}  // namespace

/// The memory of all ranks. It comes from the memory pools of the GPUs, so that no allocation or deallocation waits for
/// kernels of other communicators.
class P2pCommunicator::Memory {
 public:
  Memory(std::span<const Place> places, size_t bytes) {
    void* host = nullptr;
    cuda::check(cudaHostAlloc(&host, sizeof(HostWords), cudaHostAllocPortable | cudaHostAllocMapped),
                "p2p communicator", "allocate pinned host memory");
    host_ = new (host) HostWords{};
    try {
      for (const Place& place : places) cuda::keep_pool_memory(place.gpu);
      for (const Place& place : places) add(place, bytes);
    } catch (...) {
      release();
      throw;
    }
  }
  ~Memory() { release(); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  HostWords* host() const { return host_; }
  uint8_t* block(int rank) const { return blocks_[rank].memory; }

 private:
  struct Block {
    Place place;
    uint8_t* memory;
  };

  void add(const Place& place, size_t bytes) {
    const cuda::CurrentGpu current(place.gpu);
    void* memory = nullptr;
    cuda::check(cudaMallocAsync(&memory, bytes, place.stream), place.device_name, "allocate memory for collectives");
    blocks_.push_back({place, static_cast<uint8_t*>(memory)});
    // The constructor waits until the memory is cleared, because other ranks may write to it as soon as the constructor
    // returns.
    cuda::check(cudaMemsetAsync(memory, 0, bytes, place.stream), place.device_name, "clear memory for collectives");
    cuda::check(cudaStreamSynchronize(place.stream), place.device_name, "clear memory for collectives");
  }
  void release() {
    for (const Block& block : blocks_) {
      const cuda::CurrentGpu current(block.place.gpu);
      cudaFreeAsync(block.memory, block.place.stream);
    }
    for (const Block& block : blocks_) cudaStreamSynchronize(block.place.stream);
    cudaFreeHost(host_);
  }

  HostWords* host_ = nullptr;
  std::vector<Block> blocks_;
};

P2pCommunicator::P2pCommunicator(std::span<const Place> places, const Options& options, const P2pOptions& p2p)
    : places_(checked(places)),
      contexts_(contexts_of(places, p2p.off)),
      options_(p2p),
      timeout_(options.timeout),
      share_(gpus_of(places), std::min(p2p.max_blocks, kMaxBlocks), p2p.whole_gpus),
      layout_{size(), share_.blocks()},
      names_(places.size()) {
  const std::vector<int> gpus = gpus_of(places);
  require_peers(gpus);
  const char* const loading = std::getenv("CUDA_MODULE_LOADING");
  require<InvalidArgument>(
      loading == nullptr || std::string_view(loading) != "LAZY" ||
          std::set(gpus.begin(), gpus.end()).size() == gpus.size(),
      "[p2p communicator] several ranks on one GPU hang if kernels are loaded lazily; set CUDA_MODULE_LOADING=EAGER");
  // A mesh of one rank only copies, so it needs no GPU memory. It uses only the abort word in host memory.
  memory_ = std::make_unique<Memory>(size() > 1 ? places : std::span<const Place>(), layout_.bytes());
}

P2pCommunicator::~P2pCommunicator() = default;

size_t P2pCommunicator::buffer_bytes(int rank) const {
  shoal::check(0 <= rank && rank < size(), "there is no rank {} among {} ranks", rank, size());
  return size() > 1 ? layout_.bytes() : 0;
}

bool P2pCommunicator::can(const Call& call) const {
  if (call.kind >= Collective::kCount) return false;
  const CollectiveInfo& about = info(call.kind);
  // launch() supports only sums whose result is the whole message or the rank's own part.
  const bool sums_for_all = about.out == Extent::kMessage || about.out == Extent::kOwnPart;
  return !about.sums || (sums_for_all && is_summable(call.dtype));
}

bool P2pCommunicator::can(const NormReduction& reduction) const {
  return size() > 1 && reduction.row > 0 && reduction.row <= norm_capacity(element(DType::kF32));
}

FusedLimits P2pCommunicator::fused_limits() const {
  return limits_of(layout_, options_);
}

CommunicatorTraits P2pCommunicator::describe(std::span<const int> gpus, const P2pOptions& p2p) {
  check_ranks(gpus.size());
  const int ranks = static_cast<int>(gpus.size());
  if (ranks == 1) return {{0}, {}};
  require_peers(gpus);
  const Layout layout{ranks, BlockShare::available(gpus, std::min(p2p.max_blocks, kMaxBlocks))};
  return {std::vector<size_t>(gpus.size(), layout.bytes()), limits_of(layout, p2p)};
}

Element P2pCommunicator::element(DType dtype) const {
  switch (dtype) {
    case DType::kF16:
      return Element::kF16;
    case DType::kBF16:
      return Element::kBF16;
    case DType::kI32:
      return Element::kI32;
    default:
      return float_element(options_);
  }
}

void P2pCommunicator::launch(int rank, const Call& call) {
  require<InvalidArgument>(can(call), "[{} {}] p2p does not support this call", name_of(call.kind), call.what);
  if (size() == 1) return launch_alone(call);
  launch_kernels(rank, name_of(call.kind), call.what, [&] {
    const cuda::LaunchContext& context = contexts_[rank];
    const uint32_t signature =
        sign(static_cast<uint32_t>(call.kind), {static_cast<int64_t>(call.dtype), call.count, call.root}, call.counts);
    const Mesh mesh = this->mesh(rank, call.what, signature);
    if (!info(call.kind).sums) {
      const Routes routes = this->routes(rank, call);
      if (routes.most_bytes > 0) move(context, mesh, call.in, call.out, routes);
    } else if (info(call.kind).out == Extent::kMessage) {
      all_reduce(rank, mesh, call);
    } else {
      Parts parts{};
      for (int to = 0; to < size(); ++to) parts.count[to] = elements_out(call.kind, call.amounts(size()), to);
      reduce_scatter(context, mesh, {element(call.dtype), call.in, call.out}, parts);
    }
  });
}

void P2pCommunicator::launch(int rank, NormReduction reduction, std::string_view what, Tensor* product,
                             const cuda::LaunchContext& context) {
  require<InvalidArgument>(can(reduction) && (product == nullptr || reduction.rows == 1),
                           "[{} {}] p2p does not support this call", kNormName, what);
  if (reduction.rows == 0) return;
  reduction.element = element(DType::kF32);
  launch_kernels(rank, kNormName, what, [&] {
    const Mesh own = mesh(rank, what, sign(kNormKind, {reduction.row, reduction.rows}));
    if (product != nullptr) {
      if (product_norm(context, own, reduction, *product)) return;
      cuda::kernel_for(Op::kMulMat).run(context, *product);
    }
    all_reduce_norm(contexts_[rank], own, reduction);
  });
}

void P2pCommunicator::launch_kernels(int rank, std::string_view kind, std::string_view what, const auto& launch) const {
  const cuda::CurrentGpu current(places_[rank].gpu);
  launch();
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) cuda::check(status, places_[rank].device_name, fmt::format("launch {} {}", kind, what));
}

/// Runs a call of a mesh of one rank: copies the input to the output.
void P2pCommunicator::launch_alone(const Call& call) {
  const int64_t count = call.counts.empty() ? call.count : call.counts[0];
  if (count == 0 || call.in == call.out) return;
  const size_t bytes = bytes_for(call.dtype, count);
  const cuda::CurrentGpu current(places_[0].gpu);
  cuda::check(cudaMemcpyAsync(call.out, call.in, bytes, cudaMemcpyDeviceToDevice, places_[0].stream),
              places_[0].device_name, "copy");
}

void P2pCommunicator::all_reduce(int rank, const Mesh& mesh, const Call& call) {
  if (call.count == 0) return;
  const Reduction reduction{element(call.dtype), call.in, call.out};
  const bool is_one_shot = call.count <= most_one_shot(layout_, options_, reduction.element);
  const auto launch = is_one_shot ? all_reduce_one_shot : all_reduce_two_shot;
  launch(contexts_[rank], mesh, reduction, call.count);
}

Routes P2pCommunicator::routes(int rank, const Call& call) const {
  Routes routes{};
  const Amounts amounts = call.amounts(size());
  const auto bytes = [&](int64_t count) { return static_cast<int64_t>(bytes_for(call.dtype, count)); };
  int64_t sent = 0, received = 0;  // sent: offset in call.in of the data for `peer`; received: offset in call.out of
                                   // the data from `peer` (in elements)
  for (int peer = 0; peer < size(); ++peer) {
    const int64_t send = elements_between(call.kind, amounts, rank, peer);
    const int64_t receive = elements_between(call.kind, amounts, peer, rank);
    routes.send_offset[peer] = bytes(sent);
    routes.send_bytes[peer] = bytes(send);
    routes.receive_offset[peer] = bytes(received);
    routes.receive_bytes[peer] = bytes(receive);
    if (info(call.kind).is_pairwise()) sent += send;  // other collectives send the same elements to every rank
    received += receive;
  }
  routes.most_bytes =
      bytes(call.counts.empty() ? call.count : *std::max_element(call.counts.begin(), call.counts.end()));
  return routes;
}

Mesh P2pCommunicator::mesh(int rank, std::string_view what, uint32_t signature) {
  Mesh mesh{};
  for (int peer = 0; peer < size(); ++peer) mesh.memory[peer] = memory_->block(peer);
  mesh.host = memory_->host();
  mesh.timeout_ns = static_cast<uint64_t>(timeout_.count());
  mesh.layout = layout_;
  mesh.rank = rank;
  mesh.next_may_start = share_.next_may_start();
  mesh.name = name(rank, what);
  mesh.signature = signature;
  return mesh;
}

uint32_t P2pCommunicator::name(int rank, std::string_view what) {
  const std::lock_guard lock(mutex_);
  Names& names = names_[rank];
  const auto found = names.numbers.find(what);
  if (found != names.numbers.end()) return found->second;
  names.texts.emplace_back(what);
  return names.numbers.emplace(what, static_cast<uint32_t>(names.texts.size() - 1)).first->second;
}

void P2pCommunicator::check(int rank) const {
  const HostWords& host = *memory_->host();
  if (__atomic_load_n(&host.abort, __ATOMIC_ACQUIRE) == 0 && !is_written(host.records[rank])) return;
  throw CommError(failure_message());
}

void P2pCommunicator::abort(std::string_view reason) {
  const std::lock_guard lock(mutex_);
  uint32_t* const word = &memory_->host()->abort;
  if (failure_.empty() && __atomic_load_n(word, __ATOMIC_ACQUIRE) == 0) {
    failure_ = fmt::format("[p2p communicator] aborted: {}", reason.empty() ? "no reason given" : reason);
  }
  __atomic_store_n(word, 1, __ATOMIC_RELEASE);
}

/// The message of the first failure, composed once and cached.
std::string P2pCommunicator::failure_message() const {
  std::string message;
  bool timed_out = false;
  {
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) {
      const HostWords& host = *memory_->host();
      int first = -1;
      for (int rank = 0; rank < size(); ++rank) {
        const FailureRecord& record = host.records[rank];
        if (!is_written(record) || record.failure == Failure::kAborted) continue;
        if (first < 0 || record.when_ns < host.records[first].when_ns) first = rank;
      }
      failure_ = first < 0 ? "[p2p communicator] failed for an unknown reason" : describe(first, host.records[first]);
      timed_out = first >= 0 && host.records[first].failure == Failure::kTimeOut;
    }
    message = failure_;
  }
  if (timed_out) report_.say(message);
  return message;
}

std::string P2pCommunicator::describe(int rank, const FailureRecord& record) const {
  const std::string_view kind = kind_name(record.signature), what = names_[rank].texts[record.name];
  std::vector<std::string> who;
  for (int peer = 0; peer < size(); ++peer) {
    if ((record.missing >> peer & 1) != 0) who.push_back(fmt::format("{} ({})", peer, places_[peer].device_name));
  }
  if (record.failure == Failure::kDisagreement) {
    return fmt::format(
        "[{} {}] ranks queued different collectives: rank {} ({}) queued this collective, but rank {} queued {}; op, "
        "counts, dtype or root differ; every rank must queue the same collectives in the same order",
        kind, what, rank, places_[rank].device_name, fmt::join(who, ", "), kind_name(record.other_signature));
  }
  return fmt::format("[{} {}] {} of {} did not arrive within {:.3f} s, according to rank {} ({}); {}", kind, what,
                     who.empty() ? "at least one rank" : fmt::format("rank {}", fmt::join(who, ", ")), size(),
                     static_cast<double>(record.waited_ns) * 1e-9, rank, places_[rank].device_name, kTimeoutRemedy);
}

}  // namespace shoal::collectives::p2p
