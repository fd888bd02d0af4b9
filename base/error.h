// Errors of the whole library. Every failure throws one of these classes. The library never prints and never ends the
// process. An error message is one line that names the place, the problem and the remedy.
#pragma once

#include <fmt/core.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace shoal {

/// Base of all errors thrown by shoal.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The caller passed an unusable value, such as a shape, a flag, a file or the result of a callback.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// A device or the system failed, for example because memory is full, a device is missing or a kernel failed.
class DeviceError : public Error {
 public:
  using Error::Error;
};

/// A device has too little free memory.
class OutOfMemory : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

/// A collective failed because a rank stalled, died or queued a different collective. The message names the rank, the
/// operation and the waiting time.
class CommError : public Error {
 public:
  using Error::Error;
};

/// An abort callback stopped the work. The message names the device and the first node that did not run.
class Aborted : public Error {
 public:
  using Error::Error;
};

/// A bug of shoal itself. check() throws this error.
class InternalError : public Error {
 public:
  using Error::Error;
};

/// Throws E with a formatted message. Example: fail<InvalidArgument>("[{}] expected {}", a, b).
template <class E, class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw E(fmt::format(format, std::forward<Args>(args)...));
}

/// Throws E with a formatted message if `condition` is false.
template <class E, class... Args>
void require(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) throw E(fmt::format(format, std::forward<Args>(args)...));
}

/// Checks an internal invariant. A failed check is a bug in shoal. The message begins with "internal error".
template <class... Args>
void check(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) throw InternalError("internal error: " + fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace shoal
