// Random decisions about named objects. Each decision depends only on a seed and the name. So a shrunk case runs in the
// same mode as the original case.
#pragma once

#include <cstdint>
#include <string_view>

namespace shoal::test {

class Dice {
 public:
  explicit Dice(uint64_t seed) : seed_(seed) {}
  /// Returns dice with a seed that depends on `what` and on the seed of this object. So each run can have its own dice,
  /// which make independent decisions about the same names.
  Dice of(std::string_view what) const { return Dice(mixed(what)); }
  /// A random number in [0, sides).
  size_t draw(std::string_view name, size_t sides) const { return static_cast<size_t>(mixed(name) % sides); }
  bool one_in(size_t sides, std::string_view name) const { return draw(name, sides) == 0; }

 private:
  uint64_t mixed(std::string_view name) const {
    uint64_t hash = 14695981039346656037ULL ^ seed_ * 0x9E3779B97F4A7C15ULL;  // FNV-1a, then the final steps of
                                                                              // SplitMix64
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
    hash = (hash ^ hash >> 30) * 0xBF58476D1CE4E5B9ULL;
    hash = (hash ^ hash >> 27) * 0x94D049BB133111EBULL;
    return hash ^ hash >> 31;
  }

  uint64_t seed_;
};

}  // namespace shoal::test
