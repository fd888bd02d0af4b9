// Transport: moves bytes between the processes of one run. Implementations: MPI (processes/mpi, a plug-in), and one for
// tests, whose processes are threads. A transport has no time-outs and does not detect failures of other processes;
// ProcessGroup adds both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "devices/plugin.h"

namespace shoal {

/// Host memory that is sent to, or received from, another process. Messages between the same two processes with the
/// same tag arrive in the order in which they were started. A sent message must not be longer than the buffer of its
/// receive.
struct Message {
  bool sends = false;  ///< whether the memory is sent; otherwise it is received into
  int peer = 0;        ///< the other process
  int tag = 0;         ///< 0 to 2^31 - 1
  std::byte* data = nullptr;
  size_t size = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual int own() const = 0;   ///< number of this process
  virtual int size() const = 0;  ///< number of processes
  /// Name of the computer that runs this process.
  virtual std::string host() const = 0;
  /// Starts a message. Its memory must stay valid until the message is finished or cancelled. Any thread; does not
  /// block. Throws CommError.
  virtual void* start(const Message& message) = 0;
  /// Whether the message has finished; if so, frees the handle. Any thread. If it throws CommError, the handle stays
  /// valid and must be cancelled.
  virtual bool finished(void* handle) = 0;
  /// Abandons a message that cannot finish. The transport may still read the memory of a sent message.
  virtual void cancel(void* handle) = 0;
  /// Returns after every process has called close(). No message may be pending, and no other call may follow.
  virtual void close() = 0;
};

/// The struct that a transport plug-in exports as shoal_transport(). The first member is at the same place in every
/// version. If its value is not the expected one, the program reads no other member.
struct TransportPlugin {
  uint64_t class_sizes;  ///< transport_sizes() as compiled into the plug-in
  /// Opens the transport, once per process. Throws CommError.
  std::unique_ptr<Transport> (*open)();
};

constexpr uint64_t transport_sizes() {
  return mixed_sizes({sizeof(TransportPlugin), sizeof(Transport), sizeof(Message), sizeof(std::string)});
}

}  // namespace shoal
