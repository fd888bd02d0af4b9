#include "devices/cuda/ops/mul_mat_stream.h"

#include <algorithm>
#include <array>

#include "devices/cuda/kernels/platform.h"
#include "devices/cuda/ops/view.h"

namespace shoal::cuda {
namespace {

/// Smallest number of items per block: one item per warp. A row is one item; a row of a gated product is two items.
/// Some matrices have too few rows to give every multiprocessor this number of items. For these matrices, the launch
/// takes longer than the reads of the weights.
constexpr int64_t kFewItems = kStreamWarps;

constexpr std::array kKernels = std::to_array<const StreamKernel*>({
    &kStreamF32,
    &kStreamF16,
    &kStreamBF16,
    nullptr,
    nullptr,
#define SHOAL_QUANTIZED(id, ...) &kStream##id,
#include "graph/dtypes.def"
});
static_assert(kKernels.size() == kDTypeCount, "one entry per dtype, in the order of the enumeration");

const StreamKernel& kernel_of(DType dtype) {
  return *kKernels[static_cast<size_t>(dtype)];
}

/// The length of a row must be a multiple of this number of elements. For floats, the number is the size of a vector of
/// 16 bytes. For quantised weights, the number is the larger of two sizes: the size of a block and the size of a lane's
/// unit.
int64_t unit_of(DType dtype) {
  const DTypeTraits& type = traits(dtype);
  if (!type.is_quantized) return 16 / static_cast<int64_t>(type.block_bytes);
  return std::max<int64_t>(type.block_elems, type.is_coded ? 128 : 64);
}

/// Whether the kernels can stream the rows of `a`. `a` may consist of any number of matrices.
bool has_streaming_rows(const Tensor& a) {
  const DTypeTraits& type = traits(a.dtype);
  if (!(type.is_float || type.is_quantized) || a.empty()) return false;
  const size_t alignment = kernel_of(a.dtype).alignment;
  const auto is_aligned = [&](size_t at) { return at % alignment == 0; };
  return a.is_row_contiguous() && a.shape[0] % unit_of(a.dtype) == 0 && is_aligned(a.strides[1]) &&
         is_aligned(a.strides[2]) && is_aligned(reinterpret_cast<uintptr_t>(a.data)) &&
         a.strides[1] < INT_MAX / (2 * kStreamWarps) && a.shape[1] < INT_MAX / 2 && a.shape[0] < INT_MAX / 8;
}
bool has_rows_of_f32(const Tensor& tensor) {
  return tensor.dtype == DType::kF32 && tensor.strides[0] == sizeof(float) && tensor.strides[1] % sizeof(float4) == 0 &&
         reinterpret_cast<uintptr_t>(tensor.data) % sizeof(float4) == 0;
}
bool is_one_matrix(const Tensor& a) {
  return a.shape[2] * a.shape[3] == 1;
}
bool is_row_of_f32(const Tensor& tensor) {
  return tensor.rows() == 1 && tensor.dtype == DType::kF32 && tensor.strides[0] == sizeof(float);
}

StreamPart part_of(const JoinedProduct& product) {
  const Tensor& a = *product.a;
  StreamPart part;
  part.a[0] = a.data;
  part.a[1] = product.up ? product.up->data : a.data;
  part.c = reinterpret_cast<float*>(product.out->data);
  if (product.addend) part.addend = reinterpret_cast<const float*>(product.addend->data);
  part.row_stride = static_cast<uint32_t>(a.strides[1]);
  part.row_bytes = static_cast<int>(a.shape[0] / traits(a.dtype).block_elems * traits(a.dtype).block_bytes);
  part.row_step = static_cast<int>(a.strides[1]) * (product.up ? kStreamWarps / 2 : kStreamWarps);
  part.rows = static_cast<int>(a.shape[1]);
  part.dtype = a.dtype;
  return part;
}

/// Returns the kernel's argument. The fields that depend on blocks, steps or records are not set yet.
Stream stream_of(std::span<const JoinedProduct> products, const Tensor& b) {
  Stream s;
  s.x = reinterpret_cast<const float*>(b.data);
  s.k = static_cast<int>(b.shape[0]);
  s.gated = products[0].up != nullptr;
  std::transform(products.begin(), products.end(), s.parts, part_of);
  return s;
}

/// Divides the rows of a part into blocks of `block_rows` rows. `first` is the index of the part's first block. Returns
/// the index after the part's last block.
int64_t set_blocks(StreamPart& part, int64_t first, int64_t block_rows, int gated) {
  const int64_t blocks = divided_up(part.rows, block_rows);
  part.block_rows = static_cast<int>(block_rows);
  part.first_block = static_cast<int>(first);
  part.last_block = static_cast<int>(first + blocks - 1);
  part.block_items = part.block_rows << gated;
  part.last_items = static_cast<int>(part.rows - (blocks - 1) * block_rows) << gated;
  return first + blocks;
}

/// Divides `blocks` blocks among the parts. The division minimises the maximum number of bytes that one block reads.
/// Returns the number of used blocks.
unsigned deal_out(Stream& s, size_t count, int64_t blocks) {
  std::array<int64_t, kStreamParts> of{};
  const auto load = [&](size_t i) {
    return static_cast<double>(divided_up(s.parts[i].rows, of[i])) * s.parts[i].row_bytes;
  };
  for (size_t i = 0; i < count; ++i) {
    of[i] = divided_up(static_cast<int64_t>(s.parts[i].rows) << s.gated, kStreamResults);
    blocks -= of[i];
  }
  for (; blocks > 0; --blocks) {
    size_t most = 0;
    for (size_t i = 1; i < count; ++i) most = load(i) > load(most) ? i : most;
    ++of[most];
  }
  int64_t first = 0;
  for (size_t i = 0; i < count; ++i) {
    StreamPart& part = s.parts[i];
    first = set_blocks(part, first, divided_up(part.rows, std::min<int64_t>(of[i], part.rows)), s.gated);
  }
  return static_cast<unsigned>(first);
}

int64_t wanted_blocks(const Stream& s, int64_t processors) {
  int64_t items = 0;
  for (const StreamPart& part : s.parts) items += static_cast<int64_t>(part.rows) << s.gated;
  return std::min(divided_up(items, kFewItems), processors);
}

/// Returns the number of bytes of shared memory that a kernel needs for these parts. Also sets each part's row_jump,
/// which depends on the kernel's step size. For quantised parts, kStreamMixed may have a smaller step size than the
/// kernel for one type.
size_t shared_bytes(Stream& s, size_t count, const StreamKernel& kernel) {
  size_t column = 0;
  for (size_t i = 0; i < count; ++i) {
    StreamPart& part = s.parts[i];
    const DTypeTraits& type = traits(part.dtype);
    const StreamKernel& own = kernel_of(part.dtype);
    const int64_t step = type.is_quantized ? kernel.step_elements : own.step_elements, steps = divided_up(s.k, step);
    const size_t step_bytes = static_cast<size_t>(step) / type.block_elems * type.block_bytes;
    part.row_jump = part.row_step - static_cast<int>((steps - 1) * step_bytes);
    // Every kernel needs the same number of bytes per element of the column. So the size of the column for `kernel` can
    // be computed in steps of `own` (the kernel for only this part's type).
    const int64_t own_steps = divided_up(steps * step, own.step_elements);
    column = std::max(column, static_cast<size_t>(own_steps) * own.column_step_bytes);
  }
  return kStreamResults * sizeof(float) + column + kernel.ring_bytes;
}

/// Sets the address of the column's record. The address is nullptr if the part reads no record.
void set_record(const LaunchContext& context, StreamPart& part, int k) {
  const ColumnForms form = stream_form(part.dtype);
  const ColumnRecord record = context.record({form.two && context.reads.two, form.four && context.reads.four});
  part.record = form.four ? record.four : record.two;
  part.record_bytes = static_cast<int>(column_bytes(k, form.four ? 4 : 2));
}
void set_records(const LaunchContext& context, Stream& s, size_t count) {
  for (size_t i = 0; i < count; ++i) set_record(context, s.parts[i], s.k);
}

const StreamKernel& kernel_of(std::span<const JoinedProduct> products) {
  const DType first = products[0].a->dtype;
  const auto is_alike = [&](const JoinedProduct& product) { return product.a->dtype == first; };
  return std::all_of(products.begin(), products.end(), is_alike) ? kernel_of(first) : kStreamMixed;
}

/// Whether the rows are so short that one step reads several rows.
bool has_short_rows(const JoinedProduct& product) {
  const Tensor& a = *product.a;
  const bool is_dense = a.strides[1] == static_cast<size_t>(part_of(product).row_bytes);
  return traits(a.dtype).is_quantized && a.shape[0] % 256 == 0 && 2 * a.shape[0] <= kernel_of(a.dtype).step_elements &&
         is_dense;
}

/// Computes the launch parameters that depend only on shapes. A block computes the same rows of every slot, in groups
/// of equal size. If the product has one matrix with short rows, block_rows is a multiple of four or the number of all
/// rows.
StreamLaunch<ExpertStream> expert_launch(const JoinedProduct& product, const Tensor& x, int64_t slots,
                                         const GpuTraits& gpu) {
  const StreamKernel& kernel = kernel_of(product.a->dtype);
  StreamLaunch<ExpertStream> launch;
  ExpertStream& s = launch.stream;
  s.part = part_of(product);
  s.x = reinterpret_cast<const float*>(x.data);
  s.k = static_cast<int>(x.shape[0]);
  s.gated = product.up != nullptr;
  s.slots = static_cast<int>(slots);
  s.x_stride = x.shape[1] == 1 ? 0 : static_cast<int64_t>(x.strides[1] / sizeof(float));
  s.packed = has_short_rows(product);
  s.quads = s.packed ? s.k / 256 : 1;

  const int64_t rows = s.part.rows, of_row = slots << s.gated, processors = gpu.processors;
  const int64_t most_rows = std::max<int64_t>(kStreamResults / (of_row * s.quads), 1);
  const int64_t needed = divided_up(rows, most_rows),
                wanted = std::min(divided_up(rows * of_row, kFewItems), processors);
  const int64_t blocks = needed > wanted ? divided_up(needed, processors) * processors : wanted;
  int64_t each = divided_up(rows, std::min(blocks, rows));
  const bool in_quads = s.packed && slots == 1;
  if (in_quads) each = std::min(divided_up(each, 4) * 4, rows);
  int64_t groups = divided_up(each, s.packed ? kernel.step_elements / s.k : 1);
  s.group = static_cast<int>(divided_up(each, groups));
  while (in_quads && s.group * groups % 4 != 0) s.group = static_cast<int>(divided_up(each, ++groups));
  if (s.group * groups > rows) s.group = 1;
  s.part.block_rows = static_cast<int>(s.group == 1 ? each : s.group * groups);
  s.part.row_bytes *= s.group;
  launch.blocks = static_cast<unsigned>(divided_up(rows, s.part.block_rows));

  const int64_t columns = s.x_stride == 0 ? 1 : slots, results = of_row * s.part.block_rows;
  const int64_t column_bytes = traits(s.part.dtype).is_quantized
                                   ? cuda::column_bytes(columns * s.k, kernel.has_four_groups ? 4 : 2)
                                   : columns * divided_up(s.k, kernel.step_elements) * kernel.column_step_bytes;
  s.items_at = static_cast<int>(divided_up(results * s.quads, 4) * 16);
  s.rings_at = s.items_at + static_cast<int>(results / s.group * sizeof(StreamItem));
  s.columns_at = s.rings_at + static_cast<int>(kernel.ring_bytes);
  launch.shared_bytes = static_cast<size_t>(s.columns_at) + static_cast<size_t>(column_bytes);
  return launch;
}

}  // namespace

bool stream_supports(std::span<const JoinedProduct> products, const Tensor& b, const GpuTraits& gpu) {
  if (products.empty() || products.size() > kStreamParts || !is_row_of_f32(b) || !has_rows_of_f32(b)) return false;
  const auto fits = [](const JoinedProduct& product) {
    const auto is_row = [](const Tensor* tensor) { return !tensor || is_row_of_f32(*tensor); };
    const auto streams = [](const Tensor& a) { return has_streaming_rows(a) && is_one_matrix(a); };
    return streams(*product.a) && (!product.up || streams(*product.up)) && is_row(product.out) &&
           is_row(product.addend);
  };
  if (!std::all_of(products.begin(), products.end(), fits)) return false;
  const StreamKernel& kernel = kernel_of(products);
  const auto is_coded = [](const JoinedProduct& product) { return traits(product.a->dtype).is_coded; };
  if (&kernel == &kStreamMixed && std::any_of(products.begin(), products.end(), is_coded)) return false;
  Stream s = stream_of(products, b);
  return !gpu.off.stream && shared_bytes(s, products.size(), kernel) <= gpu.shared_bytes_per_block;
}

namespace {

template <class Work>
void queue(const LaunchContext& context, void (*kernel)(Work), const StreamLaunch<Work>& work) {
  const dim3 blocks(work.blocks), threads(kStreamThreads);
  if (work.early) {
    launch_early(context, kernel, blocks, threads, work.shared_bytes, work.stream);
  } else {
    launch(context.stream, kernel, blocks, threads, work.shared_bytes, work.stream);
  }
}

}  // namespace

std::optional<StreamLaunch<ExpertStream>> short_rows_launch(const LaunchContext& context, const JoinedProduct& product,
                                                            const Tensor& b) {
  if (!has_short_rows(product)) return std::nullopt;
  StreamLaunch<ExpertStream> launch = expert_launch(product, b, 1, context.gpu);
  if (launch.shared_bytes > context.gpu.shared_bytes_per_block) return std::nullopt;
  set_record(context, launch.stream.part, launch.stream.k);
  launch.early = has_constant_weights(product);
  return launch;
}

void stream_run(const LaunchContext& context, std::span<const JoinedProduct> products, const Tensor& b, GluKind glu) {
  if (products.size() == 1) {
    if (auto work = short_rows_launch(context, products[0], b)) {
      work->stream.glu = glu;
      return queue(context, kernel_of(products[0].a->dtype).of_experts, *work);
    }
  }
  const StreamKernel& kernel = kernel_of(products);
  StreamLaunch<Stream> work{stream_of(products, b)};
  work.stream.glu = glu;
  set_records(context, work.stream, products.size());
  work.shared_bytes = shared_bytes(work.stream, products.size(), kernel);
  work.blocks = deal_out(work.stream, products.size(), wanted_blocks(work.stream, context.gpu.processors));
  work.early = std::all_of(products.begin(), products.end(), has_constant_weights);
  queue(context, kernel.kernel, work);
}

StreamLaunch<Stream> stream_launch(const LaunchContext& context, const JoinedProduct& product, const Tensor& b) {
  const std::span<const JoinedProduct> products(&product, 1);
  StreamLaunch<Stream> launch{stream_of(products, b)};
  set_records(context, launch.stream, 1);
  launch.shared_bytes = shared_bytes(launch.stream, 1, kernel_of(products));
  deal_out(launch.stream, 1, wanted_blocks(launch.stream, context.gpu.processors));
  StreamPart& part = launch.stream.parts[0];
  launch.blocks = static_cast<unsigned>(set_blocks(part, 0, divided_up(part.block_rows, 4) * 4, 0));
  launch.early = has_constant_weights(product);
  return launch;
}

bool stream_experts_supports(const JoinedProduct& product, const Tensor& x, int64_t slots, const GpuTraits& gpu) {
  const Tensor& a = *product.a;
  if (gpu.off.stream || slots > ExpertStream::kMostSlots || a.shape[3] != 1) return false;
  if (!has_streaming_rows(a) || !has_rows_of_f32(x)) return false;
  if (product.up && !has_streaming_rows(*product.up)) return false;
  return expert_launch(product, x, slots, gpu).shared_bytes <= gpu.shared_bytes_per_block;
}

void stream_experts_run(const LaunchContext& context, const JoinedProduct& product, const Tensor& x, GluKind glu,
                        const ExpertIds& ids) {
  const Tensor &a = *product.a, &out = *product.out;
  StreamLaunch<ExpertStream> launch = expert_launch(product, x, ids.slots, context.gpu);
  ExpertStream& s = launch.stream;
  s.glu = glu;
  s.ids = ids.ids, s.waits = true;
  s.ids_stride = static_cast<int>(ids.stride);
  s.here = ids.here;
  s.expert_stride = static_cast<int64_t>(a.strides[2]);
  s.c_stride = static_cast<int64_t>(out.strides[1] / sizeof(float));
  if (product.weights) {
    s.weights = reinterpret_cast<const float*>(product.weights->data);
    s.weights_stride = static_cast<int>(product.weights->strides[1] / sizeof(float));
  }
  set_record(context, s.part, s.k);
  launch.early = true;
  queue(context, kernel_of(a.dtype).of_experts, launch);
}

ColumnForms stream_form(DType dtype) {
  if (!traits(dtype).is_quantized) return {};
  const bool four = kernel_of(dtype).has_four_groups;
  return {!four, four};
}

}  // namespace shoal::cuda
