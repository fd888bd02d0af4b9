#include "models/engine/pool.h"

#include "base/error.h"

namespace shoal::models {

Pool::Pool(int64_t units) : units_(static_cast<size_t>(units)) {
  for (int32_t unit = 0; unit < static_cast<int32_t>(units); ++unit) {
    units_[static_cast<size_t>(unit)].place = free_.insert(free_.end(), unit);
  }
}

Pool::Taken Pool::take() {
  check(!free_.empty(), "a pool of {} units has no free unit", units_.size());
  const int32_t unit = free_.front();
  hold(unit);
  Taken taken{unit, label_of(unit)};
  units_[static_cast<size_t>(unit)].label = nullptr;
  return taken;
}

void Pool::hold(int32_t unit) {
  Unit& held = units_[static_cast<size_t>(unit)];
  if (held.references++ == 0) free_.erase(held.place);
}

void Pool::drop(int32_t unit) {
  Unit& held = units_[static_cast<size_t>(unit)];
  check(held.references > 0, "unit {} of a pool has no reference", unit);
  if (--held.references == 0) put_back(unit);
}

void Pool::label(int32_t unit, PrefixNode* node) {
  Unit& labelled = units_[static_cast<size_t>(unit)];
  labelled.label = node;
  if (labelled.references > 0) return;
  free_.erase(labelled.place);
  put_back(unit);
}

void Pool::put_back(int32_t unit) {
  Unit& back = units_[static_cast<size_t>(unit)];
  back.place = free_.insert(back.label == nullptr ? free_.begin() : free_.end(), unit);
}

}  // namespace shoal::models
