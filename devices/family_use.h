// FamilyUse: counts what lives of a family of devices - its backends, buffers, events, and the devices that are made of
// its devices. A family whose BackendReg::uses() is not 0 cannot be unloaded. Buffers hold one in their base class;
// every Backend and Event holds one as a member (the device suite checks it), and so does host work that a family
// queues on a stream of another one, as its code may go with the family (enqueue_for in devices/backend.h).
// Thread-safe.
#pragma once

namespace shoal {

class BackendReg;
class BufferType;
class Device;

class FamilyUse {
 public:
  explicit FamilyUse(const Device& device);    ///< of the device's family
  explicit FamilyUse(const BufferType& type);  ///< of the family of the type's device
  ~FamilyUse();
  FamilyUse(const FamilyUse&) = delete;
  FamilyUse& operator=(const FamilyUse&) = delete;

 private:
  BackendReg& family_;
};

}  // namespace shoal
