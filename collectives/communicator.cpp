// Code shared by all communicators: options and the validation of calls.
#include "collectives/communicator.h"

#include <cstdlib>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace shoal::collectives {
namespace {

void validate_count(std::string_view name, const Call& call, int64_t count) {
  require<InvalidArgument>(count >= 0, "[{} {}] negative count {}", name, call.what, count);
  const int64_t block = traits(call.dtype).block_elems;
  require<InvalidArgument>(count % block == 0, "[{} {}] count {} is not a multiple of the {} elements of a {} block",
                           name, call.what, count, block, name_of(call.dtype));
}

}  // namespace

std::chrono::milliseconds default_timeout() {
  const char* text = std::getenv("SHOAL_COMM_TIMEOUT");
  if (text == nullptr || *text == '\0') return std::chrono::seconds(120);
  return std::chrono::seconds(parse_integer("SHOAL_COMM_TIMEOUT", text, 1, 86400));
}

void check_implementation(std::string_view name) {
  for (const std::string_view known : {"auto", "host", "mpi", "p2p", "nccl", "staged"}) {
    if (name == known) return;
  }
  fail<InvalidArgument>("there is no implementation '{}' of collectives; use auto, host, mpi, p2p, nccl or staged",
                        name);
}

void check_options(const Options& options) {
  check_implementation(options.implementation);
  require<InvalidArgument>(options.timeout.count() > 0 && options.timeout <= std::chrono::hours(24),
                           "the time-out of collectives must be 1 ms to 1 day, got {} ms", options.timeout.count());
  require<InvalidArgument>(options.wire == DType::kF32 || options.wire == DType::kBF16,
                           "sums must be sent as dtype f32 or bf16, got dtype number {}",
                           static_cast<int>(options.wire));
}

DType default_wire() {
  const char* text = std::getenv("SHOAL_COMM_WIRE");
  if (text == nullptr || *text == '\0' || std::string_view(text) == "f32") return DType::kF32;
  if (std::string_view(text) == "bf16") return DType::kBF16;
  fail<InvalidArgument>("SHOAL_COMM_WIRE must be f32 or bf16, got '{}'", text);
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

void Communicator::describe_span(const Call& call) {
  TraceSpan* span = current_span();
  if (span == nullptr) return;
  const int64_t elements =
      call.counts.empty() ? call.count : std::accumulate(call.counts.begin(), call.counts.end(), int64_t{0});
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
  fail<InvalidArgument>(
      "[all_reduce_norm {}] the communicator '{}' does not support this call for rank {} of {}; see fused_limits()",
      norm.what, name(), rank, size());
}

CommunicatorTraits Communicator::describe() const {
  CommunicatorTraits traits{{}, fused_limits()};
  for (int rank = 0; rank < size(); ++rank) traits.buffer_bytes.push_back(buffer_bytes(rank));
  return traits;
}

std::unique_ptr<Communicator> CommunicatorFactory::operator()(std::span<Backend* const> ranks,
                                                              const Options& options) const {
  check_options(options);
  auto made = make_ ? make_(ranks, options) : nullptr;
  require<InvalidArgument>(made != nullptr, "the communicator factory returned no communicator for {} ranks",
                           ranks.size());
  require<InvalidArgument>(made->size() == static_cast<int>(ranks.size()),
                           "the communicator factory returned a communicator of {} ranks, expected {}", made->size(),
                           ranks.size());
  return made;
}

CommunicatorTraits CommunicatorFactory::describe(std::span<Device* const> devices, const Options& options) const {
  if (!describe_) return {std::vector<size_t>(devices.size(), 0), {}};
  CommunicatorTraits traits = describe_(devices, options);
  const size_t count = traits.buffer_bytes.size();
  require<InvalidArgument>(count == 0 || count == devices.size(),
                           "the communicator factory describes the buffers of {} ranks, expected {}", count,
                           devices.size());
  return traits;
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
  require<InvalidArgument>(call.what != nullptr, "[{}] Call::what must not be null; use \"\" for no name",
                           name_of(call.kind));
  const CollectiveInfo& kind = info(call.kind);
  require<InvalidArgument>(0 <= rank && rank < ranks, "[{} {}] no rank {} in a mesh of {} ranks", kind.name, call.what,
                           rank, ranks);
  require<InvalidArgument>(!kind.sums || is_summable(call.dtype),
                           "[{} {}] {} cannot be summed; convert to f32, f16, bf16 or i32 first", kind.name, call.what,
                           name_of(call.dtype));
  const size_t expected = kind.counts(ranks);
  require<InvalidArgument>(call.counts.size() == expected, "[{} {}] expected {} counts for {} ranks, got {}", kind.name,
                           call.what, expected, ranks, call.counts.size());
  validate_count(kind.name, call, call.count);
  for (int64_t count : call.counts) validate_count(kind.name, call, count);
  require<InvalidArgument>(!kind.has_root() || (0 <= call.root && call.root < ranks),
                           "[{} {}] no root {} in a mesh of {} ranks", kind.name, call.what, call.root, ranks);
  require<InvalidArgument>(call.in != nullptr || elements_in(rank, ranks, call) == 0,
                           "[{} {}] rank {} has elements to send but `in` is null", kind.name, call.what, rank);
  require<InvalidArgument>(call.out != nullptr || elements_out(rank, ranks, call) == 0,
                           "[{} {}] rank {} has elements to receive but `out` is null", kind.name, call.what, rank);
}

uint64_t call_digest(const Call& call) {
  uint64_t value = 0xcbf29ce484222325;  // FNV-1a over 64-bit words
  const auto add = [&](int64_t number) { value = (value ^ static_cast<uint64_t>(number)) * 0x100000001b3; };
  add(call.count);
  for (int64_t count : call.counts) add(count);
  return value;
}

}  // namespace shoal::collectives
