// Transport over MPI. Messages are non-blocking sends and receives of bytes between the processes that mpirun or srun
// has started. CMake builds libshoal-mpi.so from this file if MPI's headers are available (cmake/mpi.cmake).
#include <mpi.h>

#include <algorithm>
#include <climits>
#include <future>
#include <memory>
#include <thread>

#include "base/error.h"
#include "processes/transport.h"

namespace shoal {
namespace {

/// Throws CommError with MPI's error text.
void require_success(int code, std::string_view what) {
  if (code == MPI_SUCCESS) return;
  std::string text(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  text.resize(static_cast<size_t>(length));
  fail<CommError>("MPI {} failed: {}", what, text);
}

/// The thread that initialises and finalises MPI. MPI requires that one thread makes both calls, and MPI_Finalize()
/// waits for all processes. A separate thread makes both calls, so that no other thread waits for MPI_Finalize(). If
/// end() is never called, the separate thread waits until the program ends.
class MainThread {
 public:
  /// Starts the thread and returns after MPI_Init_thread(). `provided` gets MPI's level of thread support. Throws
  /// CommError.
  static std::shared_ptr<MainThread> start(int& provided) {
    auto started = std::make_shared<MainThread>();
    std::thread([started, &provided] {
      started->started_.set_value(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided));
      started->ends_.get_future().wait();
      MPI_Finalize();
      started->ended_.set_value();
    }).detach();
    require_success(started->started_.get_future().get(), "start");
    return started;
  }
  void end() {
    ends_.set_value();
    ended_.get_future().wait();
  }

 private:
  std::promise<int> started_;
  std::promise<void> ends_, ended_;
};

class MpiTransport final : public Transport {
 public:
  MpiTransport() {
    int provided = 0;
    main_ = MainThread::start(provided);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    require<CommError>(
        provided >= MPI_THREAD_MULTIPLE,
        "this MPI does not support calls from several threads; use an MPI with MPI_THREAD_MULTIPLE, such as Open MPI");
    MPI_Comm_rank(MPI_COMM_WORLD, &own_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }

  int own() const override { return own_; }
  int size() const override { return size_; }

  std::string host() const override {
    std::string name(MPI_MAX_PROCESSOR_NAME, '\0');
    int length = 0;
    require_success(MPI_Get_processor_name(name.data(), &length), "name of the host");
    name.resize(static_cast<size_t>(length));
    return name;
  }

  void* start(const Message& message) override {
    require<CommError>(message.size <= INT_MAX, "a message of {} bytes is too long for MPI", message.size);
    auto request = std::make_unique<MPI_Request>();
    const int size = static_cast<int>(message.size);
    if (message.sends) {
      require_success(MPI_Isend(message.data, size, MPI_BYTE, message.peer, message.tag, MPI_COMM_WORLD, request.get()),
                      "send");
    } else {
      require_success(MPI_Irecv(message.data, size, MPI_BYTE, message.peer, message.tag, MPI_COMM_WORLD, request.get()),
                      "receive");
    }
    return request.release();
  }

  bool finished(void* handle) override {
    auto* request = static_cast<MPI_Request*>(handle);
    int done = 0;
    const int code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
    require_success(code, "transfer");
    if (done != 0) delete request;
    return done != 0;
  }

  void cancel(void* handle) override {
    const std::unique_ptr<MPI_Request> request(static_cast<MPI_Request*>(handle));
    MPI_Cancel(request.get());
    MPI_Request_free(request.get());
  }

  void close() override { main_->end(); }

 private:
  std::shared_ptr<MainThread> main_;
  int own_ = 0, size_ = 1;
};

}  // namespace
}  // namespace shoal

extern "C" __attribute__((visibility("default"))) const shoal::TransportPlugin* shoal_transport() {
  static const shoal::TransportPlugin plugin{shoal::transport_sizes(), []() -> std::unique_ptr<shoal::Transport> {
                                               return std::make_unique<shoal::MpiTransport>();
                                             }};
  return &plugin;
}
