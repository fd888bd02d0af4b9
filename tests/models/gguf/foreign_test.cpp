// Files that are no models: each kind is named in one line with its remedy.
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

std::string with_tar_magic() {
  std::string text(512, '\0');
  text.replace(0, 7, "m.gguf\0").replace(257, 5, "ustar");
  return text;
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
    {"ggjt", "tjgg\3\0\0\0"s, "has the old format ggjt, which GGUF replaced", "or convert it again"},
    {"ggml", "lmgg\0\0\0\0"s, "has the old format ggml, which GGUF replaced", "or convert it again"},
    {"ggmf", "fmgg\1\0\0\0"s, "has the old format ggmf, which GGUF replaced", "or convert it again"},
    {"ggla", "algg\1\0\0\0"s, "has the old format ggla, which GGUF replaced", "or convert it again"},
    {"safetensors", "\x12\0\0\0\0\0\0\0{\"__metadata__\":{}}  "s, "has the format safetensors",
     "download the model as GGUF"},
    {"safetensors_with_blanks", "\x12\0\0\0\0\0\0\0{ \n\"__metadata__\":{}}"s, "has the format safetensors",
     "download the model as GGUF"},
    {"text", "Entry not found", "is a text (\"Entry not found\") and not a model", "or download it again"},
    {"json", "{\"error\":\"Invalid\\u0020token\"}\n", "is a text (\"{\"error\":", "or download it again"},
    {"torch_zip", "PK\3\4\0\0\0\0archive/data.pkl"s, "is a checkpoint of PyTorch", "download the model as GGUF"},
    {"pickle", "\x80\2}q\0(X"s, "is a checkpoint of PyTorch", "download the model as GGUF"},
    {"zip", "PK\3\4\0\0\0\0model.gguf"s, "is an archive (zip)", "unpack it, and name the GGUF file inside"},
    {"tar", with_tar_magic(), "is an archive (tar)", "unpack it, and name the GGUF file inside"},
    {"gzip", "\x1f\x8b\x08\0\0\0"s, "is an archive (gzip)", "unpack it, and name the GGUF file inside"},
    {"xz", "\xfd\x37zXZ\0\0\4"s, "is an archive (xz)", "unpack it, and name the GGUF file inside"},
    {"zstd", "\x28\xb5\x2f\xfd\4"s, "is an archive (zstd)", "unpack it, and name the GGUF file inside"},
    {"bzip2", "BZh91AY", "is an archive (bzip2)", "unpack it, and name the GGUF file inside"},
    {"7z", "7z\xbc\xaf\x27\x1c\0\4"s, "is an archive (7z)", "unpack it, and name the GGUF file inside"},
    {"damaged", "GGUG\3\0\0\0\0\0\0\0"s, "does not start with \"GGUF\"", "download or convert it again"},
};

class ForeignFormat : public testing::TestWithParam<FormatCase> {};

TEST_P(ForeignFormat, IsNamedWithARemedy) {
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

TEST_P(ForeignContent, IsNamedWithARemedy) {
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
