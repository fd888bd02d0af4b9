// Temporary files of a test. Tests of one program run concurrently in several processes, so each process needs its own
// folder. In a shared folder such as testing::TempDir(), one test could write a file that another reads or removes.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace shoal::test {

/// A new folder, removed with its contents by the destructor.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  pid_t owner_;  ///< process that made the folder; only this process removes it
};

/// A path in this process's folder, which all tests of one process share.
std::string temporary(const std::string& name);

/// The content of a file; empty if it cannot be read.
inline std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A path in this process's folder. The destructor removes the file, if it exists.
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
