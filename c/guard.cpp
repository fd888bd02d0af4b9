#include "c/guard.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <mutex>
#include <new>
#include <set>

namespace shoal::c {
namespace {

/// The last failure of a thread. The text has a fixed size, so that storing it cannot fail.
struct LastFailure {
  shoal_status status = SHOAL_OK;
  std::array<char, 2048> text{};
};
thread_local LastFailure last;

shoal_status store(shoal_status status, const char* function, const char* text) noexcept {
  last.status = status;
  const auto end = fmt::format_to_n(last.text.data(), last.text.size() - 1, "{}: {}", function, text);
  *end.out = '\0';
  return status;
}

}  // namespace

shoal_status store_failure(const char* function) noexcept {
  try {
    throw;
  } catch (const Failure& error) {
    return store(error.status, function, error.what());
  } catch (const InvalidArgument& error) {
    return store(SHOAL_INVALID_ARGUMENT, function, error.what());
  } catch (const OutOfMemory& error) {
    return store(SHOAL_OUT_OF_MEMORY, function, error.what());
  } catch (const DeviceError& error) {
    return store(SHOAL_DEVICE_ERROR, function, error.what());
  } catch (const CommError& error) {
    return store(SHOAL_COMM_ERROR, function, error.what());
  } catch (const Aborted& error) {
    return store(SHOAL_ABORTED, function, error.what());
  } catch (const std::bad_alloc&) {
    return store(SHOAL_OUT_OF_MEMORY, function, "the host has too little free memory; use smaller objects");
  } catch (const std::exception& error) {
    return store(SHOAL_INTERNAL_ERROR, function, error.what());
  } catch (...) {
    return store(SHOAL_INTERNAL_ERROR, function, "an exception without a text; report this as a bug");
  }
}

DType dtype_of(shoal_dtype number) {
  const auto found = dtype_from_gguf(static_cast<uint32_t>(number));
  require<InvalidArgument>(found.has_value(), "there is no dtype number {}; shoal_dtype_by_name() returns the numbers",
                           number);
  return *found;
}

Shape shape_of(size_t axes, const int64_t* lengths) {
  require<InvalidArgument>(axes >= 1 && axes <= kMaxDims, "a tensor has 1 to {} axes, got {}", kMaxDims, axes);
  Shape shape{1, 1, 1, 1};
  std::ranges::copy(elements(lengths, axes, "shape"), shape.begin());
  return shape;
}

const char* lasting(std::string_view text) {
  static std::mutex mutex;
  static auto& texts = *new std::set<std::string, std::less<>>;
  const std::lock_guard lock(mutex);
  const auto found = texts.find(text);
  return (found != texts.end() ? found : texts.emplace(text).first)->c_str();
}

shoal_blob* blob_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  auto blob = std::make_unique<shoal_blob>(shoal_blob{{bytes.begin(), bytes.end()}, text.size()});
  blob->bytes.push_back(std::byte{0});
  return blob.release();
}

shoal_blob* blob_of(std::vector<std::byte> bytes) {
  const size_t size = bytes.size();
  return new shoal_blob{std::move(bytes), size};
}

}  // namespace shoal::c

using namespace shoal;
using namespace shoal::c;

shoal_status shoal_last_status(void) {
  return last.status;
}

const char* shoal_last_error(void) {
  return last.text.data();
}

const char* shoal_status_name(shoal_status status) {
  constexpr std::array kNames = {"ok",      "invalid argument", "device error",  "out of memory", "collective failed",
                                 "aborted", "array too small",  "internal error"};
  const bool known = status >= 0 && static_cast<size_t>(status) < kNames.size();
  return known ? kNames[static_cast<size_t>(status)] : "unknown status";
}

uint32_t shoal_version(void) {
  return SHOAL_VERSION_MAJOR * 1000 + SHOAL_VERSION_MINOR;
}

const void* shoal_blob_data(const shoal_blob* blob) {
  return guard<const void*>(__func__, nullptr, [&] { return object(blob, "blob").bytes.data(); });
}

size_t shoal_blob_size(const shoal_blob* blob) {
  return guard<size_t>(__func__, 0, [&] { return object(blob, "blob").size; });
}

void shoal_blob_free(shoal_blob* blob) {
  destroy(blob);
}

const char* shoal_dtype_name(shoal_dtype dtype) {
  return guard<const char*>(__func__, nullptr, [&] { return lasting(name_of(dtype_of(dtype))); });
}

shoal_dtype shoal_dtype_by_name(const char* name) {
  return guard<shoal_dtype>(__func__, -1, [&] {
    const auto found = dtype_from_name(text(name, "name"));
    require<InvalidArgument>(found.has_value(), "there is no dtype '{}'", name);
    return static_cast<shoal_dtype>(traits(*found).gguf_type);
  });
}

size_t shoal_dtype_bytes(shoal_dtype dtype, int64_t elements) {
  return guard<size_t>(__func__, 0, [&] {
    require<InvalidArgument>(elements >= 0, "the number of elements is {}; pass a number >= 0", elements);
    return bytes_for(dtype_of(dtype), elements);
  });
}
