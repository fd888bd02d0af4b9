#include "devices/cache_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <system_error>

#include "graph/error.h"

namespace shoal {
namespace {

std::string value_of(const char* variable) {
  const char* text = std::getenv(variable);
  return text != nullptr ? text : "";
}

/// A file beside the one at `path`, with the text; "" with the reason in errno when it cannot be written.
std::filesystem::path write_draft(const std::filesystem::path& path, std::string_view text) {
  static std::atomic<int> drafts{0};
  std::error_code error;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), error);
  const std::filesystem::path draft = path.string() + fmt::format(".{}.{}", getpid(), ++drafts);
  errno = 0;
  std::ofstream file(draft);
  file << text;
  file.close();
  if (file) return draft;
  const int reason = errno;
  std::filesystem::remove(draft, error);
  errno = reason;
  return {};
}

[[noreturn]] void fail_to_write(const std::filesystem::path& path, const std::error_code& error, const char* variable) {
  fail<DeviceError>("{}: cannot be written{}; name another file in {}", path.string(),
                    error ? ": " + error.message() : "", variable);
}

}  // namespace

std::filesystem::path cache_file(const char* variable, std::string_view name) {
  if (const std::string own = value_of(variable); !own.empty()) return own;
  if (const std::string cache = value_of("XDG_CACHE_HOME"); !cache.empty())
    return cache + fmt::format("/shoal/{}", name);
  return value_of("HOME") + fmt::format("/.cache/shoal/{}", name);
}

std::string read_cache_file(const std::filesystem::path& path) {
  std::error_code none;
  std::ostringstream text;
  // A folder can be opened like a file, and fails when it is read.
  if (std::ifstream file(path, std::ios::binary); file && !std::filesystem::is_directory(path, none)) {
    text << file.rdbuf();
  }
  return text.str();
}

void check_cache_file(const std::filesystem::path& path, const char* variable) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    fail_to_write(path, std::make_error_code(std::errc::is_a_directory), variable);
  }
  const std::filesystem::path draft = write_draft(path, "");
  if (draft.empty()) fail_to_write(path, std::error_code(errno, std::generic_category()), variable);
  std::filesystem::remove(draft, ignored);
}

void write_cache_file(const std::filesystem::path& path, std::string_view text, const char* variable) {
  const std::filesystem::path draft = write_draft(path, text);
  if (draft.empty()) fail_to_write(path, std::error_code(errno, std::generic_category()), variable);
  std::error_code error, ignored;
  std::filesystem::rename(draft, path, error);
  if (!error) return;
  std::filesystem::remove(draft, ignored);
  fail_to_write(path, error, variable);
}

}  // namespace shoal
