// Tests files that are not models. The error is one line that names the format of the file and a remedy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "models/arch/model.h"
#include "models/gguf/foreign.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/temporary.h"

namespace shoal::models {
namespace {

using namespace std::string_literals;
using test::Bytes;
using test::GgufWriter;
using ::testing::EndsWith;
using ::testing::HasSubstr;

Bytes bytes_of(std::string_view text) {
  Bytes bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

struct FormatCase {
  const char* name;
  std::string text;
  const char* is;
  const char* remedy;
};

const FormatCase kFormats[] = {
    {"lfs", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 1234\n",
     "is a Git LFS pointer and not the model", "fetch the model with 'git lfs pull', or download it again"},
    {"html", "\n <!DOCTYPE html><html><head>", "is a web page and not a model", "then download the model again"},
    {"bare_html", "<HTML>\n<body>404</body>", "is a web page and not a model", "then download the model again"},
    {"xml", "\xef\xbb\xbf<?xml version='1.0'?><Error>", "is a web page and not a model",
     "then download the model again"},
    {"safetensors", "\x12\0\0\0\0\0\0\0{\"__metadata__\":{}}  "s, "has the format safetensors",
     "download the model as GGUF"},
    {"safetensors_with_blanks", "\x12\0\0\0\0\0\0\0{ \n\"__metadata__\":{}}"s, "has the format safetensors",
     "download the model as GGUF"},
    {"damaged", "GGUG\3\0\0\0\0\0\0\0"s, "does not start with \"GGUF\"", "download or convert it again"},
};

class ForeignFormat : public testing::TestWithParam<FormatCase> {};

TEST_P(ForeignFormat, ErrorNamesFormatAndRemedy) {
  const FormatCase& c = GetParam();
  const Bytes image = bytes_of(c.text);
  try {
    const GgufFile file("m.gguf", image);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), testing::StartsWith("m.gguf: "s + c.is));
    EXPECT_THAT(error.what(), EndsWith(c.remedy));
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ForeignFormat, testing::ValuesIn(kFormats),
                         [](const auto& info) { return std::string(info.param.name); });

struct ContentCase {
  const char* name;
  GgufWriter file;
  const char* is;
};

ContentCase content(const char* name, const char* key, const char* value, const char* is) {
  ContentCase made{name, {}, is};
  made.file.add(key, value);
  return made;
}

std::vector<ContentCase> contents() {
  ContentCase vocabulary = content("vocabulary", "general.architecture", "llama", "has a vocabulary and no weights");
  vocabulary.file.add_array("tokenizer.ggml.tokens", std::vector<std::string>{"a"});
  return {content("adapter", "general.type", "adapter", "is an adapter (LoRA) and not a model"),
          content("imatrix", "general.type", "imatrix", "is an importance matrix and not a model"),
          content("mmproj", "general.type", "mmproj", "is a projector for images or sound and not a language model"),
          content("old_mmproj", "general.architecture", "clip",
                  "is a projector for images or sound and not a language model"),
          vocabulary};
}

class ForeignContent : public testing::TestWithParam<ContentCase> {};

TEST_P(ForeignContent, ErrorNamesContentAndRemedy) {
  const Bytes image = GetParam().file.image();
  const test::TemporaryFile file("m.gguf", std::string(reinterpret_cast<const char*>(image.data()), image.size()));
  try {
    const Model model(file.path);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), testing::StartsWith(file.path + ": " + GetParam().is + "; "));
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ForeignContent, testing::ValuesIn(contents()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace shoal::models
