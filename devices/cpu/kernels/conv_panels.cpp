// Gathers the inputs of a convolution into panels. All inputs of a channel are gathered before the next channel,
// because the rows of one channel are adjacent in memory.
#include "devices/cpu/kernels/conv_panels.h"

namespace shoal::cpu::SHOAL_ISA {
namespace {

constexpr int64_t kAhead = 2;  ///< the number of channels between a gathered and a prefetched input

/// Lanes of one panel whose results are in one row. x0 and x1 are the input indices of the first lane for tap 0.
struct Run {
  int64_t lane, count, x0, x1;
};

/// The runs of all panels. Panel p has runs [first[p], first[p + 1]).
struct Runs {
  explicit Runs(const ConvPanels& args) {
    const ConvAxis &w = args.axes[0], &h = args.axes[1];
    int count = 0;
    int64_t row = args.first / w.results, at = args.first % w.results;
    for (int64_t left = args.results; left > 0; left -= kLanes) {
      const int64_t lanes = left < kLanes ? left : kLanes;
      first[panels++] = count;
      for (int64_t lane = 0; lane < lanes;) {
        const int64_t n = lanes - lane < w.results - at ? lanes - lane : w.results - at;
        runs[count++] = {lane, n, w.x_first + at * w.x_step, h.x_first + row * h.x_step};
        lane += n, at += n;
        if (at == w.results) at = 0, ++row;
      }
    }
    first[panels] = count;
  }

  int panels = 0;
  int first[kConvResults / kLanes + 1];
  Run runs[kConvResults];
};

/// to[i] = input x + i * x_step of the row for i < n. Inputs outside [0, inputs) are zero.
void gather(const float* row, int64_t stride, int64_t x, int64_t x_step, int64_t inputs, int64_t n, float* to) {
  if (x >= 0 && x + (n - 1) * x_step < inputs) {
    for (int64_t i = 0; i < n; ++i) to[i] = row[(x + i * x_step) * stride];
  } else {
    for (int64_t i = 0; i < n; ++i, x += x_step) to[i] = x >= 0 && x < inputs ? row[x * stride] : 0.0f;
  }
}

/// Gathers `count` taps of one channel for the lanes of one run, starting at tap (tap0, tap1).
inline void gather_taps(const ConvPanels& args, const float* channel, int64_t tap0, int64_t tap1, int64_t count,
                        const Run& run, float* to) {
  // The copies of these values stay in registers. Stores to the panel could change the arguments.
  const ConvAxis w = args.axes[0], h = args.axes[1];
  const int64_t stride = args.x_strides[0], row_stride = args.x_strides[1], ahead = kAhead * args.x_strides[2];
  const int64_t lanes = run.count, x0 = run.x0;
  // If the lanes fill a panel and their inputs are adjacent, the inputs x to x + kLanes - 1 are loaded for x <= last.
  const int64_t last = lanes == kLanes && w.x_step * stride == 1 ? w.inputs - kLanes : -1;
  for (int64_t x1 = run.x1 + tap1 * h.x_tap; count > 0; x1 += h.x_tap, tap0 = 0) {
    int64_t n = w.taps - tap0 < count ? w.taps - tap0 : count, x = x0 + tap0 * w.x_tap;
    const bool inside = x1 >= 0 && x1 < h.inputs;
    const float* row = channel + (inside ? x1 : 0) * row_stride;
    count -= n;
    __builtin_prefetch(row + ahead + x);
    for (; n > 0; --n, x += w.x_tap, to += kLanes) {
      if (inside && x >= 0 && x <= last) {
        store(to, load<F32>(row + x));
      } else {
        gather(row, stride, x, w.x_step, inside ? w.inputs : 0, lanes, to);
      }
    }
  }
}

}  // namespace

void conv_panels(const ConvPanels& args) {
  const Runs runs(args);
  const int64_t taps = args.axes[0].taps * args.axes[1].taps;
  for (int64_t k = 0; k < args.k;) {
    const int64_t channel = (args.k_begin + k) / taps, tap = (args.k_begin + k) % taps;
    const int64_t tap0 = tap % args.axes[0].taps, tap1 = tap / args.axes[0].taps;
    const int64_t count = taps - tap < args.k - k ? taps - tap : args.k - k;
    const float* from = args.x + channel * args.x_strides[2];
    for (int panel = 0; panel < runs.panels; ++panel) {
      float* to = reinterpret_cast<float*>(args.panels + panel * args.panel_stride) + k * kLanes;
      for (int i = runs.first[panel]; i < runs.first[panel + 1]; ++i) {
        gather_taps(args, from, tap0, tap1, count, runs.runs[i], to + runs.runs[i].lane);
      }
    }
    k += count;
  }
}

}  // namespace shoal::cpu::SHOAL_ISA
