// Errors of the whole library. Everything that can fail throws one of these; no code prints or exits.
// The message is one line: what went wrong, where, and what to do about it.
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

/// The caller passed something unusable: a shape, a flag, a file, a callback's answer.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// A device or the system failed: out of memory, missing device, a kernel that failed.
class DeviceError : public Error {
 public:
  using Error::Error;
};

/// A device has too little memory left.
class OutOfMemory : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

/// A collective failed: a rank stalled, died or disagreed. Names rank, operation and time waited.
class CommError : public Error {
 public:
  using Error::Error;
};

/// Work was stopped because its abort callback said so. Names the device and the node that did not run any more.
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

/// For invariants of our own; a failure is a bug in shoal and says so.
template <class... Args>
void check(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) throw InternalError("internal error: " + fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace shoal
