#include "devices/cache_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <system_error>

#include "graph/error.h"

namespace shoal {
namespace {

std::string value_of(const char* variable) {
  const char* text = std::getenv(variable);
  return text != nullptr ? text : "";
}

}  // namespace

std::filesystem::path cache_file(const char* variable, std::string_view name) {
  if (const std::string own = value_of(variable); !own.empty()) return own;
  if (const std::string cache = value_of("XDG_CACHE_HOME"); !cache.empty())
    return cache + fmt::format("/shoal/{}", name);
  return value_of("HOME") + fmt::format("/.cache/shoal/{}", name);
}

void write_cache_file(const std::filesystem::path& path, std::string_view text, const char* variable) {
  static std::atomic<int> drafts{0};
  std::error_code error;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  // What is no file, such as /dev/full, is written to and not replaced.
  const bool replaces = !std::filesystem::exists(path, error) || std::filesystem::is_regular_file(path, error);
  error.clear();
  const std::filesystem::path draft =
      replaces ? path.string() + fmt::format(".{}.{}", getpid(), ++drafts) : path.string();
  errno = 0;
  std::ofstream file(draft);
  file << text;
  file.close();
  if (!file) {
    error = std::error_code(errno, std::generic_category());
  } else {
    if (replaces) std::filesystem::rename(draft, path, error);
    if (!error) return;
  }
  std::error_code ignored;
  if (replaces) std::filesystem::remove(draft, ignored);
  fail<DeviceError>("{}: cannot be written{}; name another file in {}", path.string(),
                    error ? ": " + error.message() : "", variable);
}

}  // namespace shoal
