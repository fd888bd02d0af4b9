// Tests models in several files. Opening the first file gives all tensors. If a part is missing, duplicate, misnamed or
// from another model, the error is one line that names the part.
#include "models/gguf/parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "tests/models/model_parts.h"
#include "tests/models/synthetic_model.h"
#include "tests/support/temporary.h"

namespace shoal::models {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class Parts : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }
  std::vector<std::string> write(const std::vector<size_t>& sizes, const std::function<void(PartKeys&)>& edit = {},
                                 const std::string& name = "m") const {
    return write_parts(whole_, path(name), sizes, edit);
  }
  /// Error of opening a file. The path of the folder is removed from the text.
  std::string refusal(const std::string& name) const {
    try {
      GgufFile file(name);
    } catch (const InvalidArgument& error) {
      std::string text = error.what();
      EXPECT_EQ(text.find('\n'), std::string::npos);
      const std::string prefix = folder_.path().string() + "/";
      for (size_t at; (at = text.find(prefix)) != std::string::npos;) text.erase(at, prefix.size());
      return text;
    }
    return "it opened";
  }
  std::string refusal() const { return refusal(path("m-00001-of-00003.gguf")); }
  size_t all() const { return whole_.tensors().size(); }

  const test::TemporaryFolder folder_;
  const GgufFile whole_{SyntheticModel().write()};
};

TEST_F(Parts, FirstPartOpensWholeModel) {
  for (const std::vector<size_t>& sizes :
       {std::vector<size_t>{all()}, {1, all() - 1}, {0, 3, all() - 3}, {4, 0, all() - 4}, {all() - 1, 1, 0, 0}}) {
    const std::vector<std::string> paths = write(sizes);
    const GgufFile opened(paths.front());
    const GgufFile file(GgufFile(paths.front()));  // the file object is moved
    EXPECT_EQ(file.path(), paths.front());
    EXPECT_EQ(file.file_count(), sizes.size());
    size_t bytes = 0;
    for (const std::string& part : paths) bytes += fs::file_size(part);
    EXPECT_EQ(file.file_bytes(), bytes);
    EXPECT_EQ(file.tensor_bytes(), whole_.tensor_bytes());
    EXPECT_EQ(file.get<std::string>("general.architecture"), "llama");
    ASSERT_EQ(file.tensors().size(), all());
    for (const GgufTensor& tensor : file.tensors()) {
      const GgufTensor& expected = whole_.tensor(tensor.name);
      EXPECT_EQ(tensor.shape, expected.shape);
      ASSERT_EQ(tensor.bytes, expected.bytes);
      std::vector<std::byte> read(tensor.bytes);
      file.read(tensor, 0, read);
      file.fetch(tensor, 0, tensor.bytes);
      EXPECT_EQ(std::memcmp(read.data(), expected.data, tensor.bytes), 0) << tensor.name;
      EXPECT_EQ(std::memcmp(tensor.data, expected.data, tensor.bytes), 0) << tensor.name;
    }
  }
}

TEST_F(Parts, WritesToMappingDoNotChangeFiles) {
  const std::vector<std::string> paths = write({3, 3, all() - 6});
  std::string before;
  for (const std::string& part : paths) before += test::text_of(part);
  GgufFile file(paths.front());
  const std::span<std::byte> bytes = file.unlock_tensors();
  ASSERT_EQ(bytes.size(), file.tensor_span().size());
  std::fill(bytes.begin(), bytes.end(), std::byte{7});
  for (const GgufTensor& tensor : file.tensors()) EXPECT_EQ(*tensor.data, std::byte{7}) << tensor.name;
  EXPECT_EQ(file.get<std::string>("general.architecture"), "llama");
  std::string after;
  for (const std::string& part : paths) after += test::text_of(part);
  EXPECT_EQ(before, after);
}

TEST_F(Parts, ErrorNamesTruncatedFile) {
  const std::vector<std::string> paths = write({3, 3, all() - 6});
  const GgufFile file(paths.front());
  const GgufTensor& tensor = file.tensors()[5];
  const size_t size = fs::file_size(paths[1]);
  fs::resize_file(paths[1], size - 1);
  std::vector<std::byte> bytes(tensor.bytes);
  const std::string said =
      fmt::format("{}: the file ends at byte {}, but had {} bytes when it was opened", paths[1], size - 1, size);
  EXPECT_THAT([&] { file.read(tensor, 0, bytes); }, ThrowsMessage<InvalidArgument>(StartsWith(said)));
  EXPECT_THAT([&] { file.fetch(tensor, 0, tensor.bytes); }, ThrowsMessage<InvalidArgument>(StartsWith(said)));
  file.fetch(file.tensors()[7], 0, 1);
}

TEST_F(Parts, ErrorNamesMissingParts) {
  const std::vector<std::string> paths = write({3, 3, all() - 6});
  fs::remove(paths[1]);
  EXPECT_EQ(refusal(),
            "m-00001-of-00003.gguf: missing part 2 of 3; missing file: m-00002-of-00003.gguf; put all parts in one "
            "folder");
  fs::remove(paths[2]);
  EXPECT_THAT(refusal(), HasSubstr("parts 2, 3 of 3; missing files: m-00002-of-00003.gguf, m-00003"));
  const std::string many = path("m-00001-of-65535.gguf");
  test::GgufWriter writer;
  writer.add<uint16_t>("split.count", 65535).add<uint16_t>("split.no", 0).write(many);
  EXPECT_THAT(refusal(many), HasSubstr("parts 2, 3, 4 and 65531 more of 65535; missing files: m-00002"));
}

TEST_F(Parts, RefusesLaterPartAsModel) {
  const std::vector<std::string> paths = write({3, 3, all() - 6});
  EXPECT_EQ(refusal(paths[1]),
            "m-00002-of-00003.gguf: is part 2 of the 3 parts of a model; open the first: m-00001-of-00003.gguf");
  fs::rename(paths[2], path("third.gguf"));
  EXPECT_EQ(refusal(path("third.gguf")),
            "third.gguf: is part 3 of the 3 parts of a model; open the first: PREFIX-00001-of-00003.gguf");
}

TEST_F(Parts, FirstPartNeedsNumberedName) {
  const std::vector<std::string> paths = write({3, 3, all() - 6});
  for (const char* name : {"first.gguf", "m-00001-of-00004.gguf", "m-00002-of-00003.gguf", "m-1-of-3.gguf"}) {
    fs::copy_file(paths[0], path(name), fs::copy_options::overwrite_existing);
    EXPECT_THAT(refusal(path(name)), AllOf(StartsWith(name),
                                           HasSubstr("is the first of the 3 parts of a model, but "
                                                     "the file name does not say so; rename the parts to "),
                                           EndsWith("-00003-of-00003.gguf, in one folder")));
  }
}

TEST_F(Parts, ErrorNamesDuplicatePart) {
  const std::vector<std::string> paths = write({3, 3, all() - 6});
  fs::copy_file(paths[1], paths[2], fs::copy_options::overwrite_existing);
  EXPECT_EQ(refusal(),
            "m-00003-of-00003.gguf: is part 2 by its metadata, but part 3 by its name; a part was renamed or copied: "
            "download part 3 again");
}

TEST_F(Parts, ErrorsNamePartsOfOtherModels) {
  write({3, 3, all() - 6}, [](PartKeys& keys) { keys.count = keys.number == 2 ? 4 : 3; });
  EXPECT_EQ(refusal(),
            "m-00003-of-00003.gguf: is a part of a model with 4 parts, not 3; replace the file by the right part");
  write({3, 3, all() - 6}, [](PartKeys& keys) { keys.tensors += keys.number == 1 ? 5 : 0; });
  EXPECT_THAT(refusal(),
              AllOf(StartsWith("m-00002-of-00003.gguf: is a part of a model with "), EndsWith("by the right part")));
  // All parts state the same total number of tensors, but the parts together contain a different number.
  write({3, 3, all() - 6}, [](PartKeys& keys) { ++keys.tensors; });
  EXPECT_THAT(refusal(),
              HasSubstr(fmt::format("the 3 parts together have {} tensors, but the model has {}", all(), all() + 1)));
  const std::vector<std::string> paths = write({3, 3, all() - 6}), others = write({3, 4, all() - 7}, {}, "other");
  fs::rename(others[1], paths[1]);
  EXPECT_THAT(refusal(), AllOf(StartsWith("m-00003-of-00003.gguf: tensor '"),
                               HasSubstr("' is also in m-00002-of-00003.gguf; one file is of another model")));
}

TEST_F(Parts, ErrorsNameDamagedParts) {
  const std::vector<std::string> paths = write({3, 3, all() - 6});
  fs::resize_file(paths[2], 40);
  EXPECT_THAT(refusal(), StartsWith("m-00003-of-00003.gguf: "));
  test::write_file(paths[2], {});
  EXPECT_THAT(refusal(), StartsWith("m-00003-of-00003.gguf: the file is empty"));
  test::GgufWriter().write(paths[2]);
  EXPECT_THAT(refusal(), StartsWith("m-00003-of-00003.gguf: key 'split.no' is missing"));
}

}  // namespace
}  // namespace shoal::models
