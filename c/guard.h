// Helpers of the C interface. guard() runs the body of a C function, catches every exception and stores its text for
// the calling thread. object() converts a handle to the C++ object behind it. Each C handle points directly to an
// object of the C++ class in SHOAL_HANDLES, or to a struct in c/models.h.
#pragma once

#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "c/shoal.h"
#include "devices/device.h"
#include "graph/graph.h"
#include "sched/scheduler.h"

/// A text or saved state. A text has a zero byte after its last character.
struct shoal_blob {
  std::vector<std::byte> bytes;
  size_t size;
};

namespace shoal::c {

/// An error with a status that the class of an exception does not determine.
class Failure : public Error {
 public:
  Failure(shoal_status status, const std::string& text) : Error(text), status(status) {}
  shoal_status status;
};

/// Stores the text and the status of the exception that is being handled, and returns the status. The text starts with
/// the name of the C function.
shoal_status store_failure(const char* function) noexcept;

/// Runs `work` and returns its result. Returns `failed` after an exception.
template <class Result, class Work>
Result guard(const char* function, Result failed, const Work& work) noexcept {
  try {
    return work();
  } catch (...) {
    store_failure(function);
    return failed;
  }
}
template <class Work>
shoal_status guard(const char* function, const Work& work) noexcept {
  try {
    work();
    return SHOAL_OK;
  } catch (...) {
    return store_failure(function);
  }
}

/// The C++ class of a handle.
template <class Handle>
struct ClassOf {
  using Type = Handle;
};
#define SHOAL_HANDLES(X)           \
  X(shoal_device, Device)          \
  X(shoal_buffer_type, BufferType) \
  X(shoal_buffer, Buffer)          \
  X(shoal_weights, TensorContext)  \
  X(shoal_tensor, Tensor)          \
  X(shoal_graph, Graph)            \
  X(shoal_backend, Backend)        \
  X(shoal_plan, GraphPlan)         \
  X(shoal_event, Event)            \
  X(shoal_scheduler, sched::Scheduler)
#define SHOAL_CLASS(handle, Class) \
  template <>                      \
  struct ClassOf<handle> {         \
    using Type = Class;            \
  };
SHOAL_HANDLES(SHOAL_CLASS)
#undef SHOAL_CLASS
#undef SHOAL_HANDLES

/// Throws InvalidArgument that names the argument if `pointer` is NULL.
template <class T>
T* checked(T* pointer, const char* name) {
  require<InvalidArgument>(pointer != nullptr, "the argument '{}' is NULL; pass a valid pointer", name);
  return pointer;
}

/// The object behind a handle. A const handle gives a const object.
template <class Handle>
auto& object(Handle* handle, const char* name) {
  using Type = typename ClassOf<std::remove_const_t<Handle>>::Type;
  checked(handle, name);
  if constexpr (std::is_const_v<Handle>) {
    return *reinterpret_cast<const Type*>(handle);
  } else {
    return *reinterpret_cast<Type*>(handle);
  }
}
/// Like object(), but also gives a mutable object for a const handle. C functions that only query an object take const
/// handles, but some C++ queries are not const.
template <class Handle>
auto& mutable_object(const Handle* handle, const char* name) {
  return object(const_cast<Handle*>(handle), name);
}
/// The handle of an object; NULL for nullptr.
template <class Handle>
Handle* handle_of(const typename ClassOf<Handle>::Type* pointer) {
  return reinterpret_cast<Handle*>(const_cast<typename ClassOf<Handle>::Type*>(pointer));
}
/// Destroys an object that the caller owns.
template <class Handle>
void destroy(Handle* handle) noexcept {
  delete reinterpret_cast<typename ClassOf<Handle>::Type*>(handle);
}

inline std::string_view text(const char* pointer, const char* name) {
  return checked(pointer, name);
}
inline std::string_view text_or_empty(const char* pointer) {
  return pointer == nullptr ? "" : pointer;
}
/// The elements of an array, which may be NULL if `count` is 0.
template <class T>
std::span<T> elements(T* pointer, size_t count, const char* name) {
  return {count == 0 ? nullptr : checked(pointer, name), count};
}
/// The objects behind an array of handles.
template <class Handle>
std::vector<typename ClassOf<Handle>::Type*> objects(Handle* const* handles, size_t count, const char* name) {
  std::vector<typename ClassOf<Handle>::Type*> result;
  for (Handle* handle : elements(handles, count, name)) result.push_back(&object(handle, name));
  return result;
}

/// The number `value` as an enumerator E, which must be below `count`.
template <class E>
E enumerator(int32_t value, E count, const char* name) {
  require<InvalidArgument>(value >= 0 && value < static_cast<int32_t>(count),
                           "there is no {} number {}; the numbers are 0 to {}", name, value,
                           static_cast<int32_t>(count) - 1);
  return static_cast<E>(value);
}
/// Throws InvalidArgument for a number that is not the GGUF number of a dtype.
DType dtype_of(shoal_dtype number);
Shape shape_of(size_t axes, const int64_t* lengths);

/// Reads a struct with a size. Members that the caller does not know have the values of `defaults`. A struct of a newer
/// version is accepted if its unknown members are zero.
template <class T>
T read(const T* given, const T& defaults, const char* name) {
  if (given == nullptr) return defaults;
  size_t size = 0;
  std::memcpy(&size, given, sizeof size);
  require<InvalidArgument>(size >= sizeof size && size < 65536,
                           "the member 'size' of {} is {}; initialise the struct with its SHOAL_..._INIT macro", name,
                           size);
  const char* bytes = reinterpret_cast<const char*>(given);
  for (size_t i = sizeof(T); i < size; ++i) {
    require<InvalidArgument>(bytes[i] == 0,
                             "{} has a member that this version of the library does not know; use a "
                             "newer library or leave the member at 0",
                             name);
  }
  T value = defaults;
  std::memcpy(&value, given, std::min(size, sizeof(T)));
  return value;
}
/// Writes the members that the caller knows.
template <class T>
void write(T* to, T value, const char* name) {
  value.size = read(checked(to, name), value, name).size;
  std::memcpy(to, &value, std::min(value.size, sizeof(T)));
}

/// Returns a copy of the text that exists until the process ends. For names, of which there are few.
const char* lasting(std::string_view text);
shoal_blob* blob_of(std::string_view text);
shoal_blob* blob_of(std::vector<std::byte> bytes);

}  // namespace shoal::c
