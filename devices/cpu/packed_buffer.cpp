#include "devices/cpu/packed_buffer.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "devices/cpu/cpu_family.h"
#include "devices/cpu/isa.h"
#include "devices/cpu/topology.h"
#include "devices/host_buffer.h"
#include "devices/strided.h"

namespace shoal::cpu {
namespace {

/// Minimum number of rows of a packed matrix. A matrix with fewer rows would not fill a group of 16 rows.
constexpr int64_t kLeastRows = 16;

const PackedKernels& kernels_of(const Tensor& tensor) {
  return kernels().weights[static_cast<size_t>(tensor.dtype)].packed;
}

/// Locates the rows of a packed tensor.
class Groups {
 public:
  explicit Groups(const Tensor& tensor)
      : kernels_(kernels_of(tensor)),
        k_(tensor.shape[0]),
        rows_(tensor.shape[1]),
        row_bytes_(tensor.strides[1]),
        group_rows_(cpu::kernels().panel_rows),
        group_bytes_(kernels_.bytes(tensor.shape[0])) {}

  int64_t k() const { return k_; }
  size_t row_bytes() const { return row_bytes_; }
  size_t group_bytes() const { return group_bytes_; }
  size_t matrix_bytes() const { return static_cast<size_t>((rows_ + group_rows_ - 1) / group_rows_) * group_bytes_; }

  /// Location of a row. The argument of find() is the number of the row, counted over all matrices. `offset` is the
  /// byte offset of the row's group, and the member `row` is the index of the row in this group. `left` is the number
  /// of rows from this row to the end of the group.
  struct Place {
    size_t offset;
    int64_t row, left, count;  ///< `count` is the number of rows in the group
  };
  Place find(int64_t row) const {
    const int64_t matrix = row / rows_, in_matrix = row % rows_, in_group = in_matrix % group_rows_;
    const int64_t count = std::min(group_rows_, rows_ - (in_matrix - in_group));
    return {static_cast<size_t>(matrix) * matrix_bytes() + static_cast<size_t>(in_matrix / group_rows_) * group_bytes_,
            in_group, count - in_group, count};
  }
  void pack(const std::byte* rows, int64_t count, std::byte* group) const {
    kernels_.pack(rows, row_bytes_, count, k_, group);
  }
  void unpack(const std::byte* group, int64_t row, std::byte* to) const { kernels_.unpack(group, row, 0, k_, to); }

 private:
  const PackedKernels& kernels_;
  int64_t k_, rows_;
  size_t row_bytes_;
  int64_t group_rows_;
  size_t group_bytes_;
};

class PackedBuffer final : public HostBuffer {
 public:
  PackedBuffer(BufferType& type, CpuDevice& device, std::byte* data, size_t size)
      : HostBuffer(type, data, size), device_(device), use_(device) {}
  ~PackedBuffer() override {
    close();
    free_memory(base(), size());
    device_.give_back(size());
  }

  void init_tensor(Tensor& tensor) override {
    require<InvalidArgument>(tensor.is_view() || tensor.role == Role::kWeight,
                             "[place {}] a {} buffer takes weights only: allocate the tensor in another buffer type",
                             tensor.name, type().name());
    if (tensor.is_view() || !is_packable(tensor)) return;
    const std::lock_guard lock(mutex_);
    packed_.push_back(tensor);
  }

  void clear(uint8_t value) override {
    HostBuffer::clear(value);
    for (Tensor& tensor : packed_) do_memset(tensor, value, 0, tensor.bytes());
  }

 protected:
  void do_reset() override { packed_.clear(); }
  void do_unplace(Tensor& tensor) override {
    if (tensor.is_view()) return;
    const std::lock_guard lock(mutex_);
    std::erase_if(packed_, [&](const Tensor& known) { return known.data == tensor.data && known.name == tensor.name; });
  }
  void do_alias(Tensor& tensor, const Tensor& placed) override {
    require<InvalidArgument>(!placed.is_view() || tensor.is_view() || !is_packed(placed),
                             "[alias {}] {} is a view of a weight that is packed in {}: only views can alias this view",
                             tensor.name, describe(placed), type().name());
    HostBuffer::do_alias(tensor, placed);
  }

  void do_set(Tensor& tensor, const void* data, size_t offset, size_t size) override {
    if (!is_packed(tensor)) return HostBuffer::do_set(tensor, data, offset, size);
    const auto* from = static_cast<const std::byte*>(data);
    change(
        tensor, offset, size, [&](size_t done) { return from + done; },
        [&](std::byte* to, size_t done, size_t length) { std::memcpy(to, from + done, length); });
  }

  /// If the rows have gaps only in host memory, this function first copies the rows into one block, then packs whole
  /// groups. Such gaps occur when a device stores some columns of a matrix.
  void do_set_2d(Tensor& tensor, const void* data, size_t host_stride, const Rows& rows) override {
    if (rows.stride != rows.row_bytes || !is_packed(tensor)) return Buffer::do_set_2d(tensor, data, host_stride, rows);
    const auto* from = static_cast<const std::byte*>(data);
    std::vector<std::byte> together(rows.rows * rows.row_bytes);
    for (size_t row = 0; row < rows.rows; ++row) {
      std::memcpy(together.data() + row * rows.row_bytes, from + row * host_stride, rows.row_bytes);
    }
    do_set(tensor, together.data(), rows.offset, together.size());
  }

  void do_memset(Tensor& tensor, uint8_t value, size_t offset, size_t size) override {
    if (!is_packed(tensor)) return HostBuffer::do_memset(tensor, value, offset, size);
    change(
        tensor, offset, size, [](size_t) { return nullptr; },
        [&](std::byte* to, size_t, size_t length) { std::fill_n(to, length, std::byte{value}); });
  }

  void do_get(const Tensor& tensor, void* data, size_t offset, size_t size) override {
    if (!is_packed(tensor)) return HostBuffer::do_get(tensor, data, offset, size);
    const Tensor& owner = *tensor.storage();
    const Groups groups(owner);
    std::vector<std::byte> row(groups.row_bytes());
    auto* to = static_cast<std::byte*>(data);
    for_each_row(tensor, groups, offset, size, [&](int64_t index, size_t in_row, size_t done, size_t length) {
      const Groups::Place place = groups.find(index);
      groups.unpack(owner.data + place.offset, place.row, row.data());
      std::memcpy(to + done, row.data() + in_row, length);
    });
  }

 private:
  /// Visits bytes [offset, offset + size) row by row. For each row, calls f(number of the row in the storage, first
  /// byte in the row, number of bytes visited before, number of bytes in the row).
  template <class F>
  static void for_each_row(const Tensor& tensor, const Groups& groups, size_t offset, size_t size, F&& f) {
    for_each_piece(tensor, offset, size, [&](size_t at, size_t done, size_t length) {
      at += tensor.view_offset;
      while (length > 0) {
        const size_t in_row = at % groups.row_bytes(), part = std::min(length, groups.row_bytes() - in_row);
        f(static_cast<int64_t>(at / groups.row_bytes()), in_row, done, part);
        at += part, done += part, length -= part;
      }
    });
  }

  /// Changes bytes [offset, offset + size). If the range covers a whole group and whole(done) is not nullptr, the group
  /// is packed directly from host memory at whole(done). Otherwise the rows of the group are unpacked, changed by
  /// write(to, done, length) and packed again. A mutex protects these steps, because another thread may change other
  /// bytes of the same group.
  template <class Whole, class Write>
  void change(Tensor& tensor, size_t offset, size_t size, Whole&& whole, Write&& write) {
    Tensor& owner = *tensor.storage();
    const Groups groups(owner);
    const bool in_order = tensor.is_contiguous();
    int64_t packed_up_to = 0;  // rows before this row were packed together with their whole group
    for_each_row(tensor, groups, offset, size, [&](int64_t row, size_t in_row, size_t done, size_t length) {
      if (row < packed_up_to) return;
      const Groups::Place place = groups.find(row);
      std::byte* group = owner.data + place.offset;
      const std::byte* from = whole(done);
      const size_t group_size = static_cast<size_t>(place.count) * groups.row_bytes();
      if (from != nullptr && in_order && in_row == 0 && place.row == 0 && size - done >= group_size) {
        groups.pack(from, place.count, group);
        packed_up_to = row + place.count;
        return;
      }
      const std::lock_guard lock(mutex_);
      std::vector<std::byte> rows(group_size);
      for (int64_t i = 0; i < place.count; ++i) {
        groups.unpack(group, i, rows.data() + static_cast<size_t>(i) * groups.row_bytes());
      }
      write(rows.data() + static_cast<size_t>(place.row) * groups.row_bytes() + in_row, done, length);
      groups.pack(rows.data(), place.count, group);
    });
  }

  CpuDevice& device_;
  DeviceUse use_;
  std::mutex mutex_;
  std::vector<Tensor> packed_;  ///< copies of the packed tensors in this buffer, because the originals may be destroyed
                                ///< before clear()
};

}  // namespace

std::string PackedBufferType::name() const {
  return device_.name() + "_Packed";
}

std::unique_ptr<Buffer> PackedBufferType::allocate(size_t size) {
  std::byte* data = allocate_memory(size);
  return std::make_unique<PackedBuffer>(*this, device_, data, size);
}

size_t PackedBufferType::alloc_size(const Tensor& tensor) const {
  if (!is_packable(tensor)) return tensor.bytes();
  return Groups(tensor).matrix_bytes() * static_cast<size_t>(tensor.shape[2] * tensor.shape[3]);
}

bool is_packable(const Tensor& tensor) {
  return !tensor.is_view() && !tensor.empty() && tensor.shape[1] >= kLeastRows && tensor.is_contiguous() &&
         kernels_of(tensor).pack != nullptr;
}

bool is_packed(const Tensor& tensor) {
  const Tensor& owner = *tensor.storage();
  return owner.buffer != nullptr && dynamic_cast<const PackedBufferType*>(&owner.buffer->type()) != nullptr &&
         is_packable(owner);
}

std::optional<PackedMatrices> packed_matrices(const Tensor& tensor) {
  if (!is_packed(tensor)) return std::nullopt;
  const Tensor& owner = *tensor.storage();
  const Groups groups(owner);
  const size_t row = groups.row_bytes();
  const auto first = static_cast<int64_t>(tensor.view_offset / row);
  const Groups::Place place = groups.find(first);
  const bool several = tensor.shape[2] * tensor.shape[3] > 1;
  const bool whole_rows =
      tensor.shape[0] == owner.shape[0] && tensor.strides[1] == row && tensor.view_offset % row == 0;
  const bool whole_groups = place.row == 0 && first % owner.shape[1] + tensor.shape[1] <= owner.shape[1];
  const bool all_matrices =
      !several ||
      ((tensor.shape[2] == 1 || tensor.strides[2] == row * static_cast<size_t>(owner.shape[1])) &&
       (tensor.shape[3] == 1 || tensor.strides[3] == row * static_cast<size_t>(owner.shape[1] * tensor.shape[2])));
  if (tensor.empty() || !whole_rows || !whole_groups || !all_matrices) return std::nullopt;
  return PackedMatrices{owner.data + place.offset, groups.group_bytes(), groups.matrix_bytes()};
}

void unpack_rows(const Tensor& packed, int64_t begin, int64_t end, std::byte* to) {
  const Groups groups(packed);
  for (int64_t row = begin; row < end; ++row) {
    const Groups::Place place = groups.find(row);
    groups.unpack(packed.data + place.offset, place.row, to + static_cast<size_t>(row) * groups.row_bytes());
  }
}

bool reads_packed(const Tensor& node, size_t index) {
  if (index != 0) return false;
  if (node.op != Op::kMulMat && node.op != Op::kMulMatId && node.op != Op::kGetRows) return false;
  return packed_matrices(*node.src[0]).has_value();
}

}  // namespace shoal::cpu
