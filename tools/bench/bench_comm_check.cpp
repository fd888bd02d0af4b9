#include "tools/bench/bench_comm_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace shoal::tools {
namespace {

constexpr int64_t kBlock = 4096;  // number of elements generated at a time
constexpr int kSum = -1;

/// A range of an output: `count` values that start at index `first`. The values come from the data of rank `from`. If
/// `from` is kSum, the values come from the sum over all ranks.
struct Segment {
  int from;
  int64_t first;
  int64_t count;
};

std::vector<Segment> expected_segments(const CommCase& c, int rank) {
  const CollectiveInfo& kind = info(c.kind);
  if (kind.out == Extent::kOfRoot && rank != c.root) return {};
  const bool own = kind.in == Extent::kAllParts || kind.in == Extent::kPartsTo;
  const int64_t first = own ? rank * c.part : 0;
  if (kind.sums) return {{kSum, first, c.part}};
  if (kind.in == Extent::kOfRoot) return {{c.root, first, c.part}};
  std::vector<Segment> segments;
  for (int from = 0; from < c.ranks; ++from) segments.push_back({from, first, c.part});
  return segments;
}

/// Number of elements of an input or output. Every rank allocates a whole message, even if only the root uses it.
int64_t elements_of(Extent extent, const CommCase& c) {
  const bool all = extent == Extent::kAllParts || extent == Extent::kPartsTo || extent == Extent::kPartsFrom;
  return all ? c.part * c.ranks : c.part;
}

/// A hash function: the finaliser of MurmurHash3.
uint32_t mixed(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ULL;
  return static_cast<uint32_t>(x >> 32);
}
uint32_t bits_at(int rank, int64_t index) {
  return mixed((static_cast<uint64_t>(rank) << 48) + static_cast<uint64_t>(index) + 1);
}

/// Writes the sums of the data of all ranks, added in rank order. i32 sums wrap around. f16 and bf16 values are added
/// in f32, and each sum is rounded once.
void sum_values(DType dtype, int ranks, int64_t first, std::span<std::byte> to) {
  const size_t count = to.size() / bytes_for(dtype, 1);
  std::vector<std::byte> one(to.size());
  if (dtype == DType::kI32) {
    std::vector<uint32_t> sum(count, 0), values(count);
    for (int rank = 0; rank < ranks; ++rank) {
      fill_values(dtype, rank, first, std::as_writable_bytes(std::span(values)));
      for (size_t i = 0; i < count; ++i) sum[i] += values[i];
    }
    std::memcpy(to.data(), sum.data(), to.size());
    return;
  }
  std::vector<float> sum(count), values(count);
  for (int rank = 0; rank < ranks; ++rank) {
    fill_values(dtype, rank, first, one);
    traits(dtype).to_f32(one.data(), values.data(), static_cast<int64_t>(count));
    for (size_t i = 0; i < count; ++i) sum[i] = rank == 0 ? values[i] : sum[i] + values[i];
  }
  traits(dtype).from_f32(sum.data(), to.data(), static_cast<int64_t>(count));
}

int64_t count_different(std::span<const std::byte> a, std::span<const std::byte> b, size_t element) {
  if (std::equal(a.begin(), a.end(), b.begin())) return 0;
  int64_t different = 0;
  for (size_t at = 0; at < a.size(); at += element) {
    different += std::memcmp(a.data() + at, b.data() + at, element) != 0 ? 1 : 0;
  }
  return different;
}

int64_t count_far(DType dtype, std::span<const std::byte> a, std::span<const std::byte> b, double allowed) {
  const size_t count = a.size() / bytes_for(dtype, 1);
  std::vector<float> x(count), y(count);
  traits(dtype).to_f32(a.data(), x.data(), static_cast<int64_t>(count));
  traits(dtype).to_f32(b.data(), y.data(), static_cast<int64_t>(count));
  int64_t far = 0;
  for (size_t i = 0; i < count; ++i) {
    const bool near = std::abs(static_cast<double>(x[i]) - static_cast<double>(y[i])) <= allowed;
    far += near ? 0 : 1;  // NaN always counts as wrong
  }
  return far;
}

}  // namespace

int64_t CommCase::elements_in() const {
  return elements_of(info(kind).in, *this);
}

int64_t CommCase::elements_out() const {
  return elements_of(info(kind).out, *this);
}

int64_t CommCase::elements() const {
  return std::max(elements_in(), elements_out());
}

CommCase case_of_size(Collective kind, DType dtype, int ranks, size_t size) {
  CommCase c{kind, dtype, ranks, 1, 0};
  const size_t unit = c.size();  // bytes of a message if each part has one element
  c.part = std::max<int64_t>(1, static_cast<int64_t>(size / unit));
  return c;
}

void fill_values(DType dtype, int rank, int64_t first, std::span<std::byte> to) {
  const size_t element = bytes_for(dtype, 1);
  std::vector<float> values;
  std::vector<uint32_t> bits;
  for (size_t done = 0, count = to.size() / element; done < count;) {
    const size_t n = std::min<size_t>(kBlock, count - done);
    std::byte* out = to.data() + done * element;
    bits.resize(n);
    for (size_t i = 0; i < n; ++i) bits[i] = bits_at(rank, first + static_cast<int64_t>(done + i));
    if (dtype == DType::kI32) {
      std::memcpy(out, bits.data(), n * element);
    } else {
      values.resize(n);
      for (size_t i = 0; i < n; ++i) values[i] = static_cast<float>(bits[i] >> 8) * 0x1p-23f - 1.0f;
      traits(dtype).from_f32(values.data(), out, static_cast<int64_t>(n));
    }
    done += n;
  }
}

double allowed_error(std::string_view communicator, const CommCase& c) {
  const bool by_peers = communicator == "p2p" || communicator == "cuda";
  if (by_peers && c.reduces() && c.dtype == DType::kF32 && collectives::default_wire() == DType::kBF16) {
    return 0x1p-8 * 2 * c.ranks;  // bf16 rounds each addend and the sum; |sum| is at most the number of ranks
  }
  const bool any_order = communicator == "nccl" || communicator == "cuda";
  if (!any_order || !c.reduces() || c.dtype == DType::kI32) return 0.0;
  // With n ranks, each of the n - 1 additions rounds a sum of at most n.
  const double epsilon = c.dtype == DType::kF32 ? 0x1p-23 : c.dtype == DType::kF16 ? 0x1p-10 : 0x1p-7;
  return epsilon * c.ranks * (c.ranks - 1);
}

int64_t count_wrong(const CommCase& c, int rank, std::span<const std::byte> out, double allowed) {
  check(out.size() == c.bytes(c.elements_out()), "{} bytes do not equal {} elements", out.size(), c.elements_out());
  const size_t element = c.bytes(1);
  std::vector<std::byte> expected;
  int64_t wrong = 0;
  for (const Segment& segment : expected_segments(c, rank)) {
    for (int64_t done = 0; done < segment.count; done += kBlock) {
      const int64_t n = std::min(kBlock, segment.count - done);
      expected.resize(static_cast<size_t>(n) * element);
      const bool is_sum = segment.from == kSum;
      if (is_sum) sum_values(c.dtype, c.ranks, segment.first + done, expected);
      if (!is_sum) fill_values(c.dtype, segment.from, segment.first + done, expected);
      const std::span<const std::byte> got = out.first(expected.size());
      wrong += is_sum && allowed > 0.0 ? count_far(c.dtype, got, expected, allowed)
                                       : count_different(got, expected, element);
      out = out.subspan(expected.size());
    }
  }
  return wrong;
}

}  // namespace shoal::tools
