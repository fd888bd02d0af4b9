// Temporary files of a test. ctest runs the tests of one program concurrently in several processes, so each process
// needs its own folder. In a shared folder such as testing::TempDir(), one test could overwrite or remove the file of
// another test.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace shoal::test {

/// Creates a new folder. The destructor removes the folder with its content.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  pid_t owner_;  ///< process that created the folder; only this process removes it
};

/// Path of a file in the temporary folder of this process. All tests in one process use the same folder.
std::string temporary(const std::string& name);

/// Returns the content of a file; "" if the file cannot be read.
inline std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A file in the temporary folder of this process. The destructor removes the file if it exists.
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
