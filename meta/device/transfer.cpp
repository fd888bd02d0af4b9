#include "meta/device/transfer.h"

#include <algorithm>
#include <cstring>

namespace shoal::meta {
namespace {

/// One run of a tensor that is split along an axis. In each of the `count` rows, the run occupies `width` bytes. In a
/// global row, which has `pitch` bytes, the run begins at byte `first`. In a row of the shard, which has `local_pitch`
/// bytes, the run begins at byte `local_first`.
struct Comb {
  size_t first, width, pitch;
  size_t local_first, local_pitch;
  size_t count;
};

class Clipper {
 public:
  Clipper(const Comb& comb, size_t offset, size_t size) : comb_(comb), begin_(offset), end_(offset + size) {}

  void append(std::vector<Rectangle>& out) const {
    if (comb_.width == 0 || comb_.count == 0 || begin_ == end_) return;
    size_t row = begin_ < comb_.first + comb_.width ? 0 : (begin_ - comb_.first - comb_.width) / comb_.pitch + 1;
    size_t stop = end_ <= comb_.first ? 0 : std::min(comb_.count, (end_ - comb_.first - 1) / comb_.pitch + 1);
    if (row >= stop) return;
    if (!is_whole(row)) append_part(row++, out);
    const bool cut_end = row < stop && !is_whole(stop - 1);
    if (cut_end) --stop;
    if (row < stop) {
      out.push_back({{comb_.local_first + row * comb_.local_pitch, comb_.width, stop - row, comb_.local_pitch},
                     start(row) - begin_,
                     comb_.pitch});
    }
    if (cut_end) append_part(stop, out);
  }

 private:
  size_t start(size_t row) const { return comb_.first + row * comb_.pitch; }
  bool is_whole(size_t row) const { return start(row) >= begin_ && start(row) + comb_.width <= end_; }

  void append_part(size_t row, std::vector<Rectangle>& out) const {
    const size_t low = std::max(begin_, start(row)), high = std::min(end_, start(row) + comb_.width);
    const size_t local = comb_.local_first + row * comb_.local_pitch + (low - start(row));
    out.push_back({{local, high - low, 1, high - low}, low - begin_, high - low});
  }

  Comb comb_;
  size_t begin_, end_;
};

std::vector<Rectangle> split_rectangles(const Shards& shards, int rank, size_t offset, size_t size, Access access) {
  const Layout& layout = shards.layout;
  const Tensor& local = *shards.local[rank];
  const DTypeTraits& type = traits(local.dtype);
  // On axis 0, a position is a block. On the other axes, a position is an index. `unit` is the size of one position in
  // bytes.
  const int64_t per_position = layout.axis == 0 ? type.block_elems : 1;
  size_t unit = type.block_bytes, outer = 1;
  for (int axis = 0; axis < layout.axis; ++axis) {
    unit *= static_cast<size_t>(axis == 0 ? local.shape[0] / type.block_elems : local.shape[axis]);
  }
  for (int axis = layout.axis + 1; axis < kMaxDims; ++axis) outer *= static_cast<size_t>(local.shape[axis]);
  const auto bytes_of = [&](int64_t length) { return static_cast<size_t>(length / per_position) * unit; };

  std::vector<Rectangle> out;
  const size_t pitch = bytes_of(layout.partition.length());
  const size_t local_pitch = bytes_of(layout.partition.local_length(rank));
  int64_t begin = 0, local_begin = 0;
  for (const Run& run : layout.partition.runs()) {
    const bool owned = std::binary_search(run.owners.begin(), run.owners.end(), rank);
    if (owned && (access == Access::kWrite || run.owners.front() == rank)) {
      const Comb comb{bytes_of(begin), bytes_of(run.length), pitch, bytes_of(local_begin), local_pitch, outer};
      Clipper(comb, offset, size).append(out);
    }
    begin += run.length;
    if (owned) local_begin += run.length;
  }
  return out;
}

}  // namespace

std::vector<Rectangle> rectangles(const Shards& shards, int rank, size_t offset, size_t size, Access access) {
  if (size == 0) return {};
  if (shards.layout.is_split()) return split_rectangles(shards, rank, offset, size, access);
  const bool everywhere = shards.layout.is_mirrored() && access == Access::kWrite;
  if (rank != 0 && !everywhere) return {};
  return {{{offset, size, 1, size}, 0, size}};
}

PartialSum::PartialSum(const Shards& shards, size_t offset, size_t size)
    : type_(traits(shards.local[0]->dtype)), offset_(offset), size_(size) {
  if (size == 0) return;
  begin_ = offset / type_.block_bytes * type_.block_bytes;
  const size_t end = (offset + size + type_.block_bytes - 1) / type_.block_bytes * type_.block_bytes;
  addends_.assign(shards.local.size(), std::vector<std::byte>(end - begin_));
}

void PartialSum::finish(void* data) {
  if (size_ == 0) return;
  const size_t count = addends_[0].size() / type_.block_bytes;
  std::vector<std::byte>& result = addends_[0];
  if (type_.dtype == DType::kI32) {
    auto* sum = reinterpret_cast<uint32_t*>(result.data());  // unsigned, because signed overflow is undefined
    for (size_t rank = 1; rank < addends_.size(); ++rank) {
      const auto* addend = reinterpret_cast<const uint32_t*>(addends_[rank].data());
      for (size_t i = 0; i < count; ++i) sum[i] += addend[i];
    }
  } else {
    std::vector<float> addend(count), sum(count, 0.0f);
    for (const std::vector<std::byte>& bytes : addends_) {
      type_.to_f32(bytes.data(), addend.data(), static_cast<int64_t>(count));
      for (size_t i = 0; i < count; ++i) sum[i] += addend[i];
    }
    type_.from_f32(sum.data(), result.data(), static_cast<int64_t>(count));
  }
  std::memcpy(data, result.data() + (offset_ - begin_), size_);
}

}  // namespace shoal::meta
