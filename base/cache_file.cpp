#include "base/cache_file.h"

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <system_error>

#include "base/error.h"

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

/// Opening a pipe waits for its other end.
void refuse_pipe(const std::filesystem::path& path, const char* variable) {
  std::error_code none;
  const auto status = std::filesystem::status(path, none);
  require<InvalidArgument>(!std::filesystem::is_fifo(status) && !std::filesystem::is_socket(status),
                           "{}: is no regular file; name one in {}", path.string(), variable);
}

void require_place(const std::filesystem::path& path, const char* variable) {
  require<DeviceError>(!path.empty(),
                       "there is no folder to write to, as HOME is not set; set it, or name a file in {}", variable);
  refuse_pipe(path, variable);
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

/// Of HOME, else of the user; "" where there is neither.
std::string home_folder() {
  if (std::string home = value_of("HOME"); !home.empty()) return home;
  std::array<char, 4096> text{};
  passwd entry{};
  passwd* found = nullptr;
  const bool known = getpwuid_r(getuid(), &entry, text.data(), text.size(), &found) == 0 && found != nullptr;
  return known && found->pw_dir != nullptr ? found->pw_dir : "";
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
  const std::string home = home_folder();
  return home.empty() ? "" : home + fmt::format("/.cache/shoal/{}", name);
}

std::string read_cache_file(const std::filesystem::path& path, const char* variable) {
  refuse_pipe(path, variable);
  return read_whole_file(path);
}

std::string read_whole_file(const std::filesystem::path& path) {
  std::error_code none;
  std::ostringstream text;
  // A folder can be opened like a file, and fails when it is read; a device such as /dev/full has no end.
  const bool has_text = !std::filesystem::is_directory(path, none) && !std::filesystem::is_character_file(path, none);
  if (std::ifstream file(path, std::ios::binary); file && has_text) text << file.rdbuf();
  return text.str();
}

void check_cache_file(const std::filesystem::path& path, const char* variable) {
  require_place(path, variable);
  const std::filesystem::path draft = write_draft(path, "");
  if (draft.empty()) fail_to_write(path, std::error_code(errno, std::generic_category()), variable);
  remove_draft(draft, path);
}

void write_cache_file(const std::filesystem::path& path, std::string_view text, const char* variable) {
  require_place(path, variable);
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
