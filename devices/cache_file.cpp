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

/// What is no file, such as /dev/full, is written to and not replaced.
bool is_replaced(const std::filesystem::path& path) {
  std::error_code ignored;
  return !std::filesystem::exists(path, ignored) || std::filesystem::is_regular_file(path, ignored);
}

void remove_draft(const std::filesystem::path& draft, const std::filesystem::path& path) {
  std::error_code ignored;
  if (draft != path) std::filesystem::remove(draft, ignored);
}

/// A file beside the one at `path`, or this one if it is not replaced, with the text; "" with the reason in errno when
/// it cannot be written.
std::filesystem::path write_draft(const std::filesystem::path& path, std::string_view text) {
  static std::atomic<int> drafts{0};
  std::error_code ignored;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), ignored);
  const std::filesystem::path draft =
      is_replaced(path) ? path.string() + fmt::format(".{}.{}", getpid(), ++drafts) : path.string();
  errno = 0;
  std::ofstream file(draft);
  file << text;
  file.close();
  if (file) return draft;
  const int reason = errno;
  remove_draft(draft, path);
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
  // A folder can be opened like a file, and fails when it is read; a device such as /dev/full has no end.
  const bool has_text = !std::filesystem::is_directory(path, none) && !std::filesystem::is_character_file(path, none);
  if (std::ifstream file(path, std::ios::binary); file && has_text) text << file.rdbuf();
  return text.str();
}

void check_cache_file(const std::filesystem::path& path, const char* variable) {
  const std::filesystem::path draft = write_draft(path, "");
  if (draft.empty()) fail_to_write(path, std::error_code(errno, std::generic_category()), variable);
  remove_draft(draft, path);
}

void write_cache_file(const std::filesystem::path& path, std::string_view text, const char* variable) {
  const std::filesystem::path draft = write_draft(path, text);
  if (draft.empty()) fail_to_write(path, std::error_code(errno, std::generic_category()), variable);
  if (draft == path) return;
  std::error_code error;
  std::filesystem::rename(draft, path, error);
  if (!error) return;
  remove_draft(draft, path);
  fail_to_write(path, error, variable);
}

}  // namespace shoal
