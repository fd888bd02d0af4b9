// Products of many queries with KV rows of f32. Each lane belongs to one query. An element of a KV row is broadcast to
// all lanes, so KV rows need no packing.
#include "devices/cpu/kernels/attention_forms.h"
#include "devices/cpu/kernels/half.h"
#include "devices/cpu/kernels/transpose.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

/// kTileVectors is the maximum number of vectors in a tile; each lane is one row. kTileSteps is the number of KV rows
/// (for scores) or elements (for sums) in a tile with kVectors vectors. The sums, the operands and one broadcast
/// element fill the registers.
constexpr int kTileVectors = kLanes == 16 ? 4 : 2;
template <int kVectors>
constexpr int kTileSteps = kVectors == 1 ? 12 : 6;

inline const float* floats(const KvRows& rows, int64_t j) {
  return reinterpret_cast<const float*>(rows.data + j * rows.stride);
}

/// Computes the scores of KV rows [j, j + kSteps) for kVectors vectors, starting at `lane`.
struct Scores {
  using Args = LaneScores;
  template <int kVectors>
  static constexpr int kSteps = kTileSteps<kVectors> / 2;

  template <int kVectors, int kSteps>
  using Sums = F32[kSteps][kVectors];

  /// Adds the products of element i to the sums.
  template <int kVectors, int kSteps>
  static void add(const float* const (&q)[kVectors], const float* const (&keys)[kSteps], int64_t i,
                  Sums<kVectors, kSteps>& sums) {
    F32 queries[kVectors];
    SHOAL_UNROLL
    for (int v = 0; v < kVectors; ++v) queries[v] = load<F32>(q[v] + i * kLanes);
    SHOAL_UNROLL
    for (int s = 0; s < kSteps; ++s) {
      const F32 key = splat(keys[s][i]);
      SHOAL_UNROLL
      for (int v = 0; v < kVectors; ++v) sums[s][v] = multiply_add(queries[v], key, sums[s][v]);
    }
  }

  /// Computes two of the four partial sums, and adds them.
  template <int kVectors, int kSteps>
  static void add_pair(const float* const (&q)[kVectors], const float* const (&keys)[kSteps], int64_t i, int64_t length,
                       Sums<kVectors, kSteps>& sums) {
    Sums<kVectors, kSteps> others = {};
    SHOAL_UNROLL
    for (int s = 0; s < kSteps; ++s) {
      SHOAL_UNROLL
      for (int v = 0; v < kVectors; ++v) sums[s][v] = F32{};
    }
    for (; i + 2 < length; i += 4) {
      add<kVectors, kSteps>(q, keys, i, sums);
      add<kVectors, kSteps>(q, keys, i + 2, others);
    }
    if (i < length) add<kVectors, kSteps>(q, keys, i, sums);
    SHOAL_UNROLL
    for (int s = 0; s < kSteps; ++s) {
      SHOAL_UNROLL
      for (int v = 0; v < kVectors; ++v) sums[s][v] += others[s][v];
    }
  }

  template <int kVectors, int kSteps>
  static void run(const LaneScores& args, int64_t lane, int64_t j) {
    const float* keys[kSteps];
    SHOAL_UNROLL
    for (int s = 0; s < kSteps; ++s) keys[s] = floats(args.keys, j + s);
    const float* q[kVectors];
    SHOAL_UNROLL
    for (int v = 0; v < kVectors; ++v) q[v] = args.q + (lane + v * kLanes) * args.keys.length;
    Sums<kVectors, kSteps> even, odd;
    add_pair<kVectors, kSteps>(q, keys, 0, args.keys.length, even);
    add_pair<kVectors, kSteps>(q, keys, 1, args.keys.length, odd);
    float* to = args.scores + j * kAttentionRows + lane;
    SHOAL_UNROLL
    for (int s = 0; s < kSteps; ++s) {
      SHOAL_UNROLL
      for (int v = 0; v < kVectors; ++v) store(to + s * kAttentionRows + v * kLanes, even[s][v] + odd[s][v]);
    }
  }
};

/// Updates the sums of elements [i, i + kSteps) for kVectors vectors, starting at `lane`.
template <bool kHidden>
struct Sums {
  using Args = LaneSums;
  template <int kVectors>
  static constexpr int kSteps = kTileSteps<kVectors>;

  template <int kVectors, int kSteps>
  static void run(const LaneSums& args, int64_t lane, int64_t i) {
    float* sums_at = args.sums + i * kAttentionRows + lane;
    F32 sums[kSteps][kVectors];
    SHOAL_UNROLL
    for (int s = 0; s < kSteps; ++s) {
      SHOAL_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        sums[s][v] = load<F32>(sums_at + s * kAttentionRows + v * kLanes) * load<F32>(args.keep + lane + v * kLanes);
      }
    }
    const float* weights_at = args.weights + lane;
    for (int64_t j = 0; j < args.values.count; ++j, weights_at += kAttentionRows) {
      const float* values = floats(args.values, j) + i;
      F32 weights[kVectors];
      SHOAL_UNROLL
      for (int v = 0; v < kVectors; ++v) weights[v] = load<F32>(weights_at + v * kLanes);
      SHOAL_UNROLL
      for (int s = 0; s < kSteps; ++s) {
        const F32 value = splat(values[s]);
        SHOAL_UNROLL
        for (int v = 0; v < kVectors; ++v) {
          const F32 sum = multiply_add(weights[v], value, sums[s][v]);
          sums[s][v] = kHidden ? (bits_as<I32>(weights[v]) < 0 ? sums[s][v] : sum) : sum;
        }
      }
    }
    SHOAL_UNROLL
    for (int s = 0; s < kSteps; ++s) {
      SHOAL_UNROLL
      for (int v = 0; v < kVectors; ++v) store(sums_at + s * kAttentionRows + v * kLanes, sums[s][v]);
    }
  }
};

template <class Product, int kVectors>
inline void run_steps(const typename Product::Args& args, int64_t lane, int64_t steps) {
  constexpr int kSteps = Product::template kSteps<kVectors>;
  int64_t i = 0;
  for (; i + kSteps <= steps; i += kSteps) Product::template run<kVectors, kSteps>(args, lane, i);
  for (; i + 2 <= steps; i += 2) Product::template run<kVectors, 2>(args, lane, i);
  if (i < steps) Product::template run<kVectors, 1>(args, lane, i);
}

/// Processes the lanes in tiles of kVectors vectors. Smaller tiles process the remaining lanes.
template <class Product, int kVectors>
void run_lanes(const typename Product::Args& args, int64_t lane, int64_t steps) {
  for (; lane + (kVectors - 1) * kLanes < args.rows; lane += kVectors * kLanes) {
    run_steps<Product, kVectors>(args, lane, steps);
  }
  if constexpr (kVectors > 1) run_lanes<Product, kVectors - 1>(args, lane, steps);
}

}  // namespace

void lane_scores(const LaneScores& args) {
  run_lanes<Scores, kTileVectors>(args, 0, args.keys.count);
}

void lane_sums(const LaneSums& args) {
  args.hidden ? run_lanes<Sums<true>, kTileVectors>(args, 0, args.values.length)
              : run_lanes<Sums<false>, kTileVectors>(args, 0, args.values.length);
}

void pack_queries(const float* from, int64_t from_stride, int64_t rows, int64_t columns, float* to) {
  for (int64_t row = 0; row < rows; row += kLanes) {
    transpose_floats(from + row * from_stride, from_stride, kLanes, columns, to + row * columns, kLanes);
  }
}

void transpose_floats(const float* from, int64_t from_stride, int64_t rows, int64_t columns, float* to,
                      int64_t to_stride) {
  const int64_t whole_rows = rows / kLanes * kLanes, whole_columns = columns / kLanes * kLanes;
  for (int64_t i = 0; i < whole_rows; i += kLanes) {
    for (int64_t j = 0; j < whole_columns; j += kLanes) {
      I32 v[kLanes];
      SHOAL_UNROLL
      for (int r = 0; r < kLanes; ++r) v[r] = load<I32>(from + (i + r) * from_stride + j);
      transpose(v);
      SHOAL_UNROLL
      for (int r = 0; r < kLanes; ++r) store(to + (j + r) * to_stride + i, v[r]);
    }
  }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = i < whole_rows ? whole_columns : 0; j < columns; ++j)
      to[j * to_stride + i] = from[i * from_stride + j];
  }
}

}  // namespace shoal::cpu::SHOAL_ISA
