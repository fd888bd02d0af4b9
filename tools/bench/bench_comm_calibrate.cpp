// Which way of all_reduce is the fastest, by size.
#include <fmt/format.h>

#include <limits>
#include <optional>

#include "base/error.h"
#include "tools/bench/bench_comm.h"

namespace shoal::tools {
namespace {

/// The same with other thresholds than those that were measured earlier.
CommImplementation with(const CommImplementation& implementation, const collectives::Thresholds& thresholds) {
  const auto make = [make = implementation.make, thresholds](std::span<Backend* const> ranks,
                                                             const collectives::Options& options) {
    collectives::Options own = options;
    own.thresholds = thresholds;
    return make(ranks, own);
  };
  return {implementation.name, make};
}

}  // namespace

collectives::Thresholds CommBench::calibrate(const CommBenchOptions& options, size_t most_bytes,
                                             const std::function<bool()>& stop) {
  constexpr size_t kSmallest = size_t{4} << 10, kNever = std::numeric_limits<int64_t>::max();
  require<InvalidArgument>(most_bytes >= kSmallest, "nothing to compare up to {} bytes; give {} or more", most_bytes,
                           kSmallest);
  const CommImplementation peers = implementation("p2p");
  collectives::Thresholds found;
  const auto by_peers = [&](size_t one_shot_to_bytes, size_t bytes) {
    drop_communicator();
    return measure(with(peers, {.one_shot_to_bytes = one_shot_to_bytes}),
                   case_of_size(Collective::kAllReduce, DType::kF32, ranks(), bytes), options, stop);
  };
  const auto microseconds = [](const CommResult& result) { return result.in_place->us; };
  const auto try_nccl = [&]() -> std::optional<CommImplementation> {
    try {
      return implementation("nccl");
    } catch (const InvalidArgument&) {
      return std::nullopt;
    }
  };
  // From the smallest up, as long as one shot is ahead: what is too large for it travels in two all the same.
  for (size_t bytes = kSmallest; bytes <= most_bytes; bytes *= 2) {
    const bool is_faster = microseconds(by_peers(kNever, bytes)) < microseconds(by_peers(0, bytes));
    if (is_faster || !found.one_shot_to_bytes) found.one_shot_to_bytes = is_faster ? bytes : 0;
    if (!is_faster) break;
  }
  if (const auto nccl = try_nccl()) {
    // From the largest down, as long as NCCL is.
    for (size_t bytes = most_bytes; bytes >= kSmallest; bytes /= 2) {
      const double peers_us = microseconds(by_peers(found.one_shot_to_bytes.value_or(kNever), bytes));
      const CommCase which = case_of_size(Collective::kAllReduce, DType::kF32, ranks(), bytes);
      if (microseconds(measure(*nccl, which, options, stop)) >= peers_us) break;
      found.nccl_from_bytes = bytes;
    }
  }
  drop_communicator();
  collectives::save_thresholds(devices_, found);
  return found;
}

}  // namespace shoal::tools
