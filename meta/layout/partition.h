// Partition: how one axis of a tensor is divided among the devices of a mesh.
//
// The axis is cut into runs. A run is a stretch with a length and at least one owner. The lengths add up to the length
// of the axis. A device's shard is the concatenation of its runs. Partitions are kept in normal form: no run is empty,
// and neighbours have different owners. So two partitions with the same owners of every element compare equal.
//
//   even over 2 devices, L = 8:            4:{0} 4:{1}
//   3:1, L = 8:                            6:{0} 2:{1}
//   fused Q|K|V of 8, 4 and 4 rows, even:  4:{0} 4:{1} 2:{0} 2:{1} 2:{0} 2:{1}
//   4 KV heads over 8 devices, shared:     1:{0,1} 1:{2,3} 1:{4,5} 1:{6,7}
//
// In the third example, device 0's shard has 8 rows: rows 0-3, 8-9 and 12-13 of the axis. All arithmetic is exact.
// Operations return nullopt if no partition expresses the result (for example because of a cut inside an element).
// Partitions are values and thread-safe.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::meta {

/// Sorted device numbers without duplicates.
using Owners = std::vector<int>;

struct Run {
  int64_t length = 0;
  Owners owners;
  bool operator==(const Run&) const = default;
};

/// A run within a device's shard. The shard stores the global elements [begin, begin + length). The first of these
/// elements is element `local_begin` of the shard.
struct OwnedRun {
  int64_t begin = 0;
  int64_t length = 0;
  int64_t local_begin = 0;
  bool operator==(const OwnedRun&) const = default;
};

class Partition {
 public:
  Partition() = default;
  /// Converts any runs to normal form. Throws InvalidArgument for a negative length, a run of length > 0 without
  /// owners, an owner outside [0, devices), or more than 2^63 - 1 elements in total.
  Partition(int devices, std::vector<Run> runs);
  /// Gives shares[d] consecutive elements to device d: {6, 2} -> 6:{0} 2:{1}.
  static Partition from_shares(std::span<const int64_t> shares);
  /// Gives each device length / devices elements. The first (length % devices) devices get one more element.
  static Partition even(int devices, int64_t length);

  /// Divides `length` elements by a ratio. The division is in whole units. The ratio has one number >= 0 for each
  /// device, and at least one number > 0. Each boundary is the ideal boundary rounded to a unit, so rounding errors do
  /// not add up. The last device with a nonzero share also gets the remainder, which is less than a unit. Throws
  /// InvalidArgument for any other ratio, a negative length, or a unit below 1.
  ///   length 9, unit 2, ratio {1, 1} -> 4:{0} 5:{1}
  static Partition by_ratio(int64_t length, int64_t unit, std::span<const double> ratio);

  int devices() const { return devices_; }
  int64_t length() const { return length_; }
  std::span<const Run> runs() const { return content_ != nullptr ? content_->runs : std::span<const Run>(); }
  bool operator==(const Partition& other) const;

  /// Length of a device's shard.
  int64_t local_length(int device) const;
  std::vector<OwnedRun> owned_by(int device) const;
  /// Number of contiguous stretches of the axis that a device owns.
  int stretches(int device) const;
  /// True if no run has two owners.
  bool is_disjoint() const;
  /// A copy in which each run has only its first owner.
  Partition disjoint() const;
  /// True if each device owns at most one run and the runs are in device order. Gathering the shards in rank order then
  /// gives the whole axis without reordering. Requires is_disjoint().
  bool is_rank_ordered() const;
  /// True if the device's shard contains every element that the device owns in `needed`.
  bool covers(const Partition& needed, int device) const;

  /// The partition of elements [begin, begin + length) of the axis.
  Partition slice(int64_t begin, int64_t length) const;
  /// Concatenates the axes. All parts must have the same number of devices.
  static Partition concat(std::span<const Partition> parts);
  /// The axis repeated n times: 2:{0} 2:{1} twice -> 2:{0} 2:{1} 2:{0} 2:{1}. Throws InvalidArgument if the result has
  /// more than 2^26 runs.
  Partition tile(int64_t n) const;
  /// Inverse of tile(): P with P.tile(n) == *this. Returns nullopt if the n parts differ or n does not divide the
  /// length.
  std::optional<Partition> untile(int64_t n) const;
  /// Replaces every element by n elements, like a reshape that merges an inner axis of length n: 2:{0} 1:{1} by 3 ->
  /// 6:{0} 3:{1}.
  Partition scale_up(int64_t n) const;
  /// Inverse of scale_up(): n elements become one element. Returns nullopt if a run boundary is not a multiple of n.
  std::optional<Partition> scale_down(int64_t n) const;
  /// Merges each group of g consecutive elements into one element. All owners of elements of the group own the merged
  /// element. For example, this function maps heads to shared KV heads: 1:{0} 1:{1} 2:{2} by 2 -> 1:{0,1} 1:{2}.
  /// Returns nullopt if g does not divide the length, or if a device owns different numbers of elements in two of its
  /// groups. Equal numbers are required because local element j of a device must belong to local group
  /// j / (local length / local groups).
  std::optional<Partition> group(int64_t g) const;

  /// Text such as "4:{0} 4:{1}". Runs that repeat at least three times are written once, with a factor: "(2:{0} 2:{1})
  /// x 8". Length 0 gives "empty".
  std::string to_string() const;
  /// Inverse of to_string(). Throws InvalidArgument for any other text, and if repetitions give more than 2^20 runs.
  static Partition parse(int devices, std::string_view text);

 private:
  /// All copies of a partition share the content, because plans have thousands of partitions. The content never changes
  /// after construction.
  struct Content {
    std::vector<Run> runs;
    std::vector<int64_t> local_lengths;  ///< one for each device
    std::vector<int> stretches;          ///< one for each device
  };

  /// Sets runs that are already in normal form.
  void set_runs(std::vector<Run> runs);

  int devices_ = 0;
  int64_t length_ = 0;
  std::shared_ptr<const Content> content_;  ///< nullptr for length 0
};

}  // namespace shoal::meta
