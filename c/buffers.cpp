// C functions for buffer types, buffers, weights and tensors.
#include "devices/buffer.h"

#include "c/guard.h"
#include "devices/allocate.h"

using namespace shoal;
using namespace shoal::c;

static_assert(static_cast<int>(Usage::kCompute) == SHOAL_USAGE_COMPUTE);
static_assert(static_cast<int>(Role::kCache) == SHOAL_ROLE_CACHE);
static_assert(static_cast<int>(DeviceType::kMeta) == SHOAL_DEVICE_META);

namespace {

constexpr auto kUsages = static_cast<Usage>(SHOAL_USAGE_COMPUTE + 1);
constexpr auto kRoles = static_cast<Role>(SHOAL_ROLE_CACHE + 1);

/// Releases an object that the caller of the C function will own.
template <class Handle, class T>
Handle* released(std::unique_ptr<T> object) {
  return handle_of<Handle>(object.release());
}

Tensor* at(std::span<Tensor* const> tensors, size_t index, const char* what) {
  require<InvalidArgument>(index < tensors.size(), "there is no {} number {}; their number is {}", what, index,
                           tensors.size());
  return tensors[index];
}

}  // namespace

shoal_buffer_type* shoal_device_buffer_type(shoal_device* device) {
  return guard<shoal_buffer_type*>(
      __func__, nullptr, [&] { return handle_of<shoal_buffer_type>(&object(device, "device").buffer_type()); });
}

shoal_buffer_type* shoal_device_weights_type(shoal_device* device) {
  return guard<shoal_buffer_type*>(
      __func__, nullptr, [&] { return handle_of<shoal_buffer_type>(&object(device, "device").weights_type()); });
}

shoal_buffer_type* shoal_device_host_type(shoal_device* device) {
  return guard<shoal_buffer_type*>(
      __func__, nullptr, [&] { return handle_of<shoal_buffer_type>(object(device, "device").host_buffer_type()); });
}

const char* shoal_buffer_type_name(const shoal_buffer_type* type) {
  return guard<const char*>(__func__, nullptr, [&] { return lasting(object(type, "type").name()); });
}

shoal_device* shoal_buffer_type_device(const shoal_buffer_type* type) {
  return guard<shoal_device*>(__func__, nullptr,
                              [&] { return handle_of<shoal_device>(&object(type, "type").device()); });
}

size_t shoal_buffer_type_alignment(const shoal_buffer_type* type) {
  return guard<size_t>(__func__, 0, [&] { return object(type, "type").alignment(); });
}

size_t shoal_buffer_type_max_size(const shoal_buffer_type* type) {
  return guard<size_t>(__func__, 0, [&] { return object(type, "type").max_size(); });
}

size_t shoal_buffer_type_alloc_size(const shoal_buffer_type* type, const shoal_tensor* tensor) {
  return guard<size_t>(__func__, 0, [&] { return object(type, "type").alloc_size(object(tensor, "tensor")); });
}

bool shoal_buffer_type_is_host(const shoal_buffer_type* type) {
  return guard(__func__, false, [&] { return object(type, "type").is_host(); });
}

shoal_buffer* shoal_buffer_new(shoal_buffer_type* type, size_t bytes) {
  return guard<shoal_buffer*>(__func__, nullptr,
                              [&] { return released<shoal_buffer>(object(type, "type").allocate(bytes)); });
}

shoal_buffer* shoal_buffer_from_host_new(shoal_device* device, void* data, size_t bytes) {
  return guard<shoal_buffer*>(__func__, nullptr, [&] {
    Device& owner = object(device, "device");
    auto buffer = owner.buffer_from_host_ptr(checked(data, "data"), bytes);
    require<DeviceError>(buffer != nullptr, "{} cannot use host memory; allocate a buffer with shoal_buffer_new()",
                         owner.name());
    return released<shoal_buffer>(std::move(buffer));
  });
}

void shoal_buffer_free(shoal_buffer* buffer) {
  destroy(buffer);
}

shoal_buffer_type* shoal_buffer_get_type(const shoal_buffer* buffer) {
  return guard<shoal_buffer_type*>(__func__, nullptr,
                                   [&] { return handle_of<shoal_buffer_type>(&object(buffer, "buffer").type()); });
}

size_t shoal_buffer_size(const shoal_buffer* buffer) {
  return guard<size_t>(__func__, 0, [&] { return object(buffer, "buffer").size(); });
}

void* shoal_buffer_base(const shoal_buffer* buffer) {
  return guard<void*>(__func__, nullptr, [&] { return object(buffer, "buffer").base(); });
}

shoal_usage shoal_buffer_usage(const shoal_buffer* buffer) {
  return guard<shoal_usage>(__func__, -1, [&] { return static_cast<shoal_usage>(object(buffer, "buffer").usage()); });
}

shoal_status shoal_buffer_set_usage(shoal_buffer* buffer, shoal_usage usage) {
  return guard(__func__, [&] { object(buffer, "buffer").set_usage(enumerator(usage, kUsages, "usage")); });
}

shoal_status shoal_buffer_clear(shoal_buffer* buffer, uint8_t value) {
  return guard(__func__, [&] { object(buffer, "buffer").clear(value); });
}

shoal_status shoal_buffer_reset(shoal_buffer* buffer) {
  return guard(__func__, [&] { object(buffer, "buffer").reset(); });
}

shoal_status shoal_buffer_place(shoal_buffer* buffer, shoal_tensor* tensor, size_t offset) {
  return guard(__func__, [&] { object(buffer, "buffer").place(object(tensor, "tensor"), offset); });
}

shoal_weights* shoal_weights_new(void) {
  return guard<shoal_weights*>(__func__, nullptr,
                               [&] { return released<shoal_weights>(std::make_unique<TensorContext>()); });
}

void shoal_weights_free(shoal_weights* weights) {
  destroy(weights);
}

shoal_tensor* shoal_weights_add(shoal_weights* weights, const char* name, shoal_dtype dtype, size_t axes,
                                const int64_t* shape, shoal_role role) {
  return guard<shoal_tensor*>(__func__, nullptr, [&] {
    return handle_of<shoal_tensor>(object(weights, "weights")
                                       .add(std::string(text(name, "name")), dtype_of(dtype), shape_of(axes, shape),
                                            enumerator(role, kRoles, "role")));
  });
}

size_t shoal_weights_count(const shoal_weights* weights) {
  return guard<size_t>(__func__, 0, [&] { return object(weights, "weights").tensors().size(); });
}

shoal_tensor* shoal_weights_get(const shoal_weights* weights, size_t index) {
  return guard<shoal_tensor*>(__func__, nullptr, [&] {
    return handle_of<shoal_tensor>(at(object(weights, "weights").tensors(), index, "weight"));
  });
}

shoal_tensor* shoal_weights_find(const shoal_weights* weights, const char* name) {
  return guard<shoal_tensor*>(__func__, nullptr, [&] {
    const Tensor* found = object(weights, "weights").find(text(name, "name"));
    require<InvalidArgument>(found != nullptr, "there is no weight '{}'", name);
    return handle_of<shoal_tensor>(found);
  });
}

shoal_buffer* shoal_weights_allocate(shoal_weights* weights, shoal_buffer_type* type, shoal_usage usage) {
  return guard<shoal_buffer*>(__func__, nullptr, [&] {
    auto memory = allocate_tensors(object(weights, "weights").tensors(), object(type, "type"),
                                   enumerator(usage, kUsages, "usage"));
    require<InvalidArgument>(memory != nullptr, "no tensor needs memory; add tensors or free their buffer first");
    return released<shoal_buffer>(std::move(memory));
  });
}

const char* shoal_tensor_name(const shoal_tensor* tensor) {
  return guard<const char*>(__func__, nullptr, [&] { return object(tensor, "tensor").name.c_str(); });
}

shoal_dtype shoal_tensor_dtype(const shoal_tensor* tensor) {
  return guard<shoal_dtype>(__func__, -1,
                            [&] { return static_cast<shoal_dtype>(traits(object(tensor, "tensor").dtype).gguf_type); });
}

shoal_role shoal_tensor_role(const shoal_tensor* tensor) {
  return guard<shoal_role>(__func__, -1, [&] { return static_cast<shoal_role>(object(tensor, "tensor").role); });
}

const char* shoal_tensor_op(const shoal_tensor* tensor) {
  return guard<const char*>(__func__, nullptr, [&] { return lasting(name_of(object(tensor, "tensor").op)); });
}

shoal_status shoal_tensor_shape(const shoal_tensor* tensor, int64_t shape[4]) {
  return guard(__func__, [&] { std::ranges::copy(object(tensor, "tensor").shape, checked(shape, "shape")); });
}

int64_t shoal_tensor_elements(const shoal_tensor* tensor) {
  return guard<int64_t>(__func__, 0, [&] { return object(tensor, "tensor").elements(); });
}

size_t shoal_tensor_bytes(const shoal_tensor* tensor) {
  return guard<size_t>(__func__, 0, [&] { return object(tensor, "tensor").bytes(); });
}

size_t shoal_tensor_source_count(const shoal_tensor* tensor) {
  return guard<size_t>(__func__, 0, [&] { return object(tensor, "tensor").src.size(); });
}

shoal_tensor* shoal_tensor_source(const shoal_tensor* tensor, size_t index) {
  return guard<shoal_tensor*>(
      __func__, nullptr, [&] { return handle_of<shoal_tensor>(at(object(tensor, "tensor").src, index, "source")); });
}

shoal_buffer_type* shoal_tensor_buffer_type(const shoal_tensor* tensor) {
  return guard<shoal_buffer_type*>(__func__, nullptr, [&] {
    const Buffer* buffer = object(tensor, "tensor").buffer;
    return handle_of<shoal_buffer_type>(buffer == nullptr ? nullptr : &buffer->type());
  });
}

void* shoal_tensor_data(const shoal_tensor* tensor) {
  return guard<void*>(__func__, nullptr, [&] { return object(tensor, "tensor").data; });
}

shoal_status shoal_tensor_set(shoal_tensor* tensor, const void* data, size_t offset, size_t bytes) {
  return guard(__func__, [&] { tensor_set(object(tensor, "tensor"), checked(data, "data"), offset, bytes); });
}

shoal_status shoal_tensor_get(const shoal_tensor* tensor, void* data, size_t offset, size_t bytes) {
  return guard(__func__, [&] { tensor_get(object(tensor, "tensor"), checked(data, "data"), offset, bytes); });
}

namespace {

Buffer& buffer_of(const Tensor& tensor) {
  require<InvalidArgument>(tensor.buffer != nullptr, "{} has no memory; allocate memory or make a plan first",
                           describe(tensor));
  return *tensor.buffer;
}

}  // namespace

shoal_status shoal_tensor_fill(shoal_tensor* tensor, uint8_t value, size_t offset, size_t bytes) {
  return guard(__func__, [&] {
    Tensor& to = object(tensor, "tensor");
    buffer_of(to).memset(to, value, offset, bytes);
  });
}

shoal_status shoal_tensor_set_2d(shoal_tensor* tensor, const void* data, size_t offset, size_t bytes, size_t rows,
                                 size_t tensor_stride, size_t host_stride) {
  return guard(__func__, [&] {
    Tensor& to = object(tensor, "tensor");
    buffer_of(to).set_2d(to, checked(data, "data"), host_stride, {offset, bytes, rows, tensor_stride});
  });
}

shoal_status shoal_tensor_get_2d(const shoal_tensor* tensor, void* data, size_t offset, size_t bytes, size_t rows,
                                 size_t tensor_stride, size_t host_stride) {
  return guard(__func__, [&] {
    const Tensor& from = object(tensor, "tensor");
    buffer_of(from).get_2d(from, checked(data, "data"), host_stride, {offset, bytes, rows, tensor_stride});
  });
}

shoal_status shoal_tensor_copy(const shoal_tensor* from, shoal_tensor* to) {
  return guard(__func__, [&] { tensor_copy(object(from, "from"), object(to, "to")); });
}
