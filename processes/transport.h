// A transport moves bytes between the processes of one run. The MPI transport is a plug-in (processes/mpi). Tests use a
// transport whose processes are threads. A transport has no time-outs and does not detect failures of other processes.
// ProcessGroup adds time-outs and failure detection.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "devices/plugin.h"

namespace shoal {

/// Host memory that a process sends to, or receives from, another process. Messages with the same tag between two
/// processes arrive in the order in which the sender started them. A sent message must not be longer than the
/// receiver's buffer.
struct Message {
  bool sends = false;  ///< true: the memory is sent; false: a received message is written to the memory
  int peer = 0;        ///< number of the other process
  int tag = 0;         ///< from 0 to 2^31 - 1
  std::byte* data = nullptr;
  size_t size = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int own() const = 0;   ///< number of this process
  virtual int size() const = 0;  ///< number of processes
  /// Returns the name of the computer that runs this process.
  virtual std::string host() const = 0;
  /// Starts a message and returns its handle without waiting. The memory of the message must stay valid until the
  /// message is finished or cancelled. Thread-safe. Throws CommError.
  virtual void* start(const Message& message) = 0;
  /// Returns whether the message has finished. If so, the call frees the handle. If the call throws CommError, the
  /// handle stays valid, and the caller must cancel the message. Thread-safe.
  virtual bool finished(void* handle) = 0;
  /// Cancels a message that cannot finish. The transport may still read the memory of a sent message.
  virtual void cancel(void* handle) = 0;
  /// Closes the transport. Returns after every process has called close(). No message may be pending, and no other call
  /// may follow.
  virtual void close() = 0;
};

/// The struct that the function shoal_transport() of a transport plug-in returns. The offset of the first member is the
/// same in every version. If the first member does not have the expected value, the program reads no other member.
struct TransportPlugin {
  uint64_t class_sizes;  ///< value of transport_sizes() when the plug-in was compiled
  /// Opens the transport. The program calls this function once per process. Throws CommError.
  std::unique_ptr<Transport> (*open)();
};

constexpr uint64_t transport_sizes() {
  return mixed_sizes({sizeof(TransportPlugin), sizeof(Transport), sizeof(Message), sizeof(std::string)});
}

}  // namespace shoal
