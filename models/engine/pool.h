// Equal units of cache memory: the pages of a page group, or the slots of recurrent states. A unit in use has
// references. A unit without references is free, but keeps its contents until take() returns it. take() returns units
// without contents first, then units in the order in which they became free. Single-threaded value type.
//
//   Pool pool(2);  pool.take() -> 0;  pool.take() -> 1;  pool.label(0, node);  pool.drop(0);  pool.drop(1);
//   pool.take() -> 1 (no contents);  pool.take() -> 0, and the label `node` is lost
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <vector>

namespace shoal::models {

struct PrefixNode;

class Pool {
 public:
  explicit Pool(int64_t units);

  struct Taken {
    int32_t unit = -1;
    PrefixNode* lost = nullptr;  ///< the previous label of the unit
  };
  /// Returns a unit with one reference and no label. There must be a free unit.
  Taken take();
  /// Adds a reference to a unit, which may be free.
  void hold(int32_t unit);
  /// Removes a reference.
  void drop(int32_t unit);
  /// Labels the contents of a unit: the node whose tokens they belong to. nullptr removes the label.
  void label(int32_t unit, PrefixNode* node);
  PrefixNode* label_of(int32_t unit) const { return units_[static_cast<size_t>(unit)].label; }
  int32_t references(int32_t unit) const { return units_[static_cast<size_t>(unit)].references; }
  int64_t free_units() const { return static_cast<int64_t>(free_.size()); }
  int64_t size() const { return static_cast<int64_t>(units_.size()); }

 private:
  struct Unit {
    int32_t references = 0;
    PrefixNode* label = nullptr;
    std::list<int32_t>::iterator place;  ///< in free_, if there are no references
  };
  void put_back(int32_t unit);

  std::vector<Unit> units_;
  std::list<int32_t> free_;  ///< units without references; the next unit of take() is first
};

}  // namespace shoal::models
