// Files of a test. Tests of one program run in several processes at once, so a name below a folder that all share, such
// as testing::TempDir(), would be one test's to write while another reads or removes it.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace shoal::test {

/// A folder of its own, removed with all that is in it when this object goes.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  pid_t owner_;  ///< a child that exits removes nothing
};

/// A path in the folder of this process, which tests that run in one process share.
std::string temporary(const std::string& name);

/// What a file holds; empty if it cannot be read.
inline std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A path in the folder of this process whose file, if there is one, goes with this object.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& name) : path(temporary(name)) {}
  TemporaryFile(const std::string& name, const std::string& text) : TemporaryFile(name) {
    std::ofstream(path, std::ios::binary) << text;
  }
  ~TemporaryFile() { std::filesystem::remove(path); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  bool exists() const { return std::filesystem::exists(path); }
  std::string text() const { return text_of(path); }

  const std::string path;
};

}  // namespace shoal::test
