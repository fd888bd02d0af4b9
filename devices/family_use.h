// FamilyUse counts the existing objects of a family of devices: backends, buffers, events, and devices that combine
// devices of the family. A family cannot be unloaded while BackendReg::uses() is not 0. The base class of buffers holds
// a FamilyUse. Every Backend and Event holds one as a member (tests/devices checks this). Host work that a family
// queues on a stream of another family also holds a FamilyUse, because unloading the family removes the work's code
// (enqueue_for in devices/backend.h). Thread-safe.
#pragma once

namespace shoal {

class BackendReg;
class BufferType;
class Device;

class FamilyUse {
 public:
  explicit FamilyUse(const Device& device);    ///< for the device's family
  explicit FamilyUse(const BufferType& type);  ///< for the family of the type's device
  ~FamilyUse();
  FamilyUse(const FamilyUse&) = delete;
  FamilyUse& operator=(const FamilyUse&) = delete;

 private:
  BackendReg& family_;
};

}  // namespace shoal
