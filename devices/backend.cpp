#include "devices/backend.h"

#include <new>

#include "graph/error.h"

namespace shoal {
namespace {

Buffer& buffer_of(const Tensor& tensor) {
  require<InvalidArgument>(tensor.buffer != nullptr, "[{}] the tensor has no memory: place it in a buffer first",
                           tensor.name);
  return *tensor.buffer;
}

}  // namespace

void Backend::set_async(Tensor& tensor, const void* data, size_t offset, size_t size) {
  synchronize();
  buffer_of(tensor).set(tensor, data, offset, size);
}

void Backend::get_async(const Tensor& tensor, void* data, size_t offset, size_t size) {
  synchronize();
  buffer_of(tensor).get(tensor, data, offset, size);
}

void Backend::set_2d_async(Tensor& tensor, const void* data, size_t host_stride, const Rows& rows) {
  synchronize();
  buffer_of(tensor).set_2d(tensor, data, host_stride, rows);
}

void Backend::get_2d_async(const Tensor& tensor, void* data, size_t host_stride, const Rows& rows) {
  synchronize();
  buffer_of(tensor).get_2d(tensor, data, host_stride, rows);
}

void Backend::copy_async(const Tensor& src, Backend& to, Tensor& dst) {
  synchronize();
  if (&to != this) to.synchronize();
  tensor_copy(src, dst);
}

template <class Queue>
Status Backend::run(Queue&& queue) {
  try {
    queue();
    synchronize();
    return Status::kSuccess;
  } catch (const CommError&) {
    return Status::kAborted;
  } catch (const OutOfMemory&) {
    return Status::kAllocationFailed;
  } catch (const std::bad_alloc&) {
    return Status::kAllocationFailed;
  } catch (const DeviceError&) {
    return Status::kFailed;
  }
}

Status Backend::compute(GraphPlan& plan) {
  return run([&] { compute_async(plan); });
}

Status Backend::compute(Graph& graph) {
  return run([&] { compute_async(graph); });
}

}  // namespace shoal
