// Transport: what moves bytes between the processes of one run. MPI is one (processes/mpi, a plug-in), threads of a
// test are another. It knows no time-outs and no failures of others: those are the business of ProcessGroup.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "devices/plugin.h"

namespace shoal {

/// One piece of host memory on its way to or from another process. Messages of one pair of processes and one tag arrive
/// in the order in which they were started, and are at most as long as what waits for them.
struct Message {
  bool sends = false;  ///< otherwise it receives
  int peer = 0;        ///< the other process
  int tag = 0;         ///< 0 to 2^31 - 1
  std::byte* data = nullptr;
  size_t size = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int own() const = 0;   ///< number of this process
  virtual int size() const = 0;  ///< of all
  /// The computer that this process runs on.
  virtual std::string host() const = 0;
  /// Starts a message, whose memory must stay until it is finished or cancelled. Any thread; does not wait. Throws
  /// CommError.
  virtual void* start(const Message& message) = 0;
  /// True: it has ended, and the handle is gone. Any thread. Throws CommError; the handle is there then, to be
  /// cancelled.
  virtual bool finished(void* handle) = 0;
  /// Of a message that nothing will come of. The memory of one that sends may still be read.
  virtual void cancel(void* handle) = 0;
  /// Every process has called it, and nothing is on its way. Nothing may be called afterwards.
  virtual void close() = 0;
};

/// What a plug-in that brings a transport exports, as shoal_transport(). The first member stays where it is in every
/// version, and nothing else is read when it differs.
struct TransportPlugin {
  uint64_t class_sizes;  ///< transport_sizes() of the plug-in's compiler
  /// Throws CommError. Once in a process.
  std::unique_ptr<Transport> (*open)();
};

constexpr uint64_t transport_sizes() {
  return mixed_sizes({sizeof(TransportPlugin), sizeof(Transport), sizeof(Message), sizeof(std::string)});
}

}  // namespace shoal
