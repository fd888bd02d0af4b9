// Collective calls with their expected results, for tests of all communicators.
#pragma once

#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "collectives/communicator.h"

namespace shoal::collectives {

using Bytes = std::vector<std::byte>;

/// Input values of rank `rank`: whole numbers up to 14. So sums over 16 ranks are exact in every dtype.
inline std::vector<float> values(int rank, int64_t count, int seed = 0) {
  std::vector<float> result(count);
  for (int64_t i = 0; i < count; ++i) result[i] = static_cast<float>((i * 7 + rank * 13 + seed * 5) % 15);
  return result;
}

inline Bytes encode(DType dtype, const std::vector<float>& numbers) {
  Bytes bytes(bytes_for(dtype, static_cast<int64_t>(numbers.size())));
  if (!numbers.empty()) traits(dtype).from_f32(numbers.data(), bytes.data(), static_cast<int64_t>(numbers.size()));
  return bytes;
}

inline std::vector<float> slice(const std::vector<float>& numbers, int64_t begin, int64_t count) {
  return {numbers.begin() + begin, numbers.begin() + begin + count};
}

inline int64_t prefix(const std::vector<int64_t>& counts, int end) {
  return std::accumulate(counts.begin(), counts.begin() + end, int64_t{0});
}

/// One collective with the inputs and expected outputs of all ranks.
struct CollectiveCase {
  Collective kind = Collective::kAllReduce;
  DType dtype = DType::kF32;
  int root = 0;
  int64_t count = 0;
  std::vector<int64_t> counts = {};
  std::vector<Bytes> in = {}, expected = {};

  void add_rank(const std::vector<float>& in_values, const std::vector<float>& out_values) {
    in.push_back(encode(dtype, in_values));
    expected.push_back(encode(dtype, out_values));
  }
};

inline CollectiveCase all_reduce_case(int ranks, DType dtype, int64_t count, int seed = 0) {
  CollectiveCase test{.kind = Collective::kAllReduce, .dtype = dtype, .count = count};
  std::vector<float> total(count);
  for (int rank = 0; rank < ranks; ++rank) {
    const auto addend = values(rank, count, seed);
    for (int64_t i = 0; i < count; ++i) total[i] += addend[i];
  }
  for (int rank = 0; rank < ranks; ++rank) test.add_rank(values(rank, count, seed), total);
  return test;
}

inline CollectiveCase all_gather_case(DType dtype, const std::vector<int64_t>& counts, int seed = 0) {
  CollectiveCase test{.kind = Collective::kAllGather, .dtype = dtype, .counts = counts};
  std::vector<float> all;
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    const auto part = values(static_cast<int>(rank), counts[rank], seed);
    all.insert(all.end(), part.begin(), part.end());
  }
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    test.add_rank(values(static_cast<int>(rank), counts[rank], seed), all);
  }
  return test;
}

inline CollectiveCase reduce_scatter_case(DType dtype, const std::vector<int64_t>& counts, int seed = 0) {
  const int ranks = static_cast<int>(counts.size());
  const int64_t total = prefix(counts, ranks);
  const CollectiveCase reduced = all_reduce_case(ranks, DType::kF32, total, seed);
  std::vector<float> sums(total);
  if (total > 0) std::memcpy(sums.data(), reduced.expected[0].data(), total * sizeof(float));
  CollectiveCase test{.kind = Collective::kReduceScatter, .dtype = dtype, .counts = counts};
  for (int rank = 0; rank < ranks; ++rank) {
    test.add_rank(values(rank, total, seed), slice(sums, prefix(counts, rank), counts[rank]));
  }
  return test;
}

inline CollectiveCase all_to_all_case(DType dtype, int ranks, const std::vector<int64_t>& counts, int seed = 0) {
  CollectiveCase test{.kind = Collective::kAllToAll, .dtype = dtype, .counts = counts};
  const auto row = [&](int from) {
    return std::vector<int64_t>(counts.begin() + from * ranks, counts.begin() + (from + 1) * ranks);
  };
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<float> received;
    for (int from = 0; from < ranks; ++from) {
      const auto sent = values(from, prefix(row(from), ranks), seed);
      const auto part = slice(sent, prefix(row(from), rank), row(from)[rank]);
      received.insert(received.end(), part.begin(), part.end());
    }
    test.add_rank(values(rank, prefix(row(rank), ranks), seed), received);
  }
  return test;
}

inline CollectiveCase broadcast_case(int ranks, DType dtype, int64_t count, int root, int seed = 0) {
  CollectiveCase test{.kind = Collective::kBroadcast, .dtype = dtype, .root = root, .count = count};
  for (int rank = 0; rank < ranks; ++rank) {
    test.add_rank(rank == root ? values(root, count, seed) : std::vector<float>{}, values(root, count, seed));
  }
  return test;
}

/// Element counts of parts with different sizes: step, 2 * step + 1, 0, 4 * step + 3, ... Every third part is empty.
inline std::vector<int64_t> uneven(int parts, int64_t step) {
  std::vector<int64_t> counts(parts);
  for (int i = 0; i < parts; ++i) counts[i] = i % 3 == 2 ? 0 : (i + 1) * step + i;
  return counts;
}

}  // namespace shoal::collectives
