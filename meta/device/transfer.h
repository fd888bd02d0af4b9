// Transfer: which bytes of a global tensor lie where in a rank's shard. For every layout, byte range and segment,
// the range [offset, offset + size) of the contiguous global tensor is a list of rectangles of shard bytes.
//
//   f32 [8, 3] split 0 [6:{0} 2:{1}], bytes [4, 60) on rank 0: the first row from its element 1 (20 bytes), then
//   row 1 whole: {offset 4, 20 x 1} from host byte 0 and {offset 24, 24 x 1} from host byte 28; on rank 1:
//   {offset 0, 8 x 1} from host byte 20 and {offset 8, 4 x 1} from host byte 52.
#pragma once

#include <span>
#include <vector>

#include "devices/buffer.h"
#include "meta/layout/layout.h"
#include "meta/layout/shards.h"

namespace shoal::meta {

struct Rectangle {
  Rows local;              ///< in the shard
  size_t host_offset = 0;  ///< of the first row, from the start of the host range
  size_t host_stride = 0;  ///< between rows
};

/// For reading, each byte comes from one rank only (the first owner); for writing it goes to every owner.
enum class Access : uint8_t { kRead, kWrite };

/// A Partial tensor counts as rank 0's alone (see zero_other_addends for the other ranks).
std::vector<Rectangle> rectangles(const Shards& shards, int rank, size_t offset, size_t size, Access access);

/// Bytes [offset, offset + size) of the sum of a Partial tensor's addends, whatever elements they cut: fetch every
/// rank's addend, which begins at byte begin() of its shard, then finish. Adds in rank order.
class PartialSum {
 public:
  PartialSum(const Shards& shards, size_t offset, size_t size);
  size_t begin() const { return begin_; }
  /// Empty when nothing is asked for.
  std::span<std::byte> addend(int rank) { return size_ == 0 ? std::span<std::byte>() : addends_[rank]; }
  void finish(void* data);

 private:
  const DTypeTraits& type_;
  size_t offset_, size_, begin_ = 0;
  std::vector<std::vector<std::byte>> addends_;
};

}  // namespace shoal::meta
