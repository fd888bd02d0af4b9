// FamilyUse counts the existing objects of a family of devices: backends, buffers and events. It also counts devices of
// other families that combine devices of the family. A family cannot be unloaded while BackendReg::uses() is not 0. The
// base class of buffers holds a FamilyUse. Every Backend and Event has a FamilyUse as a member (tests/devices checks
// this). Host work that a family queues on a stream of another family (enqueue_for in devices/backend.h) also holds a
// FamilyUse, because unloading the family removes the work's code. Thread-safe.
#pragma once

namespace shoal {

class BackendReg;
class BufferType;
class Device;

class FamilyUse {
 public:
  explicit FamilyUse(const Device& device);    ///< counts a use of the device's family
  explicit FamilyUse(const BufferType& type);  ///< counts a use of the family of the type's device
  ~FamilyUse();
  FamilyUse(const FamilyUse&) = delete;
  FamilyUse& operator=(const FamilyUse&) = delete;

 private:
  BackendReg& family_;
};

}  // namespace shoal
