// A Communicator runs collectives among the ranks of a mesh. The collectives are queued on the ranks' backends like any
// other work. One Communicator serves all ranks that this process owns. enqueue() accepts only these ranks. The backend
// of a remote rank only identifies the process that owns the rank. A collective runs when every rank has queued it. All
// ranks must queue the same collectives in the same order. Sums are computed in rank order, so every rank gets the same
// bits in every run. If a rank does not arrive within the time-out, the operation fails on every rank with a CommError
// that names the missing rank, the operation and the waiting time. synchronize() of the ranks' backends throws this
// error.
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

/// The arguments of one rank for a collective. Plain data. The Call, its `counts` and its `what` must stay valid until
/// the rank's backend is synchronized, because enqueue() stores only the address of the Call. Counts are numbers of
/// elements. The counts of ranks may differ, and a count may be zero. Counts of quantised elements are multiples of the
/// block size. graph/collective.h defines the content of `in` and `out`, their overlap, and the allowed dtypes.
struct Call {
  Collective kind = Collective::kAllReduce;
  DType dtype = DType::kF32;
  const void* in = nullptr;
  void* out = nullptr;
  int64_t count = 0;
  std::span<const int64_t> counts = {};
  int root = 0;
  const char* what = "";  ///< name of the tensor in messages
  uint64_t whole = 0;     ///< call_digest() of the larger call to which this call belongs as a piece; equal on all
                          ///< ranks; 0 if this call is not a piece

  Amounts amounts(int ranks) const { return {ranks, count, counts, root}; }
};

/// A hash of `count` and `counts`. Calls with different counts almost always have different digests.
uint64_t call_digest(const Call& call);

/// The arguments of one rank for an all_reduce fused with the neighbouring ops of a decoder: sum = residual +
/// all_reduce(in); normed = sum / sqrt(mean(sum^2) + epsilon) * weight.
///
/// - Rows are f32 and contiguous. `in`, `residual`, `sum` and `normed` have rows * row elements.
/// - `weight` has `row` elements. No queued work may write `weight`.
/// - `sum` and `normed` may each be the same array as `in` or `residual`. No other overlap is allowed.
/// - `sum` may be null if the caller does not need it.
/// - If there is only one row, the call may also compute `in` as the result of `product`. `product` is a mul_mat with
///   one column; FusedLimits::products lists the dtypes of its weights. No other node reads this result, so the call
///   need not store it.
/// - `column_forms` is the bit mask of the forms in which the column of `product` is available in addition to f32. A
///   form is a copy such as a quantised copy (PassedForms in devices/graph_plan.h).
/// - `normed_forms` is the bit mask of the forms in which the call stores `normed` in addition to f32 (only with one
///   row).
///
/// Plain data. Like a Call, a FusedNorm must stay valid until the rank's backend is synchronized.
struct FusedNorm {
  const float* in = nullptr;
  const float* residual = nullptr;
  const float* weight = nullptr;
  float* sum = nullptr;
  float* normed = nullptr;
  int64_t row = 0;
  int64_t rows = 0;
  float epsilon = 0;
  const char* what = "";  ///< name of the tensor in messages
  Tensor* product = nullptr;
  uint32_t column_forms = 0, normed_forms = 0;
};

/// The largest sizes for which one FusedNorm call is faster than separate calls. All sizes are zero if the communicator
/// supports no fused calls.
struct FusedLimits {
  int64_t row = 0;  ///< largest number of elements in one row
  int64_t rows = 0;
  int64_t elements = 0;   ///< largest number of elements in all rows together
  uint64_t products = 0;  ///< bit mask (1 << dtype) of the dtypes that the weights of `product` may have
  bool allow(int64_t row_length, int64_t row_count) const {
    return 0 < row_length && row_length <= row && row_count <= rows && row_length * row_count <= elements;
  }
  bool may_begin_with(DType weights) const { return (products >> static_cast<int>(weights) & 1) != 0; }
  bool operator==(const FusedLimits&) const = default;
};

/// Plans depend on these properties of a communicator.
struct CommunicatorTraits {
  std::vector<size_t> buffer_bytes;  ///< size in bytes of each rank's communication memory
  FusedLimits fused;
  bool operator==(const CommunicatorTraits&) const = default;
};

/// The time-out that SHOAL_COMM_TIMEOUT sets (seconds, 1 to 86400). The default is 120 s. In a healthy run, the work
/// between two collectives takes less time than this default. Throws InvalidArgument for other values.
std::chrono::milliseconds default_timeout();

/// The implementation of collectives that SHOAL_COMM selects: "auto", "host", "mpi", "p2p", "nccl" or "staged". The
/// default "auto" chooses by size and topology. Throws InvalidArgument for other values.
std::string default_implementation();
/// Returns `name`, or default_implementation() if `name` is empty.
std::string implementation_or_default(std::string_view name);
/// Throws InvalidArgument for an unknown name. The message lists all known names.
void check_implementation(std::string_view name);

/// The dtype in which p2p transfers f32 sums. SHOAL_COMM_WIRE selects f32 (default) or bf16. bf16 halves the
/// transferred bytes but rounds each addend and the result. Other implementations always transfer f32. Throws
/// InvalidArgument if SHOAL_COMM_WIRE has any other value.
DType default_wire();

struct Options {
  /// Longest wait of one rank for other ranks. The wait does not include time during which the operating system has
  /// stopped the process.
  std::chrono::milliseconds timeout = default_timeout();
  /// Time for which a waiting rank spins before it sleeps. Ranks spin only if every rank can have its own core.
  std::chrono::microseconds spin{50};
  std::string implementation = default_implementation();
  DType wire = default_wire();
  /// Overrides the thresholds measured for the mesh.
  std::optional<Thresholds> thresholds = {};
  /// The processes that own the ranks (processes/remote_device.h maps ranks to processes). nullptr if this process owns
  /// all ranks.
  ProcessGroup* processes = nullptr;
};

/// Throws InvalidArgument if the implementation is unknown, if the time-out is less than 1 ms or more than 1 day, or if
/// the wire dtype is neither f32 nor bf16.
void check_options(const Options& options);

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual std::string_view name() const = 0;  ///< "host", "mpi", "p2p", "nccl", ...
  virtual int size() const = 0;
  /// Text for users: the reason why the communicator is slower on these devices than users might expect. Empty if there
  /// is no such reason.
  virtual std::string remark() const { return {}; }
  /// Queues the call on the backend of `rank`. Does not block or allocate. Throws InvalidArgument if the call is
  /// invalid, for example if the number of counts is wrong or if the dtype cannot be summed.
  virtual void enqueue(int rank, const Call& call) = 0;
  /// The largest sizes that enqueue_fused() accepts.
  virtual FusedLimits fused_limits() const { return {}; }
  /// Queues a fused call within fused_limits(), like enqueue(). Every rank must queue the call. Throws InvalidArgument
  /// if the communicator does not support the call.
  virtual void enqueue_fused(int rank, const FusedNorm& norm);
  /// Makes every pending and later collective fail with `reason` on every rank. Thread-safe. A failed communicator
  /// reports only its first failure and cannot recover; make a new communicator to continue.
  virtual void abort(std::string_view reason) = 0;
  /// Whether backends may record (Backend::start_recording) and replay calls. Every rank must replay the calls in the
  /// same order. True only if calls run entirely on the device.
  virtual bool can_be_recorded() const { return false; }
  /// Communication memory of one rank, in bytes.
  virtual size_t buffer_bytes(int rank) const = 0;
  CommunicatorTraits describe() const;

 protected:
  /// The checks that all implementations share. Throws InvalidArgument.
  void validate(int rank, const Call& call) const;
  /// Sets the name of this thread's current trace span. Does nothing if the thread has no span.
  static void describe_span(const Call& call);
  static void describe_span(const FusedNorm& norm);
  /// In a valid call, `rank` of `ranks` reads elements_in() elements from `in` and writes elements_out() elements to
  /// `out`.
  static int64_t elements_in(int rank, int ranks, const Call& call) {
    return shoal::elements_in(call.kind, call.amounts(ranks), rank);
  }
  static int64_t elements_out(int rank, int ranks, const Call& call) {
    return shoal::elements_out(call.kind, call.amounts(ranks), rank);
  }
};

/// The devices of the backends.
std::vector<Device*> devices_of(std::span<Backend* const> backends);

/// Makes a communicator from one backend per rank. A factory can also predict the traits of the communicator from the
/// devices alone. A plan that is made before the communicator exists therefore matches the later communicator.
class CommunicatorFactory {
 public:
  using Make = std::function<std::unique_ptr<Communicator>(std::span<Backend* const> ranks, const Options& options)>;
  using Describe = std::function<CommunicatorTraits(std::span<Device* const> devices, const Options& options)>;

  CommunicatorFactory(std::nullptr_t = nullptr) {}
  /// Without `describe`, plans assume a communicator that needs no memory and has no fused calls. Plans are rebuilt if
  /// the actual communicator has other traits.
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

/// A communicator for backends that run host functions in stream order (CPU devices), with one backend per rank. Throws
/// InvalidArgument for other backends. The function synchronizes the backends. The backends must outlive the
/// communicator. The caller must synchronize the backends before the communicator is destroyed. After a CommError, the
/// caller must synchronize all backends before it frees tensors. docs/collectives.md describes the algorithm, steps and
/// bytes of each collective.
std::unique_ptr<Communicator> make_host_communicator(std::span<Backend* const> ranks, const Options& options = {});
CommunicatorTraits describe_host_communicator(std::span<Device* const> devices, const Options& options = {});

/// A communicator for backends that run host functions in stream order. The backends may belong to different families.
/// If the host cannot access a rank's memory (Backend::has_own_memory), the rank sends its data in pieces through
/// pinned host memory. The copies of one piece overlap with the exchange of another piece. A communicator for a single
/// family is faster than this communicator. The backends must meet the conditions of make_host_communicator(). See
/// docs/collectives.md.
std::unique_ptr<Communicator> make_staged_communicator(std::span<Backend* const> ranks, const Options& options = {});
CommunicatorTraits describe_staged_communicator(std::span<Device* const> devices, const Options& options = {});

/// A communicator for backends of all processes in Options::processes. All processes must call this function. The
/// backends must run host functions in stream order, compute in host memory, and meet the conditions of
/// make_host_communicator(). Ranks of one node exchange data through shared memory. Ranks of different nodes exchange
/// messages. See docs/collectives.md.
std::unique_ptr<Communicator> make_mpi_communicator(std::span<Backend* const> ranks, const Options& options);
CommunicatorTraits describe_mpi_communicator(std::span<Device* const> devices, const Options& options);

}  // namespace shoal::collectives
