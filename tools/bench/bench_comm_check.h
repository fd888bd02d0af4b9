// Computes the expected result of each collective for `shoal bench-comm`, and counts the wrong elements of a result.
// Each rank's data is a function v(rank, index), so no copy of the data is needed. Plain functions; thread-safe.
//
//   2 ranks, parts of 3 elements, rank 1:  input v(1,0) .. v(1,5)
//   reduce_scatter gives v(0,3) + v(1,3) .. v(0,5) + v(1,5)
//   all_to_all gives     v(0,3) v(0,4) v(0,5) v(1,3) v(1,4) v(1,5)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "collectives/communicator.h"

namespace shoal::tools {

/// One collective with one message size.
struct CommCase {
  Collective kind = Collective::kAllReduce;
  DType dtype = DType::kF32;
  int ranks = 1;
  int64_t part = 0;  ///< number of elements in the message, or in one rank's part if the collective divides the message
  int root = 0;

  /// Number of elements in a rank's input and output.
  int64_t elements_in() const;
  int64_t elements_out() const;
  /// Number of elements in the message: the maximum of elements_in() and elements_out().
  int64_t elements() const;
  /// Bytes of `count` elements.
  size_t bytes(int64_t count) const { return bytes_for(dtype, count); }
  /// Bytes of the message. Bandwidths refer to this size.
  size_t size() const { return bytes(elements()); }
  bool reduces() const { return info(kind).sums; }
};

/// Returns the CommCase whose message has at most `size` bytes. If `size` is too small for one element per part, each
/// part has one element.
CommCase case_of_size(Collective kind, DType dtype, int ranks, size_t size);

/// Writes a rank's data from index `first` on. Floating-point values are in [-1, 1), and their sums depend on the order
/// of additions. i32 values are arbitrary.
void fill_values(DType dtype, int rank, int64_t first, std::span<std::byte> to);

/// Largest allowed difference between an element of the result and the sum in rank order. 0: all bits must be equal.
/// NCCL chooses its own order of additions, and the communicator "cuda" may choose NCCL. All other communicators add in
/// rank order (collectives/communicator.h). With SHOAL_COMM_WIRE=bf16, the communicators "p2p" and "cuda" round f32
/// values.
double allowed_error(std::string_view communicator, const CommCase& c);

/// Number of elements of a rank's output that differ from the expected values by more than `allowed`.
int64_t count_wrong(const CommCase& c, int rank, std::span<const std::byte> out, double allowed = 0.0);

}  // namespace shoal::tools
