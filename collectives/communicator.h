// Communicator: collectives among the ranks of a mesh, queued on the ranks' backends like any other work. One
// Communicator serves all ranks that this process owns. enqueue() accepts only these ranks; the backends of remote
// ranks only identify the owning processes. A collective runs when every rank has queued it. All ranks must queue the
// same collectives in the same order. Sums are computed in rank order, so every rank gets the same bits in every run.
// If a rank does not arrive within the time-out, the operation fails on every rank with a CommError that names the
// missing rank, the operation and the waiting time. synchronize() of the ranks' backends throws this error.
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

/// One rank's side of a collective. Plain data. The Call, its counts and its text must stay valid until the rank's
/// backend is synchronized, because enqueue() stores only the address of the Call. Counts are numbers of elements; they
/// may be uneven or zero. For quantised types they are multiples of the block size. graph/collective.h defines the
/// content of `in` and `out`, their overlap, and the allowed dtypes.
struct Call {
  Collective kind = Collective::kAllReduce;
  DType dtype = DType::kF32;
  const void* in = nullptr;
  void* out = nullptr;
  int64_t count = 0;
  std::span<const int64_t> counts = {};
  int root = 0;
  const char* what = "";  ///< tensor name for messages
  uint64_t whole = 0;     ///< for a piece of a larger call: call_digest of the larger call, which must also agree on
                          ///< all ranks

  Amounts amounts(int ranks) const { return {ranks, count, counts, root}; }
};

/// A hash of `count` and `counts`. Calls with different counts almost always have different digests.
uint64_t call_digest(const Call& call);

/// One rank's side of an all_reduce fused with the neighbouring ops of a decoder: sum = residual + all_reduce(in);
/// normed = sum / sqrt(mean(sum^2) + epsilon) * weight. Rows are f32 without gaps. `in`, `residual`, `sum` and `normed`
/// have rows * row elements; `weight` has `row` elements, and no queued work writes it. `sum` and `normed` may each be
/// `in` or `residual`; no other overlap is allowed. `sum` may be null if it is not needed. Plain data, which must stay
/// valid as long as a Call.
///
/// If there is only one row, the call may also compute `in`: it is then the result of `product`, a mul_mat with one
/// column and weights of a dtype in FusedLimits::products. No other node reads this result, so it need not be stored.
///
/// Forms are bit masks, as in the PassedForms of the rank's device. `column_forms`: additional forms in which the
/// column of `product` is available. `normed_forms`: additional forms in which the call stores `normed` (only with one
/// row).
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

/// Sizes up to which a communicator runs a FusedNorm as one call that is faster than separate calls. All sizes are zero
/// if there are no such calls.
struct FusedLimits {
  int64_t row = 0;  ///< largest number of elements in one row
  int64_t rows = 0;
  int64_t elements = 0;   ///< largest number of elements in all rows
  uint64_t products = 0;  ///< bit mask (1 << dtype) of the dtypes that the weights of `product` may have
  bool allow(int64_t row_length, int64_t row_count) const {
    return 0 < row_length && row_length <= row && row_count <= rows && row_length * row_count <= elements;
  }
  bool may_begin_with(DType weights) const { return (products >> static_cast<int>(weights) & 1) != 0; }
  bool operator==(const FusedLimits&) const = default;
};

/// The properties of a communicator that plans depend on.
struct CommunicatorTraits {
  std::vector<size_t> buffer_bytes;  ///< bytes of communication memory of each rank
  FusedLimits fused;
  bool operator==(const CommunicatorTraits&) const = default;
};

/// The time-out from SHOAL_COMM_TIMEOUT (seconds, 1 to 86400). The default of 120 s is longer than the work between two
/// collectives in any healthy run. Throws InvalidArgument for other values.
std::chrono::milliseconds default_timeout();

/// The implementation of collectives: "auto" (by size and topology), "host", "mpi", "p2p", "nccl" or "staged". Set by
/// SHOAL_COMM; default "auto". Throws InvalidArgument for other values.
std::string default_implementation();
/// `name`, or default_implementation() if it is empty.
std::string implementation_or_default(std::string_view name);
/// Throws InvalidArgument with the list of names if `name` is not one of them.
void check_implementation(std::string_view name);

/// The dtype in which f32 sums are transferred, for implementations that support both (p2p): f32, or bf16, which halves
/// the bytes but rounds each addend and the result. Set by SHOAL_COMM_WIRE; default f32. Throws InvalidArgument for
/// other values.
DType default_wire();

struct Options {
  /// Longest wait of one rank for other ranks. Time during which the process was stopped does not count.
  std::chrono::milliseconds timeout = default_timeout();
  /// Time that a waiting rank spins before it parks. Ranks spin only if every rank can have its own core.
  std::chrono::microseconds spin{50};
  std::string implementation = default_implementation();
  DType wire = default_wire();
  /// Overrides the thresholds measured for the mesh.
  std::optional<Thresholds> thresholds = {};
  /// The processes that own the ranks (processes/remote_device.h maps ranks to processes); nullptr: only this process.
  ProcessGroup* processes = nullptr;
};

/// Throws InvalidArgument for an unknown implementation, a time-out outside 1 ms to 1 day, or a wire dtype other than
/// f32 and bf16.
void check_options(const Options& options);

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual std::string_view name() const = 0;  ///< "host", "mpi", "p2p", "nccl", ...
  virtual int size() const = 0;
  /// Text for users: the reason why the communicator is slower on these devices than users might expect; "" if there is
  /// none.
  virtual std::string remark() const { return {}; }
  /// Queues the side of rank `rank` on its backend. Does not block or allocate. Throws InvalidArgument for an invalid
  /// call (wrong number of counts, a dtype that cannot be summed).
  virtual void enqueue(int rank, const Call& call) = 0;
  /// Sizes that enqueue_fused() accepts.
  virtual FusedLimits fused_limits() const { return {}; }
  /// Like enqueue(), for a fused call within fused_limits(). Every rank must queue the call. Throws InvalidArgument.
  virtual void enqueue_fused(int rank, const FusedNorm& norm);
  /// Fails every pending and later collective on every rank with `reason`. Thread-safe. A communicator that has failed
  /// keeps its first message and cannot recover; make a new communicator to continue.
  virtual void abort(std::string_view reason) = 0;
  /// Whether backends may record calls (Backend::start_recording) and replay them. Every rank must replay them in the
  /// same order. True only if calls run entirely on the device.
  virtual bool can_be_recorded() const { return false; }
  /// Communication memory of one rank, in bytes.
  virtual size_t buffer_bytes(int rank) const = 0;
  CommunicatorTraits describe() const;

 protected:
  /// The checks that all implementations share. Throws InvalidArgument.
  void validate(int rank, const Call& call) const;
  /// Sets the name of this thread's current trace span, if there is one.
  static void describe_span(const Call& call);
  static void describe_span(const FusedNorm& norm);
  /// Number of elements that `rank` of `ranks` reads from `in` (elements_in) and writes to `out` (elements_out) in a
  /// valid call.
  static int64_t elements_in(int rank, int ranks, const Call& call) {
    return shoal::elements_in(call.kind, call.amounts(ranks), rank);
  }
  static int64_t elements_out(int rank, int ranks, const Call& call) {
    return shoal::elements_out(call.kind, call.amounts(ranks), rank);
  }
};

/// The devices of the backends.
std::vector<Device*> devices_of(std::span<Backend* const> backends);

/// Makes a communicator over backends, one per rank. It also describes the traits of this communicator in advance, from
/// the devices alone. Plans made without a communicator therefore match the communicator used later.
class CommunicatorFactory {
 public:
  using Make = std::function<std::unique_ptr<Communicator>(std::span<Backend* const> ranks, const Options& options)>;
  using Describe = std::function<CommunicatorTraits(std::span<Device* const> devices, const Options& options)>;

  CommunicatorFactory(std::nullptr_t = nullptr) {}
  /// Without `describe`, plans assume a communicator that needs no memory and has no fused calls. Plans are rebuilt if
  /// the actual communicator differs.
  template <class F>
  requires std::is_constructible_v<Make, F> CommunicatorFactory(F make, Describe describe = {})
      : make_(std::move(make)), describe_(std::move(describe)) {}

  explicit operator bool() const { return static_cast<bool>(make_); }
  /// Throws InvalidArgument for options that check_options refuses. Also throws if the new communicator is nullptr or
  /// has a wrong number of ranks.
  std::unique_ptr<Communicator> operator()(std::span<Backend* const> ranks, const Options& options) const;
  CommunicatorTraits describe(std::span<Device* const> devices, const Options& options = {}) const;

 private:
  Make make_;
  Describe describe_;
};

/// A communicator over backends that run host functions in stream order (CPU devices), one backend per rank; throws
/// InvalidArgument for other backends. Synchronizes the backends. The backends must outlive the communicator, and must
/// be synchronized before it is destroyed. After a CommError, synchronize all backends before freeing tensors.
/// docs/collectives.md describes the algorithm, steps and bytes of each collective.
std::unique_ptr<Communicator> make_host_communicator(std::span<Backend* const> ranks, const Options& options = {});
CommunicatorTraits describe_host_communicator(std::span<Device* const> devices, const Options& options = {});

/// A communicator over any backends that run host functions in stream order, also of different families. Ranks whose
/// memory the host cannot access (Backend::has_own_memory) send their data through pinned host memory, in pieces. The
/// copies of one piece overlap with the exchange of another piece. This communicator is slower than the communicator of
/// a single family. The backends must meet the conditions of make_host_communicator(). See docs/collectives.md.
std::unique_ptr<Communicator> make_staged_communicator(std::span<Backend* const> ranks, const Options& options = {});
CommunicatorTraits describe_staged_communicator(std::span<Device* const> devices, const Options& options = {});

/// A communicator over backends of all processes in Options::processes. The backends must run host functions in stream
/// order, compute in host memory, and meet the conditions of make_host_communicator(). Ranks of one node exchange data
/// in shared memory; nodes exchange messages. Collective. See docs/collectives.md.
std::unique_ptr<Communicator> make_mpi_communicator(std::span<Backend* const> ranks, const Options& options);
CommunicatorTraits describe_mpi_communicator(std::span<Device* const> devices, const Options& options);

}  // namespace shoal::collectives
