// Communicator: collectives among the ranks of a mesh, queued on the ranks' backends like any other work.
// One Communicator serves all ranks that this process owns: enqueue() is for those, and backends of remote ranks only
// say where these are. A collective
// happens when every rank has queued it; all ranks must queue the same collectives in the same order.
// Ranks are combined in rank order, so every rank gets the same bits on every run. A rank that does not
// arrive within the time-out fails the operation on every rank with a CommError that names the missing
// rank, the operation and the time waited; it is thrown by the synchronize() of the ranks' backends.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/thresholds.h"
#include "devices/device.h"
#include "graph/collective.h"

namespace shoal {
class ProcessGroup;
}

namespace shoal::collectives {

/// One rank's side of a collective. Plain data; the Call itself, its counts and its text must stay valid until the
/// rank's backend is synchronized: enqueue() keeps its address.
/// Counts are elements of `dtype` (a multiple of its block for quantised types) and may be uneven or zero. What `in`
/// and `out` hold, whether they may share memory and which dtypes there are: graph/collective.h and its list of kinds.
struct Call {
  Collective kind = Collective::kAllReduce;
  DType dtype = DType::kF32;
  const void* in = nullptr;
  void* out = nullptr;
  int64_t count = 0;
  std::span<const int64_t> counts = {};
  int root = 0;
  const char* what = "";  ///< tensor name for messages
  uint64_t whole = 0;     ///< of a piece of a larger call: call_digest of that one, in which the ranks must agree, too

  Amounts amounts(int ranks) const { return {ranks, count, counts, root}; }
};

/// Of count and counts: calls that differ in them have different digests, but for rare accidents.
uint64_t call_digest(const Call& call);

/// One rank's side of an all_reduce with what is around it in a decoder: sum = residual + the ranks' `in` added up;
/// normed = sum / sqrt(mean(sum^2) + epsilon) * weight, by rows of f32 without gaps. `in`, `residual`, `sum` and
/// `normed` have rows * row elements, `weight` has row, and nothing that is queued writes it. `sum` and `normed` may
/// each be `in` or `residual`; nothing else may overlap. `sum` may be null where it is not wanted. Plain data, which
/// must stay valid like a Call.
///
/// Of one row `in` may have to be made first: it is the result of `product`, a mul_mat with one column and weights of
/// FusedLimits::products, which nothing else reads and which need not be stored.
///
/// Forms are those of the rank's device (PassedForms): in which the column of `product` is there besides as values, and
/// in which `normed`, of one row then, is left besides.
struct FusedNorm {
  const float* in = nullptr;
  const float* residual = nullptr;
  const float* weight = nullptr;
  float* sum = nullptr;
  float* normed = nullptr;
  int64_t row = 0;
  int64_t rows = 0;
  float epsilon = 0;
  const char* what = "";  ///< tensor name for messages
  Tensor* product = nullptr;
  uint32_t column_forms = 0, normed_forms = 0;
};

/// Up to which size a communicator does FusedNorm in one call, and faster than in several; zeros: never.
struct FusedLimits {
  int64_t row = 0;  ///< elements of a row
  int64_t rows = 0;
  int64_t elements = 0;   ///< of all rows
  uint64_t products = 0;  ///< dtypes of weights, 1 << dtype, whose product the call may begin with
  bool allow(int64_t row_length, int64_t row_count) const {
    return 0 < row_length && row_length <= row && row_count <= rows && row_length * row_count <= elements;
  }
  bool may_begin_with(DType weights) const { return (products >> static_cast<int>(weights) & 1) != 0; }
  bool operator==(const FusedLimits&) const = default;
};

/// What plans have to know of a communicator.
struct CommunicatorTraits {
  std::vector<size_t> buffer_bytes;  ///< that each rank holds for communication
  FusedLimits fused;
  bool operator==(const CommunicatorTraits&) const = default;
};

/// SHOAL_COMM_TIMEOUT (seconds, 1 to 86400), or 120 s: longer than any work between two collectives of a healthy run.
/// Throws InvalidArgument for another value.
std::chrono::milliseconds default_timeout();

/// Which implementation collectives use: "auto" (by size and topology), "host", "mpi", "p2p", "nccl" or "staged".
/// SHOAL_COMM, or "auto". Throws InvalidArgument for another value.
std::string default_implementation();
/// The one named; default_implementation() where none is.
std::string implementation_or_default(std::string_view name);
/// Throws InvalidArgument that lists the names when it is none of them.
void check_implementation(std::string_view name);

/// As what f32 sums travel where the implementation can choose (p2p): f32, or bf16, which halves the bytes and rounds
/// each addend and the result. SHOAL_COMM_WIRE, or f32. Throws InvalidArgument for another value.
DType default_wire();

struct Options {
  /// Of one rank waiting for the others while the process runs; time in which it was stopped does not count.
  std::chrono::milliseconds timeout = default_timeout();
  /// How long a waiting rank spins before it parks, where every rank can have a core of its own.
  std::chrono::microseconds spin{50};
  std::string implementation = default_implementation();
  DType wire = default_wire();
  /// In place of what has been measured for the mesh.
  std::optional<Thresholds> thresholds = {};
  /// The processes that the ranks belong to (processes/remote_device.h says which rank to which); nullptr: only this
  /// one.
  ProcessGroup* processes = nullptr;
};

/// Throws InvalidArgument for an unknown implementation, a time-out that is not from 1 ms to 1 day, or a wire that is
/// neither f32 nor bf16.
void check_options(const Options& options);

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual std::string_view name() const = 0;  ///< "host", "mpi", "p2p", "nccl", ...
  virtual int size() const = 0;
  /// Why it is slower than one might expect of these devices, for users; "" when there is nothing to say.
  virtual std::string remark() const { return {}; }
  /// Queues rank `rank`'s side on that rank's backend. Does not block or allocate. Throws InvalidArgument
  /// for a bad call (counts of the wrong length, a dtype that cannot be reduced).
  virtual void enqueue(int rank, const Call& call) = 0;
  /// What enqueue_fused() can be given.
  virtual FusedLimits fused_limits() const { return {}; }
  /// Like enqueue(), within fused_limits(); every rank must queue it. Throws InvalidArgument.
  virtual void enqueue_fused(int rank, const FusedNorm& norm);
  /// Fails every pending and later collective on every rank with `reason`. Thread-safe. A communicator that
  /// failed once, in whatever way, stays failed with its first message; make a new one to go on.
  virtual void abort(std::string_view reason) = 0;
  /// May backends record calls (Backend::start_recording), to replay them on every rank in the same order? Only where
  /// nothing but the device works at them.
  virtual bool can_be_recorded() const { return false; }
  /// Memory held for communication on one rank, bytes.
  virtual size_t buffer_bytes(int rank) const = 0;
  CommunicatorTraits describe() const;

 protected:
  /// Checks that every implementation shares; throws InvalidArgument.
  void validate(int rank, const Call& call) const;
  /// Names the span that this thread works at, if there is one.
  static void describe_span(const Call& call);
  static void describe_span(const FusedNorm& norm);
  /// Elements that a rank of `ranks` reads from `in`, and writes to `out`, in a valid call.
  static int64_t elements_in(int rank, int ranks, const Call& call) {
    return shoal::elements_in(call.kind, call.amounts(ranks), rank);
  }
  static int64_t elements_out(int rank, int ranks, const Call& call) {
    return shoal::elements_out(call.kind, call.amounts(ranks), rank);
  }
};

/// The device of each backend.
std::vector<Device*> devices_of(std::span<Backend* const> backends);

/// Makes a communicator over backends, one for each rank; and says before, by the devices alone, what it will be like,
/// so that what is planned without a communicator is what runs with one.
class CommunicatorFactory {
 public:
  using Make = std::function<std::unique_ptr<Communicator>(std::span<Backend* const> ranks, const Options& options)>;
  using Describe = std::function<CommunicatorTraits(std::span<Device* const> devices, const Options& options)>;

  CommunicatorFactory(std::nullptr_t = nullptr) {}
  /// Without `describe` plans are made for a communicator that holds nothing and fuses nothing, and again when there is
  /// one that does.
  template <class F>
  requires std::is_constructible_v<Make, F> CommunicatorFactory(F make, Describe describe = {})
      : make_(std::move(make)), describe_(std::move(describe)) {}

  explicit operator bool() const { return static_cast<bool>(make_); }
  /// Throws InvalidArgument for options that check_options refuses, and when what was made is nullptr or for another
  /// number of ranks.
  std::unique_ptr<Communicator> operator()(std::span<Backend* const> ranks, const Options& options) const;
  CommunicatorTraits describe(std::span<Device* const> devices, const Options& options = {}) const;

 private:
  Make make_;
  Describe describe_;
};

/// Over backends that run host functions in stream order (CPU devices), one backend for each rank. Throws
/// InvalidArgument otherwise. Synchronizes the backends. They must outlive the communicator's use and be
/// synchronized before it is destroyed; after a CommError synchronize all of them before freeing tensors.
/// How each collective works, its steps and bytes: docs/collectives.md.
std::unique_ptr<Communicator> make_host_communicator(std::span<Backend* const> ranks, const Options& options = {});
CommunicatorTraits describe_host_communicator(std::span<Device* const> devices, const Options& options = {});

/// Over any backends that run host functions in stream order, of different families too: ranks whose memory the host
/// cannot use (Backend::has_own_memory) send theirs through pinned host memory, in pieces, so that copies of one piece
/// overlap with the exchange of another. Slow beside communicators of one family. Conditions as for the host
/// communicator. See docs/collectives.md.
std::unique_ptr<Communicator> make_staged_communicator(std::span<Backend* const> ranks, const Options& options = {});
CommunicatorTraits describe_staged_communicator(std::span<Device* const> devices, const Options& options = {});

/// Over backends of all processes of Options::processes that run host functions in stream order and compute in host
/// memory: ranks of one node meet in memory that they share, nodes exchange messages. Conditions as for the host
/// communicator. Making one is collective: all processes do. See docs/collectives.md.
std::unique_ptr<Communicator> make_mpi_communicator(std::span<Backend* const> ranks, const Options& options);
CommunicatorTraits describe_mpi_communicator(std::span<Device* const> devices, const Options& options);

}  // namespace shoal::collectives
