// Sums of convolutions with few result channels. Such sums need more time for the copies of the inputs than for the
// products. A panel has a copy of an input for each tap. Here each row of inputs is copied once per row of taps, and
// the taps of axis 0 read the copy at different positions.
#include "devices/cpu/kernels/conv_panels.h"
#include "devices/cpu/kernels/panel_tiles.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

/// to[i] = element x + i of the row for i < n. Elements outside [0, inputs) are zero.
void copy_padded(const float* row, int64_t x, int64_t inputs, int64_t n, float* to) {
  const int64_t zeros = x < 0 ? -x : 0, end = inputs - x < n ? inputs - x : n;
  int64_t i = 0;
  for (; i < zeros && i < n; ++i) to[i] = 0;
  for (; i + kLanes <= end; i += kLanes) store(to + i, load<F32>(row + x + i));
  for (; i < end; ++i) to[i] = row[x + i];
  for (; i < n; ++i) to[i] = 0;
}

/// Copies the inputs of all terms for n results of row `row`, starting at result `at`. Each copied row contains the
/// inputs of one channel for all taps of axis 0. Returns the number of elements per copied row.
int64_t copy_rows(const ConvPanels& args, int64_t row, int64_t at, int64_t n) {
  const ConvAxis &w = args.axes[0], &h = args.axes[1];
  const int64_t length = (n + kLanes - 1) / kLanes * kLanes + (w.taps - 1) * w.x_tap;
  float* to = reinterpret_cast<float*>(args.panels);
  for (int64_t i = args.k_begin / w.taps; i * w.taps < args.k_begin + args.k; ++i, to += length) {
    const int64_t x1 = h.x_first + row * h.x_step + i % h.taps * h.x_tap;
    const bool inside = x1 >= 0 && x1 < h.inputs;
    const float* from = args.x + i / h.taps * args.x_strides[2] + (inside ? x1 : 0) * args.x_strides[1];
    copy_padded(from, w.x_first + at, inside ? w.inputs : 0, length, to);
  }
  return length;
}

/// Results `row` and following of a call, which are in one row. `inputs` are the copied rows from the first result on.
struct Run {
  const float* inputs;
  int64_t length;  ///< number of elements per copied row
  int64_t row, count;
};

/// Computes R vectors of results of C channels, starting at result `at` of the run.
template <int R, int C>
void sum_terms(const PanelArgs& product, const ConvAxis& axis, const Run& run, int64_t at) {
  const float* weights[C];
  for (int c = 0; c < C; ++c) weights[c] = reinterpret_cast<const float*>(product.b[c]) + product.k_begin;
  F32 sums[R][C] = {};
  // The copies of these values stay in registers.
  const int64_t k = product.k, taps = axis.taps, step = axis.x_tap, length = run.length;
  const float* x = run.inputs + at;
  int64_t tap = product.k_begin % taps;
  for (int64_t i = 0; i < k; x += length, tap = 0) {
    const int64_t end = i + taps - tap < k ? i + taps - tap : k;
    for (const float* from = x + tap * step; i < end; ++i, from += step) {
      F32 inputs[R];
      SHOAL_UNROLL
      for (int r = 0; r < R; ++r) inputs[r] = load<F32>(from + r * kLanes);
      SHOAL_UNROLL
      for (int c = 0; c < C; ++c) {
        const F32 weight = splat(weights[c][i]);
        SHOAL_UNROLL
        for (int r = 0; r < R; ++r) sums[r][c] = multiply_add(inputs[r], weight, sums[r][c]);
      }
    }
  }
  SHOAL_UNROLL
  for (int r = 0; r < R; ++r) store_sums(product, run.row + at + r * kLanes, 0, sums[r]);
}

template <int C>
void sum_run(const PanelArgs& product, const ConvAxis& axis, const Run& run) {
  constexpr int kVectors = C == 1 ? 8 : 4;
  int64_t at = 0;
  for (; at + (kVectors - 1) * kLanes < run.count; at += kVectors * kLanes) {
    sum_terms<kVectors, C>(product, axis, run, at);
  }
  for (; at < run.count; at += kLanes) sum_terms<1, C>(product, axis, run, at);
}

}  // namespace

void conv_rows(const ConvPanels& args, const PanelArgs& product) {
  static_assert(kMostRowChannels == 3);
  const auto sum = product.columns == 1 ? sum_run<1> : product.columns == 2 ? sum_run<2> : sum_run<3>;
  const ConvAxis axis = args.axes[0];
  int64_t row = args.first / axis.results, at = args.first % axis.results;
  for (int64_t done = 0; done < args.results;) {
    int64_t n = args.results - done < axis.results - at ? args.results - done : axis.results - at;
    if (n > kConvRun) n = kConvRun;
    PanelArgs of_run = product;
    of_run.rows = done + n;
    sum(of_run, axis, {reinterpret_cast<const float*>(args.panels), copy_rows(args, row, at, n), done, n});
    done += n, at += n;
    if (at == axis.results) at = 0, ++row;
  }
}

}  // namespace shoal::cpu::SHOAL_ISA
