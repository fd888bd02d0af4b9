// What every communicator shares: names of the collectives and the checks of a call.
#include "collectives/communicator.h"

#include <array>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace shoal::collectives {
namespace {

enum class Counts : uint8_t { kNone, kOnePerRank, kOnePerPair };

int64_t sum(std::span<const int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// Elements that rank `rank` of `n` reads from Call::in or writes to Call::out.
int64_t count_of(int, int, const Call& call) {
  return call.count;
}
int64_t root_count(int rank, int, const Call& call) {
  return rank == call.root ? call.count : 0;
}
int64_t own_part(int rank, int, const Call& call) {
  return call.counts[rank];
}
int64_t all_parts(int, int, const Call& call) {
  return sum(call.counts);
}
int64_t sent_parts(int rank, int n, const Call& call) {
  return sum(call.counts.subspan(rank * n, n));
}
int64_t received_parts(int rank, int n, const Call& call) {
  int64_t total = 0;
  for (int from = 0; from < n; ++from) total += call.counts[from * n + rank];
  return total;
}
int64_t nothing(int, int, const Call&) {
  return 0;
}

struct CollectiveTraits {
  std::string_view name;
  Counts counts;  ///< what Call::counts holds
  bool reduces;   ///< sums elements, so the dtype must be one that can be added
  int64_t (*elements_in)(int rank, int n, const Call& call);
  int64_t (*elements_out)(int rank, int n, const Call& call);
};

constexpr std::array kTraits = std::to_array<CollectiveTraits>({
    {"all_reduce", Counts::kNone, true, count_of, count_of},
    {"all_gather", Counts::kOnePerRank, false, own_part, all_parts},
    {"reduce_scatter", Counts::kOnePerRank, true, all_parts, own_part},
    {"all_to_all", Counts::kOnePerPair, false, sent_parts, received_parts},
    {"broadcast", Counts::kNone, false, root_count, count_of},
    {"barrier", Counts::kNone, false, nothing, nothing},
});
static_assert(kTraits.size() == static_cast<size_t>(Collective::kCount));

bool can_be_added(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kI32;
}

size_t expected_counts(Counts counts, int ranks) {
  const size_t n = static_cast<size_t>(ranks);
  return counts == Counts::kNone ? 0 : counts == Counts::kOnePerRank ? n : n * n;
}

void validate_count(std::string_view name, const Call& call, int64_t count) {
  require<InvalidArgument>(count >= 0, "[{} {}] negative count {}", name, call.what, count);
  const int64_t block = traits(call.dtype).block_elems;
  require<InvalidArgument>(count % block == 0, "[{} {}] count {} is no multiple of the {} elements of a {} block", name,
                           call.what, count, block, name_of(call.dtype));
}

}  // namespace

std::chrono::milliseconds default_timeout() {
  const char* text = std::getenv("SHOAL_COMM_TIMEOUT");
  if (text == nullptr || *text == '\0') return std::chrono::seconds(120);
  return std::chrono::seconds(parse_integer("SHOAL_COMM_TIMEOUT", text, 1, 86400));
}

void check_implementation(std::string_view name) {
  for (const std::string_view known : {"auto", "host", "p2p", "nccl", "staged"}) {
    if (name == known) return;
  }
  fail<InvalidArgument>("there is no implementation '{}' of collectives; use auto, host, p2p, nccl or staged", name);
}

DType default_wire() {
  const char* text = std::getenv("SHOAL_COMM_WIRE");
  if (text == nullptr || *text == '\0' || std::string_view(text) == "f32") return DType::kF32;
  if (std::string_view(text) == "bf16") return DType::kBF16;
  fail<InvalidArgument>("SHOAL_COMM_WIRE: sums travel as f32 or bf16, not as '{}'", text);
}

std::string default_implementation() {
  const char* text = std::getenv("SHOAL_COMM");
  if (text == nullptr || *text == '\0') return "auto";
  try {
    check_implementation(text);
  } catch (const InvalidArgument& error) {
    fail<InvalidArgument>("SHOAL_COMM: {}", error.what());
  }
  return text;
}

std::string implementation_or_default(std::string_view name) {
  return name.empty() ? default_implementation() : std::string(name);
}

std::string_view name_of(Collective kind) {
  check(kind < Collective::kCount, "collective {} has no name", static_cast<int>(kind));
  return kTraits[static_cast<size_t>(kind)].name;
}

int64_t Communicator::elements_in(int rank, int ranks, const Call& call) {
  return kTraits[static_cast<size_t>(call.kind)].elements_in(rank, ranks, call);
}

int64_t Communicator::elements_out(int rank, int ranks, const Call& call) {
  return kTraits[static_cast<size_t>(call.kind)].elements_out(rank, ranks, call);
}

void Communicator::describe_span(const Call& call) {
  TraceSpan* span = current_span();
  if (span == nullptr) return;
  const int64_t elements = call.counts.empty() ? call.count : sum(call.counts);
  span->describe(TraceKind::kCollective, {name_of(call.kind), " ", call.what},
                 static_cast<int64_t>(bytes_for(call.dtype, elements)));
}

void Communicator::describe_span(const FusedNorm& norm) {
  TraceSpan* span = current_span();
  if (span == nullptr) return;
  span->describe(TraceKind::kCollective, {name_of(Collective::kAllReduce), " ", norm.what, " with norm"},
                 norm.row * norm.rows * static_cast<int64_t>(sizeof(float)));
}

void Communicator::enqueue_fused(int rank, const FusedNorm& norm) {
  fail<InvalidArgument>("[all_reduce_norm {}] the communicator '{}' cannot do it for rank {} of {}; see fused_limits()",
                        norm.what, name(), rank, size());
}

CommunicatorTraits Communicator::describe() const {
  CommunicatorTraits traits{{}, fused_limits()};
  for (int rank = 0; rank < size(); ++rank) traits.buffer_bytes.push_back(buffer_bytes(rank));
  return traits;
}

CommunicatorTraits CommunicatorFactory::describe(std::span<Device* const> devices, const Options& options) const {
  return describe_ ? describe_(devices, options) : CommunicatorTraits{std::vector<size_t>(devices.size(), 0), {}};
}

std::vector<Device*> devices_of(std::span<Backend* const> backends) {
  std::vector<Device*> devices;
  for (Backend* backend : backends) devices.push_back(&backend->device());
  return devices;
}

void Communicator::validate(int rank, const Call& call) const {
  const int ranks = size();
  require<InvalidArgument>(call.kind < Collective::kCount, "unknown collective {}", static_cast<int>(call.kind));
  require<InvalidArgument>(call.dtype < DType::kCount, "unknown dtype {}", static_cast<int>(call.dtype));
  require<InvalidArgument>(call.what != nullptr, "[{}] Call::what must be a text, \"\" for none", name_of(call.kind));
  const CollectiveTraits& kind = kTraits[static_cast<size_t>(call.kind)];
  require<InvalidArgument>(0 <= rank && rank < ranks, "[{} {}] no rank {} in a mesh of {}", kind.name, call.what, rank,
                           ranks);
  if (call.kind == Collective::kBarrier) return;
  require<InvalidArgument>(!kind.reduces || can_be_added(call.dtype),
                           "[{} {}] {} cannot be added; convert to f32, f16, bf16 or i32 first", kind.name, call.what,
                           name_of(call.dtype));
  const size_t expected = expected_counts(kind.counts, ranks);
  require<InvalidArgument>(call.counts.size() == expected, "[{} {}] expected {} counts for {} ranks, got {}", kind.name,
                           call.what, expected, ranks, call.counts.size());
  validate_count(kind.name, call, call.count);
  for (int64_t count : call.counts) validate_count(kind.name, call, count);
  require<InvalidArgument>(call.kind != Collective::kBroadcast || (0 <= call.root && call.root < ranks),
                           "[{} {}] no root {} in a mesh of {}", kind.name, call.what, call.root, ranks);
  require<InvalidArgument>(call.in != nullptr || kind.elements_in(rank, ranks, call) == 0,
                           "[{} {}] rank {} has elements to send but `in` is null", kind.name, call.what, rank);
  require<InvalidArgument>(call.out != nullptr || kind.elements_out(rank, ranks, call) == 0,
                           "[{} {}] rank {} has elements to receive but `out` is null", kind.name, call.what, rank);
}

}  // namespace shoal::collectives
