#include "base/cache_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <system_error>

#include "base/error.h"
#include "base/user_file.h"

namespace shoal {
namespace {

[[noreturn]] void fail_to_write(const CacheFile& file, int reason) {
  fail<DeviceError>("{}: cannot be written: {}; set {} to another file", file.path.string(),
                    std::generic_category().message(reason), file.variable);
}

/// Writes the text to a new file in the folder of the cache. Returns the path of the new file.
std::filesystem::path write_draft(const CacheFile& file, std::string_view text) {
  require<DeviceError>(!file.path.empty(), "no folder to write to: HOME is not set; set HOME, or set {} to a file",
                       file.variable);
  std::error_code ignored;
  const bool is_other = std::filesystem::exists(file.path, ignored) && !std::filesystem::is_regular_file(file.path);
  require<DeviceError>(!is_other, "{}: is not a regular file; set {} to a regular file", file.path.string(),
                       file.variable);
  check_output(file.path, "cache");
  if (file.path.has_parent_path()) std::filesystem::create_directories(file.path.parent_path(), ignored);
  static std::atomic<int> drafts{0};
  std::filesystem::path draft = fmt::format("{}.{}.{}", file.path.string(), getpid(), ++drafts);
  errno = 0;
  std::ofstream stream(draft);
  stream << text;
  stream.close();
  if (stream) return draft;
  const int reason = errno;
  std::filesystem::remove(draft, ignored);
  fail_to_write(file, reason);
}

}  // namespace

CacheFile cache_file(const char* variable, std::string_view name) {
  const auto folder_of = [](const char* text, const char* inside) {
    const char* const value = std::getenv(text);
    return value != nullptr && *value != '\0' ? std::string(value) + inside : std::string();
  };
  if (const std::string own = folder_of(variable, ""); !own.empty()) return {own, variable};
  std::string folder = folder_of("XDG_CACHE_HOME", "/shoal/");
  if (folder.empty()) folder = folder_of("HOME", "/.cache/shoal/");
  return {folder.empty() ? "" : folder.append(name), variable};
}

std::string read_cache_file(const CacheFile& file) {
  try {
    return read_file({.path = file.path.string(), .what = "cache", .is_kept = true, .most_bytes = size_t{1} << 30});
  } catch (const InvalidArgument&) {
    return {};
  }
}

void check_cache_file(const CacheFile& file) {
  std::filesystem::remove(write_draft(file, ""));
}

void write_cache_file(const CacheFile& file, std::string_view text) {
  const std::filesystem::path draft = write_draft(file, text);
  std::error_code error, ignored;
  std::filesystem::rename(draft, file.path, error);
  if (!error) return;
  std::filesystem::remove(draft, ignored);
  fail_to_write(file, error.value());
}

}  // namespace shoal
