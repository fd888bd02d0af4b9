// What the collectives that `shoal bench-comm` times must give, element by element, and how many elements are not that.
// Every rank's data are a function of rank and place, so that no copy of them is kept. Plain functions,
// thread-safe.
//
//   2 ranks, parts of 3, rank 1:  in  v(1,0) .. v(1,5)
//   reduce_scatter gives v(0,3) + v(1,3) .. v(0,5) + v(1,5), all_to_all v(0,3) v(0,4) v(0,5) v(1,3) v(1,4) v(1,5)
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "collectives/communicator.h"

namespace shoal::tools {

/// One collective of a size.
struct CommCase {
  Collective kind = Collective::kAllReduce;
  DType dtype = DType::kF32;
  int ranks = 1;
  int64_t part = 0;  ///< elements: of the message, or of what one rank gives another where there are counts
  int root = 0;

  /// Elements of a rank's input and output.
  int64_t elements_in() const;
  int64_t elements_out() const;
  /// Elements of the message: of the larger of both.
  int64_t elements() const;
  /// Bytes of this many elements.
  size_t bytes(int64_t count) const { return bytes_for(dtype, count); }
  /// Bytes of the message, what rates are of.
  size_t size() const { return bytes(elements()); }
  bool reduces() const { return info(kind).sums; }
};

/// The case whose message has about this many bytes, at least an element for each rank.
CommCase case_of_size(Collective kind, DType dtype, int ranks, size_t size);

/// Values [first, ...) of a rank's data, in the dtype: numbers in [-1, 1) whose sums depend on the order, or any i32.
void fill_values(DType dtype, int rank, int64_t first, std::span<std::byte> to);

/// How far an element of a sum may be from the sum in rank order; 0: the same bits. NCCL, and "cuda" which may choose
/// it, add in orders of their own; every other communicator in rank order (collectives/communicator.h).
double allowed_error(std::string_view communicator, const CommCase& c);

/// How many of the elements that a rank has got are wrong.
int64_t count_wrong(const CommCase& c, int rank, std::span<const std::byte> out, double allowed = 0.0);

}  // namespace shoal::tools
