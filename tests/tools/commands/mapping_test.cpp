// Tests of weights in the mapped file: --mmap, --no-mmap, and a file that is truncated during use.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/support/temporary.h"
#include "tests/tools/child.h"

namespace shoal::tools {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// A copy of the model file, which tests may damage.
struct Copy : test::TemporaryFile {
  Copy() : TemporaryFile("mapped.gguf") { std::filesystem::copy_file(kModel, path); }
};

/// A child process that runs much longer than the test.
struct Long : Child {
  Long(const Copy& model, const std::vector<std::string>& flags) : Child(args(model, flags)) {
    for (int i = 0; i < 600 && out().empty(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_FALSE(out().empty());
  }
  static std::vector<std::string> args(const Copy& model, const std::vector<std::string>& flags) {
    std::vector<std::string> all{"run", "-m", model.path, "-p", "But", "-n", "-1", "-c", "200000", "--ignore-eos"};
    all.insert(all.end(), flags.begin(), flags.end());
    return all;
  }
};

TEST(Mapping, TruncatedFileGivesAOneLineError) {
  Copy model;
  Long child(model, {"--mmap"});
  std::filesystem::resize_file(model.path, 4096);
  EXPECT_EQ(child.wait(), 1);
  EXPECT_FALSE(child.killed());
  const std::string err = child.err().substr(child.err().rfind("shoal: error:"));
  EXPECT_THAT(err, StartsWith("shoal: error: a mapped file can no longer be read: the file was truncated"));
  EXPECT_THAT(err, HasSubstr("--no-mmap"));
  EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << err;
}

TEST(Mapping, CopiedWeightsDoNotNeedTheFile) {
  for (const char* flags : {"--no-mmap", "--no-mmap --no-repack", "--repack", "-dev CPU0,CPU1"}) {
    Copy model;
    Long child(model, words(flags));
    std::filesystem::resize_file(model.path, 4096);
    const size_t before = child.out().size();
    for (int i = 0; i < 600 && child.out().size() < before + 100; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    child.send(SIGINT);
    EXPECT_EQ(child.wait(), 130) << flags;
    EXPECT_GE(child.out().size(), before + 100) << flags;
    EXPECT_THAT(child.err(), Not(HasSubstr("error"))) << flags;
  }
}

TEST(Mapping, RemovedFileStaysUsable) {
  Copy model;
  Long child(model, {"--mmap"});
  std::filesystem::remove(model.path);
  const size_t before = child.out().size();
  for (int i = 0; i < 600 && child.out().size() < before + 100; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  child.send(SIGINT);
  EXPECT_EQ(child.wait(), 130);
  EXPECT_GE(child.out().size(), before + 100);
}

TEST(Mapping, MappedAndCopiedWeightsGiveSameText) {
  json results[2];
  for (bool mapped : {false, true}) {
    results[mapped] = run_json({"run", "-m", kModel, "-p", "But the LORD is in", "-n", "12", "--temp", "0",
                                "--top-logits", "5", "--no-repack", mapped ? "--mmap" : "--no-mmap"});
  }
  EXPECT_EQ(results[0]["tokens"], results[1]["tokens"]);
  EXPECT_EQ(results[0]["top_logits"], results[1]["top_logits"]);
}

TEST(Mapping, PlanShowsAllocatedAndMappedBytes) {
  const size_t weights = std::filesystem::file_size(kModel) / 10 * 9;
  const json mapped = run_json({"plan", "-m", kModel, "--mmap"})["memory"][0];
  EXPECT_EQ(run_json({"plan", "-m", kModel, "--no-repack"})["memory"][0]["mapped"], mapped["mapped"]);
  EXPECT_EQ(run_json({"plan", "-m", kModel})["memory"][0]["mapped"], 0) << "weights are repacked by default";
  const json copied = run_json({"plan", "-m", kModel, "--no-mmap"})["memory"][0];
  const json split = run_json({"plan", "-m", kModel, "--mmap", "-dev", "CPU0,CPU1"})["memory"][0];
  EXPECT_EQ(mapped["weights"], 0);
  EXPECT_GT(mapped["mapped"].get<size_t>(), weights);
  EXPECT_EQ(copied["mapped"], 0);
  EXPECT_GT(copied["weights"].get<size_t>(), weights);
  EXPECT_EQ(copied["total"].get<size_t>() - copied["weights"].get<size_t>(), mapped["total"].get<size_t>());
  EXPECT_EQ(split["mapped"], 0);
  EXPECT_GT(split["weights"].get<size_t>(), 0u);

  const char* const kLine = "CPU0 uses 5.3 MiB of weights from the mapped file";
  EXPECT_THAT(run({"plan", "-m", kModel, "--mmap"}).out, HasSubstr(kLine));
  EXPECT_THAT(run({"plan", "-m", kModel, "--no-mmap"}).out, Not(HasSubstr("mapped")));
}

}  // namespace
}  // namespace shoal::tools
