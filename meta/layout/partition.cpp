#include "meta/layout/partition.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"

namespace shoal::meta {
namespace {

void normalize(Owners& owners) {
  std::sort(owners.begin(), owners.end());
  owners.erase(std::unique(owners.begin(), owners.end()), owners.end());
}

bool owns(const Run& run, int device) {
  return std::binary_search(run.owners.begin(), run.owners.end(), device);
}

int64_t sum(int64_t a, int64_t b) {
  int64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) fail<InvalidArgument>("runs of a partition exceed 2^63 - 1 elements");
  return result;
}

int64_t product(int64_t a, int64_t b) {
  int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) fail<InvalidArgument>("runs of a partition exceed 2^63 - 1 elements");
  return result;
}

/// Appends a run and keeps the normal form: no empty runs, no neighbours with the same owners.
void append(std::vector<Run>& runs, int64_t length, const Owners& owners) {
  if (length == 0) return;
  if (!runs.empty() && runs.back().owners == owners) {
    runs.back().length = sum(runs.back().length, length);
  } else {
    runs.push_back({length, owners});
  }
}

}  // namespace

Partition::Partition(int devices, std::vector<Run> runs) : devices_(devices) {
  std::vector<Run> normal;
  require<InvalidArgument>(devices >= 0, "a partition cannot have {} devices", devices);
  for (Run& run : runs) {
    require<InvalidArgument>(run.length >= 0, "a partition cannot have a run of negative length {}", run.length);
    require<InvalidArgument>(run.length == 0 || !run.owners.empty(),
                             "a partition cannot have a run of length {} without owners", run.length);
    normalize(run.owners);
    for (int owner : run.owners) {
      require<InvalidArgument>(owner >= 0 && owner < devices, "partition names device {}, but there are {} devices",
                               owner, devices);
    }
    append(normal, run.length, run.owners);
  }
  set_runs(std::move(normal));
}

void Partition::set_runs(std::vector<Run> runs) {
  length_ = 0;
  content_ = nullptr;
  if (runs.empty()) return;
  const auto devices = static_cast<size_t>(devices_);
  Content content{{}, std::vector<int64_t>(devices), std::vector<int>(devices)};
  std::vector<int64_t> ends(devices, -1);
  for (const Run& run : runs) {
    const int64_t end = sum(length_, run.length);
    for (int owner : run.owners) {
      const auto device = static_cast<size_t>(owner);
      content.local_lengths[device] += run.length;
      if (ends[device] != length_) ++content.stretches[device];
      ends[device] = end;
    }
    length_ = end;
  }
  content.runs = std::move(runs);
  content_ = std::make_shared<const Content>(std::move(content));
}

bool Partition::operator==(const Partition& other) const {
  if (devices_ != other.devices_ || length_ != other.length_) return false;
  return content_ == other.content_ || std::ranges::equal(runs(), other.runs());
}

Partition Partition::from_shares(std::span<const int64_t> shares) {
  std::vector<Run> runs;
  for (size_t d = 0; d < shares.size(); ++d) runs.push_back({shares[d], {static_cast<int>(d)}});
  return Partition(static_cast<int>(shares.size()), std::move(runs));
}

Partition Partition::by_ratio(int64_t length, int64_t unit, std::span<const double> ratio) {
  const double largest = ratio.empty() ? 0 : *std::ranges::max_element(ratio);
  // Scaling by a power of two is exact and keeps sums of large numbers finite.
  const double scale = std::ldexp(1.0, -std::max(0, std::ilogb(largest)));
  double sum = 0;
  for (const double share : ratio) sum += share * scale;
  const bool fits = std::ranges::all_of(ratio, [](double share) { return share >= 0; });
  require<InvalidArgument>(length >= 0 && unit >= 1, "cannot divide {} elements into units of {}", length, unit);
  require<InvalidArgument>(fits && largest > 0 && std::isfinite(largest),
                           "cannot divide by the ratio {}: expected numbers >= 0, not all 0", fmt::join(ratio, ":"));
  std::vector<int64_t> shares;
  double before = 0;
  int64_t given = 0;
  size_t last = 0;
  const int64_t units = length / unit;
  for (size_t device = 0; device < ratio.size(); ++device) {
    before += ratio[device] * scale;
    const double ideal = static_cast<double>(units) * before / sum + 0.5;
    const int64_t upto = (ideal < static_cast<double>(units) ? static_cast<int64_t>(ideal) : units) * unit;
    shares.push_back(upto - given);
    given = upto;
    if (ratio[device] > 0) last = device;
  }
  shares[last] += length - given;
  return from_shares(shares);
}

Partition Partition::even(int devices, int64_t length) {
  require<InvalidArgument>(devices > 0 && length >= 0, "cannot divide {} elements over {} devices", length, devices);
  std::vector<int64_t> shares(devices, length / devices);
  for (int64_t d = 0; d < length % devices; ++d) ++shares[d];
  return from_shares(shares);
}

int64_t Partition::local_length(int device) const {
  const bool known = content_ != nullptr && device >= 0 && device < devices_;
  return known ? content_->local_lengths[static_cast<size_t>(device)] : 0;
}

int Partition::stretches(int device) const {
  const bool known = content_ != nullptr && device >= 0 && device < devices_;
  return known ? content_->stretches[static_cast<size_t>(device)] : 0;
}

std::vector<OwnedRun> Partition::owned_by(int device) const {
  std::vector<OwnedRun> owned;
  int64_t begin = 0, local = 0;
  for (const Run& run : runs()) {
    if (owns(run, device)) {
      const bool continues = !owned.empty() && owned.back().begin + owned.back().length == begin;
      if (continues) {
        owned.back().length += run.length;
      } else {
        owned.push_back({begin, run.length, local});
      }
      local += run.length;
    }
    begin += run.length;
  }
  return owned;
}

bool Partition::is_disjoint() const {
  return std::ranges::all_of(runs(), [](const Run& run) { return run.owners.size() == 1; });
}

Partition Partition::disjoint() const {
  if (is_disjoint()) return *this;
  std::vector<Run> runs(this->runs().begin(), this->runs().end());
  for (Run& run : runs) run.owners.resize(1);
  return Partition(devices_, std::move(runs));
}

bool Partition::is_rank_ordered() const {
  const auto runs = this->runs();
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].owners.size() != 1) return false;
    if (i > 0 && runs[i].owners[0] <= runs[i - 1].owners[0]) return false;
  }
  return true;
}

bool Partition::covers(const Partition& needed, int device) const {
  check(length_ == needed.length_, "covers: the partitions have different lengths, {} and {}", length_, needed.length_);
  const std::vector<OwnedRun> have = owned_by(device);
  size_t i = 0;
  for (const OwnedRun& need : needed.owned_by(device)) {
    while (i < have.size() && have[i].begin + have[i].length <= need.begin) ++i;
    if (i == have.size() || have[i].begin > need.begin || have[i].begin + have[i].length < need.begin + need.length) {
      return false;
    }
  }
  return true;
}

Partition Partition::slice(int64_t begin, int64_t length) const {
  require<InvalidArgument>(begin >= 0 && length >= 0 && begin <= length_ && length <= length_ - begin,
                           "a slice of {} elements from index {} on does not fit a partition of length {}", length,
                           begin, length_);
  if (begin == 0 && length == length_) return *this;
  std::vector<Run> runs;
  int64_t at = 0;
  for (const Run& run : this->runs()) {
    const int64_t from = std::max(at, begin);
    const int64_t to = std::min(at + run.length, begin + length);
    if (from < to) runs.push_back({to - from, run.owners});
    at += run.length;
  }
  return Partition(devices_, std::move(runs));
}

Partition Partition::concat(std::span<const Partition> parts) {
  require<InvalidArgument>(!parts.empty(), "concat needs at least one partition");
  std::vector<Run> runs;
  for (const Partition& part : parts) {
    require<InvalidArgument>(part.devices_ == parts[0].devices_,
                             "concat needs partitions over the same number of devices, got {} and {}",
                             parts[0].devices_, part.devices_);
    runs.insert(runs.end(), part.runs().begin(), part.runs().end());
  }
  return Partition(parts[0].devices_, std::move(runs));
}

Partition Partition::tile(int64_t n) const {
  require<InvalidArgument>(n >= 0, "a partition cannot be tiled {} times", n);
  if (n == 1) return *this;
  std::vector<Run> tiled;
  const int64_t length = product(length_, n);
  if (runs().size() == 1) {
    append(tiled, length, runs()[0].owners);
  } else {
    constexpr int64_t kMostRuns = int64_t{1} << 26;
    const auto made = product(static_cast<int64_t>(runs().size()), n);
    require<InvalidArgument>(made <= kMostRuns, "a partition tiled {} times may have {} runs; the limit is {}", n, made,
                             kMostRuns);
    tiled.reserve(runs().size() * static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      for (const Run& run : runs()) append(tiled, run.length, run.owners);
    }
  }
  Partition result(devices_, {});
  result.set_runs(std::move(tiled));
  return result;
}

std::optional<Partition> Partition::untile(int64_t n) const {
  require<InvalidArgument>(n > 0, "a partition cannot be untiled by {}", n);
  if (n == 1) return *this;
  if (length_ % n != 0) return std::nullopt;
  Partition part = slice(0, length_ / n);
  // Tiling can only merge the last run of a part with the first run of the next part.
  if (product(static_cast<int64_t>(part.runs().size()) - 1, n) + 1 > static_cast<int64_t>(runs().size())) {
    return std::nullopt;
  }
  if (part.tile(n) != *this) return std::nullopt;
  return part;
}

Partition Partition::scale_up(int64_t n) const {
  require<InvalidArgument>(n >= 0, "a partition cannot be scaled by {}", n);
  if (n == 1) return *this;
  std::vector<Run> runs(this->runs().begin(), this->runs().end());
  for (Run& run : runs) run.length = product(run.length, n);
  return Partition(devices_, std::move(runs));
}

std::optional<Partition> Partition::scale_down(int64_t n) const {
  require<InvalidArgument>(n > 0, "a partition cannot be scaled by 1/{}", n);
  if (n == 1) return *this;
  std::vector<Run> runs(this->runs().begin(), this->runs().end());
  for (Run& run : runs) {
    if (run.length % n != 0) return std::nullopt;
    run.length /= n;
  }
  return Partition(devices_, std::move(runs));
}

std::optional<Partition> Partition::group(int64_t g) const {
  require<InvalidArgument>(g > 0, "a partition cannot be grouped by {}", g);
  if (g == 1) return *this;
  if (length_ % g != 0) return std::nullopt;
  // `places` divides the groups into stretches. All groups of a stretch have the same owners, because the stretch is
  // inside one run or is a single group.
  std::set<int64_t> places{0};
  int64_t end = 0;
  for (const Run& run : runs()) {
    end += run.length;
    places.insert({end / g, (end + g - 1) / g});
  }
  std::vector<int64_t> each(static_cast<size_t>(devices_));  // number of elements that each device owns in each of its
                                                             // groups
  std::vector<Run> groups;
  for (auto place = places.begin(); std::next(place) != places.end(); ++place) {
    const Partition one = slice(*place * g, g);
    Run& run = groups.emplace_back(Run{*std::next(place) - *place, {}});
    for (int device = 0; device < devices_; ++device) {
      const int64_t elements = one.local_length(device);
      if (elements == 0) continue;
      int64_t& known = each[static_cast<size_t>(device)];
      if (known != 0 && known != elements) return std::nullopt;
      known = elements;
      run.owners.push_back(device);
    }
  }
  return Partition(devices_, std::move(groups));
}

}  // namespace shoal::meta
