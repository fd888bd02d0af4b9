// Transfer: maps bytes of a global tensor to bytes of a rank's shard. For every layout, the range [offset, offset +
// size) of the contiguous global tensor becomes a list of rectangles of shard bytes. The example writes a rectangle as
// {offset in the shard, bytes per row x rows}.
//
//   f32 [8, 3] split 0 [6:{0} 2:{1}], bytes [4, 60): row 0 from element 1 on, and elements 0-6 of row 1
//     rank 0: {offset 4, 20 x 1} from host byte 0, {offset 24, 24 x 1} from host byte 28
//     rank 1: {offset 0, 8 x 1} from host byte 20, {offset 8, 4 x 1} from host byte 52
#pragma once

#include <span>
#include <vector>

#include "devices/buffer.h"
#include "meta/layout/layout.h"
#include "meta/layout/shards.h"

namespace shoal::meta {

struct Rectangle {
  Rows local;              ///< the rows in the shard
  size_t host_offset = 0;  ///< offset of the first row from the start of the host range
  size_t host_stride = 0;  ///< stride of the rows in host memory
};

/// A read takes each byte only from the first rank that owns the byte. A write sends each byte to every owner.
enum class Access : uint8_t { kRead, kWrite };

/// Treats a Partial tensor as if only rank 0 had a shard. For the other ranks, see zero_other_addends.
std::vector<Rectangle> rectangles(const Shards& shards, int rank, size_t offset, size_t size, Access access);

/// Computes bytes [offset, offset + size) of a Partial tensor's value, the sum of the addends in rank order. The range
/// may begin or end inside an element. The caller copies the bytes of each rank, starting at byte begin() of its shard,
/// to addend(rank). Then the caller calls finish().
class PartialSum {
 public:
  PartialSum(const Shards& shards, size_t offset, size_t size);
  size_t begin() const { return begin_; }
  /// Memory for a rank's bytes. Empty if the range is empty.
  std::span<std::byte> addend(int rank) { return size_ == 0 ? std::span<std::byte>() : addends_[rank]; }
  void finish(void* data);

 private:
  const DTypeTraits& type_;
  size_t offset_, size_, begin_ = 0;
  std::vector<std::vector<std::byte>> addends_;
};

}  // namespace shoal::meta
