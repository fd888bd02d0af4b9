// The ops conv_2d and conv_transpose_2d as matrix products. Each phase (graph/convolution.h) is the product of the
// weights and a matrix of inputs. This matrix has one row per result and one element per tap and input channel. It is
// never stored as a whole. Units of kPixels results of some channels are computed one after another:
//
//   1. kernels().conv_panels gathers the inputs of kPixels results into panels, at most kTerms elements of each row at
//      a time
//   2. the product of f32 panels (PanelKernels) multiplies the panels by rows of weights, which are its columns
//
// kernels().conv_rows replaces both steps of conv_2d if a group has few result channels and the stride of axis 0 is 1.
// Units then have kRowPixels results.
//
// The product needs f32 rows of weights with the order of terms of the panels. prepare() writes such rows, unless the
// weights of conv_2d already have this form. The order of sums depends only on the weights' shape, so an element of the
// result has the same bits for any number of parts and for any share of the channels and batches.
#include <cstring>

#include "devices/cpu/claims.h"
#include "devices/cpu/isa.h"
#include "devices/cpu/ops/ops.h"
#include "devices/cpu/ops/rows.h"
#include "graph/convolution.h"

namespace shoal::cpu {
namespace {

constexpr int64_t kPixels = kConvResults;  ///< number of results of a channel per unit
constexpr int64_t kRowPixels = 256;        ///< the same number for conv_rows
constexpr int64_t kMostReach = 64;         ///< maximum distance of two taps of axis 0 for conv_rows
constexpr int64_t kTerms = 512;            ///< maximum number of terms per panel
constexpr int64_t kMostChannels = 96;      ///< number of channels that one call of the product computes
constexpr int64_t kLeastChannels = 48;     ///< channels are divided into units of at least this size
constexpr int64_t kMostScattered = 256;    ///< maximum number of channels of a unit whose results have gaps
constexpr int64_t kUnitsPerPart = 4;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// Whether the product reads rows of weights in place.
bool reads_weights(const Tensor& node) {
  const Tensor& w = *node.src[0];
  const auto has_stride = [&](int axis, int64_t elements) {
    return w.shape[axis] == 1 || w.strides[axis] == static_cast<size_t>(elements) * sizeof(float);
  };
  return node.op == Op::kConv2d && w.dtype == DType::kF32 && has_stride(0, 1) && has_stride(1, w.shape[0]) &&
         has_stride(2, w.shape[0] * w.shape[1]);
}

/// Whether kernels().conv_rows computes the node.
bool runs_rows(const Tensor& node) {
  if (node.op != Op::kConv2d || conv_channels(node).results > kMostRowChannels) return false;
  const ConvAxis axis = conv_axis(node, 0, 0);
  return axis.x_step == 1 && node.src[1]->strides[0] == sizeof(float) && (axis.taps - 1) * axis.x_tap <= kMostReach;
}

struct Phase {
  Phase(const Tensor& node, int64_t phase)
      : axes{conv_axis(node, 0, phase % conv_phases(node, 0)), conv_axis(node, 1, phase / conv_phases(node, 0))},
        taps(axes[0].taps * axes[1].taps),
        results(axes[0].results * axes[1].results) {}

  /// Number of kernel elements whose copies precede the copies of this phase's taps. The copies of all elements with
  /// equal indices modulo tap_step are adjacent.
  int64_t taps_before(const Shape& kernel) const {
    const auto before = [&](int axis) {
      const auto [first, step] = std::pair(axes[axis].tap_first, axes[axis].tap_step);
      return kernel[axis] / step * first + std::min(kernel[axis] % step, first);
    };
    return before(1) * kernel[0] + axes[1].taps * before(0);
  }

  ConvAxis axes[2];
  int64_t taps, results;
};

struct Conv {
  Conv(const Tensor& node, int parts)
      : node(node),
        channels(conv_channels(node)),
        phases(conv_phases(node, 0) * conv_phases(node, 1)),
        rows(runs_rows(node)),
        pixels(rows ? kRowPixels : kPixels),
        tiles(ceil_div(Phase(node, 0).results, pixels)),
        scattered(phases > 1) {
    const int64_t units = std::max<int64_t>(tiles * phases * channels.groups * node.shape[3], 1);
    const int64_t wanted = std::clamp<int64_t>(kUnitsPerPart * parts / units, 1, 1 + channels.results / kLeastChannels);
    // A multiple of 12 fills the tiles of all levels.
    unit_channels = std::max<int64_t>(ceil_div(ceil_div(channels.results, wanted), 12) * 12, 12);
    if (scattered) unit_channels = std::min(unit_channels, kMostScattered);
    channel_tiles = ceil_div(channels.results, unit_channels);
  }

  int64_t units() const { return tiles * phases * channel_tiles * channels.groups * node.shape[3]; }
  int64_t terms(const Phase& phase) const { return phase.taps * channels.inputs; }

  static const PanelKernels& product() { return kernels().weights[static_cast<size_t>(DType::kF32)].panels; }
  /// Bytes of the copied weights, and of the scratch of each part.
  size_t copied_bytes() const {
    return reads_weights(node) ? 0 : (static_cast<size_t>(node.src[0]->elements()) * sizeof(float) + 63) / 64 * 64;
  }
  /// Bytes between panels. This number is not a multiple of 4096, so that equal elements of all panels fit in a cache.
  static size_t panel_stride() { return product().bytes(kTerms) + 192; }
  size_t panel_bytes() const {
    if (!rows) return panel_stride() * static_cast<size_t>(kPixels / kernels().panel_rows);
    const ConvAxis axis = conv_axis(node, 0, 0);
    const int64_t most = (kTerms / axis.taps + 2) * (kConvRun + (axis.taps - 1) * axis.x_tap);
    return (static_cast<size_t>(most) * sizeof(float) + 63) / 64 * 64;
  }
  size_t scratch_bytes() const {
    return panel_bytes() + (scattered ? static_cast<size_t>(kMostScattered * kPixels) * sizeof(float) : 0);
  }

  const Tensor& node;
  ConvChannels channels;
  int64_t phases;
  bool rows;  ///< whether kernels().conv_rows computes the node
  int64_t pixels, tiles;
  bool scattered;  ///< whether the results of a phase have gaps
  int64_t unit_channels, channel_tiles;
};

/// Returns where the copy of the weights of a result channel is stored.
float* copied_row(const Conv& conv, const Phase& phase, int64_t channel, std::byte* workspace) {
  const int64_t all = conv.channels.groups * conv.channels.results;
  return reinterpret_cast<float*>(workspace) + phase.taps_before(conv.node.src[0]->shape) * conv.channels.inputs * all +
         channel * conv.terms(phase);
}

/// Returns the address of kernel 0 of an input channel and a result channel. In conv_transpose_2d, axis 2 of the
/// weights has the result channels.
const std::byte* kernel_at(const Conv& conv, int64_t input, int64_t channel) {
  const Tensor& w = *conv.node.src[0];
  if (conv.node.op == Op::kConv2d) return row_at(w, {0, input, channel});
  const ConvChannels& channels = conv.channels;
  return row_at(w, {0, channel % channels.results, channel / channels.results * channels.inputs + input});
}

void copy_weights(const Conv& conv, const Phase& phase, int64_t channel, float* to) {
  const Tensor& w = *conv.node.src[0];
  if (conv.node.op == Op::kConv2d && is_dense(w)) {
    return kernels().weights[static_cast<size_t>(w.dtype)].to_f32(kernel_at(conv, 0, channel), to, conv.terms(phase));
  }
  const auto to_f32 = traits(w.dtype).to_f32;
  for (int64_t input = 0; input < conv.channels.inputs; ++input) {
    const std::byte* const kernel = kernel_at(conv, input, channel);
    const auto& [a0, a1] = phase.axes;
    for (int64_t i1 = 0; i1 < a1.taps; ++i1) {
      const std::byte* const row = kernel + (a1.tap_first + i1 * a1.tap_step) * w.strides[1];
      for (int64_t i0 = 0; i0 < a0.taps; ++i0) to_f32(row + (a0.tap_first + i0 * a0.tap_step) * w.strides[0], to++, 1);
    }
  }
}

void prepare(const TeamContext& ctx, Tensor& node) {
  const Conv conv(node, ctx.parts);
  const auto [begin, end] = share(ctx, conv.channels.groups * conv.channels.results);
  for (int64_t i = 0; i < conv.phases; ++i) {
    const Phase phase(node, i);
    for (int64_t channel = begin; channel < end && phase.taps > 0; ++channel) {
      copy_weights(conv, phase, channel, copied_row(conv, phase, channel, ctx.workspace));
    }
  }
}

bool prepares(const Tensor& node, int) {
  return !reads_weights(node);
}

/// Results [first, first + pixels) of channels [channel, channel + count) in one phase.
struct Unit {
  Phase phase;
  int64_t batch, group, channel, count, first, pixels;
};

Unit unit_of(const Conv& conv, int64_t i) {
  // Consecutive units have the same phase, group and batch.
  const int64_t tile = i % conv.tiles, rest = i / conv.tiles, channel_tile = rest % conv.channel_tiles;
  const int64_t in_groups = rest / conv.channel_tiles, phases = in_groups / conv.phases;
  Unit unit{Phase(conv.node, in_groups % conv.phases),
            phases / conv.channels.groups,
            phases % conv.channels.groups,
            channel_tile * conv.unit_channels,
            0,
            tile * conv.pixels,
            0};
  unit.count = std::min(conv.unit_channels, conv.channels.results - unit.channel);
  unit.pixels = std::min(conv.pixels, unit.phase.results - unit.first);
  unit.channel += unit.group * conv.channels.results;
  return unit;
}

/// Moves the sums of a unit from `sums` [channels][kPixels] to the result.
void scatter(Tensor& node, const Unit& unit, const float* sums) {
  const auto& [w, h] = unit.phase.axes;
  int64_t row = unit.first / w.results, at = unit.first % w.results;
  for (int64_t i = 0, n = 0; i < unit.pixels; i += n, at = 0, ++row) {
    n = std::min(w.results - at, unit.pixels - i);
    std::byte* to = row_at(node, {h.first + row * h.step, unit.channel, unit.batch});
    for (int64_t c = 0; c < unit.count; ++c, to += node.strides[2]) {
      auto* const results = reinterpret_cast<float*>(to) + w.first + at * w.step;
      for (int64_t j = 0; j < n; ++j) results[j * w.step] = sums[c * kPixels + i + j];
    }
  }
}

/// Multiplies the inputs of terms [k_begin, k_begin + k) by the weights of all channels of the unit.
void multiply(const Conv& conv, const Unit& unit, const ConvPanels& inputs, PanelArgs args, std::byte* workspace,
              float* sums) {
  if (!conv.rows) kernels().conv_panels(inputs);
  const Tensor &node = conv.node, &w = *node.src[0];
  const bool in_place = reads_weights(node);
  const std::byte* b[kMostChannels];
  float* c[kMostChannels];
  for (int64_t begin = 0; begin < unit.count; begin += kMostChannels) {
    args.columns = std::min(kMostChannels, unit.count - begin);
    for (int64_t i = 0; i < args.columns; ++i) {
      const int64_t channel = unit.channel + begin + i;
      b[i] = in_place ? row_at(w, {0, 0, channel})
                      : reinterpret_cast<const std::byte*>(copied_row(conv, unit.phase, channel, workspace));
      c[i] = sums != nullptr ? sums + (begin + i) * kPixels
                             : reinterpret_cast<float*>(row_at(node, {0, channel, unit.batch})) + unit.first;
    }
    args.b = b, args.c = c;
    if (conv.rows) {
      kernels().conv_rows(inputs, args);
    } else {
      Conv::product().multiply(args);
    }
  }
}

void run_unit(const TeamContext& ctx, const Conv& conv, Tensor& node, const Unit& unit) {
  const Tensor& x = *node.src[1];
  std::byte* const panels = ctx.workspace + conv.copied_bytes() + conv.scratch_bytes() * static_cast<size_t>(ctx.part);
  float* const sums = conv.scattered ? reinterpret_cast<float*>(panels + conv.panel_bytes()) : nullptr;
  ConvPanels inputs{.axes = {unit.phase.axes[0], unit.phase.axes[1]}, .first = unit.first, .results = unit.pixels};
  inputs.x = reinterpret_cast<const float*>(row_at(x, {0, unit.group * conv.channels.inputs, unit.batch}));
  for (const int axis : {0, 1, 2}) inputs.x_strides[axis] = static_cast<int64_t>(x.strides[axis] / sizeof(float));
  inputs.panels = panels, inputs.panel_stride = Conv::panel_stride();
  const int64_t all = conv.terms(unit.phase), pieces = std::max<int64_t>(ceil_div(all, kTerms), 1);
  const int64_t piece = ceil_div(all, pieces);
  do {  // without terms, the product writes zeros
    inputs.k = std::min(piece, all - inputs.k_begin);
    multiply(conv, unit, inputs,
             {.panel = panels,
              .panel_stride = inputs.panel_stride,
              .rows = unit.pixels,
              .k_begin = inputs.k_begin,
              .k = inputs.k,
              .k_total = all,
              .add = inputs.k_begin > 0},
             ctx.workspace, sums);
    inputs.k_begin += piece;
  } while (inputs.k_begin < all);
  if (sums != nullptr) scatter(node, unit, sums);
}

void run(const TeamContext& ctx, Tensor& node) {
  const Conv conv(node, ctx.parts);
  for_shared(ctx, conv.units(), [&](int64_t i) {
    const Unit unit = unit_of(conv, i);
    if (unit.pixels > 0) run_unit(ctx, conv, node, unit);
  });
}

bool supports(const Tensor& node) {
  return node.dtype == DType::kF32 && node.is_contiguous() && is_float(node.src[0]) &&
         node.src[1]->dtype == DType::kF32;
}

size_t workspace(const Tensor& node, int parts) {
  const Conv conv(node, parts);
  return conv.copied_bytes() + conv.scratch_bytes() * static_cast<size_t>(parts);
}

int64_t work(const Tensor& node) {
  const Shape& pixels = (node.op == Op::kConv2d ? node : *node.src[1]).shape;
  return pixels[0] * pixels[1] * pixels[3] * node.src[0]->elements();
}

}  // namespace

const OpKernel kConv2dKernel{run, supports, workspace, work, nullptr, prepare, prepares};
const OpKernel kConvTranspose2dKernel{run, supports, workspace, work, nullptr, prepare, prepares};

}  // namespace shoal::cpu
