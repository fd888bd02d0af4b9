// Errors of the whole library. Every failure throws one of these classes; no library code prints or exits. The message
// is one line: the problem, its place, and the remedy.
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

/// The caller passed an unusable value: a shape, a flag, a file, a callback's result.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// A device or the system failed: out of memory, missing device, failed kernel.
class DeviceError : public Error {
 public:
  using Error::Error;
};

/// A device has too little memory left.
class OutOfMemory : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

/// A collective failed: a rank stalled, died or disagreed. The message names rank, operation and waiting time.
class CommError : public Error {
 public:
  using Error::Error;
};

/// An abort callback stopped the work. The message names the device and the first node that did not run.
class Aborted : public Error {
 public:
  using Error::Error;
};

/// A bug of shoal itself (see check()).
class InternalError : public Error {
 public:
  using Error::Error;
};

/// Throws E with a formatted message: fail<InvalidArgument>("[{}] expected {}", a, b).
template <class E, class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw E(fmt::format(format, std::forward<Args>(args)...));
}

/// Throws E with a formatted message unless `condition` holds.
template <class E, class... Args>
void require(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) throw E(fmt::format(format, std::forward<Args>(args)...));
}

/// Checks an internal invariant. A failure is a bug in shoal, and the message says so.
template <class... Args>
void check(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) throw InternalError("internal error: " + fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace shoal
