// Partition: how one axis of a tensor is divided among the devices of a mesh.
//
// The axis is cut into runs: stretches with a length and their owners, at least one. The lengths add up to the axis,
// and what a device holds, its shard, is its runs one after the other. Partitions are kept in normal form, without
// empty runs and without neighbours of the same owners, so that equal ones compare equal.
//
//   even over 2 devices, L = 8:            4:{0} 4:{1}
//   3:1, L = 8:                            6:{0} 2:{1}
//   fused Q|K|V of 8, 4 and 4 rows, even:  4:{0} 4:{1} 2:{0} 2:{1} 2:{0} 2:{1}
//   4 KV heads over 8 devices, shared:     1:{0,1} 1:{2,3} 1:{4,5} 1:{6,7}
//
// Device 0's shard of the third is rows 0-3, 8-9 and 12-13, 8 rows long. All arithmetic is exact; operations
// whose result does not exist (a cut inside a whole element) return nullopt. Values, thread-safe.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace shoal::meta {

/// Sorted device numbers without duplicates.
using Owners = std::vector<int>;

struct Run {
  int64_t length = 0;
  Owners owners;
  bool operator==(const Run&) const = default;
};

/// A run as a device sees it: global [begin, begin + length) lies at `local_begin` of its shard.
struct OwnedRun {
  int64_t begin = 0;
  int64_t length = 0;
  int64_t local_begin = 0;
  bool operator==(const OwnedRun&) const = default;
};

class Partition {
 public:
  Partition() = default;
  /// Any runs; brings them to normal form. Throws InvalidArgument for a negative length, a run of length > 0
  /// without owners, an owner outside [0, devices), or runs of more than 2^63 - 1 elements together.
  Partition(int devices, std::vector<Run> runs);
  /// Consecutive shares: shares[d] elements to device d; {6, 2} -> 6:{0} 2:{1}.
  static Partition from_shares(std::span<const int64_t> shares);
  /// length / devices each, the first length % devices one more.
  static Partition even(int devices, int64_t length);

  /// `length` in whole units by a ratio (one number >= 0 for each device, not all 0). Each boundary is the ideal one
  /// rounded, so that errors do not add up; what is left of a unit goes to the last device with a share. Throws
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
  /// How many of those there are.
  int stretches(int device) const;
  /// No run has two owners.
  bool is_disjoint() const;
  /// Each run keeps its first owner only.
  Partition disjoint() const;
  /// Each device owns at most one run, and the runs come in the order of the devices: gathering the shards in
  /// rank order gives the whole axis without reordering. Needs is_disjoint().
  bool is_rank_ordered() const;
  /// True when every element that `device` owns in `needed` is in its shard here.
  bool covers(const Partition& needed, int device) const;

  /// Axis [begin, begin + length) of this one.
  Partition slice(int64_t begin, int64_t length) const;
  /// This axis followed by others, all on the same number of devices.
  static Partition concat(std::span<const Partition> parts);
  /// The axis repeated n times: 2:{0} 2:{1} twice -> 2:{0} 2:{1} 2:{0} 2:{1}. Throws InvalidArgument past 2^26 runs.
  Partition tile(int64_t n) const;
  /// The inverse: P with P.tile(n) == *this; nullopt when the n parts differ or n does not divide the length.
  std::optional<Partition> untile(int64_t n) const;
  /// Every element becomes n consecutive ones (merging an inner axis of length n): 2:{0} 1:{1} by 3 -> 6:{0} 3:{1}.
  Partition scale_up(int64_t n) const;
  /// The inverse: n consecutive elements become one; nullopt when a run boundary is no multiple of n.
  std::optional<Partition> scale_down(int64_t n) const;
  /// Groups of g consecutive elements become one element owned by all owners of the group: heads to shared KV
  /// heads. 1:{0} 1:{1} 2:{2} by 2 -> 1:{0,1} 1:{2}. nullopt when g does not divide the length, or when some
  /// device's elements do not map onto its groups uniformly and in order (local element j of device d must
  /// belong to local group j / (local length / local groups)).
  std::optional<Partition> group(int64_t g) const;

  /// "4:{0} 4:{1}"; three or more repetitions are folded: "(2:{0} 2:{1}) x 8"; "empty" for length 0.
  std::string to_string() const;

 private:
  /// Shared by all copies, because plans have thousands of them; never changed once it is made.
  struct Content {
    std::vector<Run> runs;
    std::vector<int64_t> local_lengths;  ///< by device
    std::vector<int> stretches;          ///< by device
  };

  /// Runs in normal form.
  void set_runs(std::vector<Run> runs);

  int devices_ = 0;
  int64_t length_ = 0;
  std::shared_ptr<const Content> content_;  ///< nullptr for length 0
};

}  // namespace shoal::meta
