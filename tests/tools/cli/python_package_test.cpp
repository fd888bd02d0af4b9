// Tests of the commands and flags that need the Python package. A script replaces the interpreter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/tools/child.h"
#include "tests/tools/fake_python.h"

namespace shoal::tools {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// A shell command that prints a JSON object and all arguments on stderr.
std::string answering(const std::string& json) {
  return fmt::format("echo \"$@\" >&2; echo '{}'", json);
}

const std::string kFound = fmt::format("{{\"path\": \"{}\"}}", kModel);

TEST(Pull, RunsTheModuleOfThePackage) {
  const FakePython python;
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"pull", "o/m:Q4_0"}, {"pull", "-hf", "o/m:Q4_0"}}) {
    const Finished finished = run(args, python.around());
    EXPECT_EQ(finished.code, 0) << finished.err;
    EXPECT_THAT(lines(finished.out), ElementsAre("-P", "-m", "shoal.hub", "pull", "o/m:Q4_0"));
  }
}

TEST(Pull, ReturnsTheExitCodeOfTheModule) {
  const FakePython python("echo 'shoal: error: no such repository' >&2; exit 1");
  const Finished finished = run({"pull", "o/m"}, python.around());
  EXPECT_EQ(finished.code, 1);
  EXPECT_EQ(finished.err, "shoal: error: no such repository\n");
}

TEST(List, PassesTheOutputFormat) {
  const FakePython python;
  EXPECT_THAT(lines(run({"list"}, python.around()).out),
              ElementsAre("-P", "-m", "shoal.hub", "list", "--output", "text"));
  EXPECT_THAT(lines(run({"list", "-o", "json"}, python.around()).out),
              ElementsAre("-P", "-m", "shoal.hub", "list", "--output", "json"));
}

TEST(PythonPackage, MissingPackageIsOneLineWithTheCommandThatInstallsIt) {
  const FakePython python("echo must not run", "ModuleNotFoundError: No module named shoal");
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"pull", "o/m"}, {"list"}, {"serve", "-m", kModel}, {"info", "-hf", "o/m"}}) {
    const Finished finished = run(args, python.around());
    EXPECT_EQ(finished.code, 1);
    EXPECT_EQ(finished.out, "");
    EXPECT_EQ(finished.err,
              fmt::format("shoal: error: {0} cannot import the Python package of shoal (ModuleNotFoundError: No module "
                          "named shoal); install the package in a checkout with `{0} -m pip install ./python` or "
                          "`scripts/quickstart --serve`, or set SHOAL_PYTHON to a Python that has it\n",
                          python.path));
  }
}

TEST(PythonPackage, ErrorNamesAnInterpreterThatCannotStart) {
  for (const char* path : {"/no/such/python", "/"}) {
    const Finished finished = run({"list"}, {.variables = {{"SHOAL_PYTHON", path}}});
    EXPECT_EQ(finished.code, 1);
    EXPECT_THAT(finished.err, StartsWith(fmt::format("shoal: error: {} cannot be started: ", path)));
  }
}

/// A checkout with a copy of the program in build/bin. The copy searches for the interpreter relative to its own path.
class Checkout {
 public:
  Checkout() {
    fs::create_directories(folder_ / "build/bin");
    fs::create_directories(folder_ / "python");
    fs::copy_file(SHOAL_PROGRAM, folder_ / "build/bin/shoal");
    std::ofstream(folder_ / "python/pyproject.toml") << "[project]\n";
  }
  ~Checkout() { fs::remove_all(folder_); }
  Checkout(const Checkout&) = delete;
  Checkout& operator=(const Checkout&) = delete;

  /// Writes an interpreter that prints its name.
  void add(const std::string& path) const {
    fs::create_directories((folder_ / path).parent_path());
    const FakePython python("echo " + path);
    fs::copy_file(python.path, folder_ / path);
  }
  /// The name of the interpreter that `shoal list` runs. Only PATH and the checkout contain interpreters.
  std::string name() const {
    const test::TemporaryFile out("name.txt");
    const std::string line =
        fmt::format("SHOAL_PYTHON= PATH={0}/path {0}/build/bin/shoal list >{1} 2>&1", folder_.string(), out.path);
    return std::system(line.c_str()) == 0 ? out.text() : "error: " + out.text();
  }

 private:
  const fs::path folder_ = test::temporary("checkout");
};

TEST(PythonPackage, SearchesNextToTheProgramThenInTheCheckoutThenInPath) {
  const Checkout checkout;
  EXPECT_THAT(checkout.name(), StartsWith("error: shoal: error: python3 cannot be started"));
  for (const char* path : {"path/python3", ".venv/bin/python", "build/bin/python3"}) {
    checkout.add(path);
    EXPECT_EQ(checkout.name(), std::string(path) + "\n");
  }
}

TEST(HfRepo, FileOfTheAnswerIsTheModel) {
  const FakePython python(answering(kFound));
  const std::vector<std::string> rest{"-p", kPrompt, "-n", "12", "--temp", "0", "-dev", "CPU0"};
  std::vector<std::string> args{"run", "-hf", "o/m:Q8_0"};
  args.insert(args.end(), rest.begin(), rest.end());
  const Finished finished = run(args, python.around());
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(finished.out, " the heavens, and in the earth is filled\n");
  EXPECT_THAT(finished.err, StartsWith("-P -m shoal.hub pull o/m:Q8_0 --output json\n"));
}

TEST(HfRepo, EveryCommandWithAModelAcceptsIt) {
  const FakePython python(answering(kFound));
  for (const char* line : {"tokenize -hf o/m -p In", "detokenize -hf o/m --ids 1", "info -hf o/m",
                           "plan -hf o/m -dev CPU0", "compare -hf o/m -dev CPU0,CPU1 -p In",
                           "chat -hf o/m -n 1 -dev CPU0", "simulate -hf o/m --machine H200x2 -p 1 -n 0"}) {
    const Finished finished = run(words(line), python.around());
    EXPECT_EQ(finished.code, 0) << line << ": " << finished.err;
    EXPECT_THAT(finished.err, HasSubstr("shoal.hub pull o/m --output json\n")) << line;
  }
}

TEST(HfRepo, BenchMeasuresRepositoriesAndFiles) {
  const FakePython python(answering(kFound));
  const Finished finished = run({"bench", "-hf", "o/a", "-m", kModel, "-hf", "o/b", "-p", "1", "-n", "0", "-r", "1",
                                 "-dev", "CPU0", "-o", "jsonl"},
                                python.around());
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(lines(finished.out).size(), 3u);
  for (const char* name : {"pull o/a ", "pull o/b "}) EXPECT_THAT(finished.err, HasSubstr(name));
}

TEST(HfRepo, ServerGetsThePathOfTheFile) {
  const FakePython python(fmt::format("if [ \"$3\" = shoal.server ]; then echo \"$4\"; else echo '{}'; fi", kFound));
  const Finished finished = run({"serve", "-np", "2", "-hf", "o/m"}, python.around());
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(nlohmann::json::parse(finished.out)["model"], nlohmann::json({"--model", kModel, "--parallel", "2"}));
}

TEST(HfRepo, ErrorOfTheModuleIsTheErrorLine) {
  const FakePython python("echo '{\"error\": \"o/m is gated; set HF_TOKEN\"}'; exit 1");
  const Finished finished = run({"info", "-hf", "o/m"}, python.around());
  EXPECT_EQ(finished.code, 1);
  EXPECT_EQ(finished.err, "shoal: error: o/m is gated; set HF_TOKEN\n");
}

TEST(HfRepo, AnswersThatAreNoObjectAreErrors) {
  for (const char* answer : {"[]", "x", "", "{}", "{\"path\": 7}"}) {
    const FakePython python(fmt::format("echo '{}'; exit 3", answer));
    const Finished finished = run({"info", "-hf", "o/m"}, python.around());
    EXPECT_EQ(finished.code, 1) << answer;
    EXPECT_EQ(std::count(finished.err.begin(), finished.err.end(), '\n'), 1) << finished.err;
    EXPECT_THAT(finished.err, EndsWith("; install the package again\n"));
  }
}

TEST(HfRepo, AcceptsNamesOfFilesWithSpaces) {
  const FakePython python("echo '{\"error\": \"asked\"}'; exit 1");
  EXPECT_THAT(run({"info", "-hf", "o/m:my model"}, python.around()).err, HasSubstr("asked"));
}

TEST(HfRepo, RejectsNamesThatAreNoRepository) {
  const FakePython python("exit 9");
  for (const char* name : {"m", "o/", "/m", "o/m:", "o/m/x", "../../m", "o/m x", "o/m:a\nb", "-o/m", ""}) {
    const Finished finished = run({"info", "-hf", name}, python.around());
    EXPECT_EQ(finished.code, 2) << name;
    EXPECT_THAT(finished.err, HasSubstr("is not OWNER/REPO or OWNER/REPO:QUANT")) << name;
  }
}

TEST(HfRepo, ExcludesAModelFile) {
  const FakePython python("exit 9");
  const Finished both = run({"info", "-m", kModel, "-hf", "o/m"}, python.around());
  EXPECT_EQ(both.code, 2);
  EXPECT_THAT(both.err, HasSubstr("--hf-repo excludes --model"));
}

TEST(HfRepo, SignalsReachTheModuleAndEndTheProgram) {
  for (const int number : {SIGINT, SIGTERM}) {
    const test::TemporaryFile started("started.txt", ""), stopped("stopped.txt", "");
    // A shell runs a trap only between two commands.
    const FakePython python(fmt::format("trap 'echo x >{}; exit 130' INT; echo x >{}; while :; do sleep 0.05; done",
                                        stopped.path, started.path));
    Child child({"info", "-hf", "o/m"}, python.around());
    for (int i = 0; i < 1000 && started.text().empty(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    child.send(number);
    EXPECT_EQ(child.wait(), 128 + number);
    EXPECT_FALSE(child.killed()) << "the program waits until the module has exited";
    EXPECT_EQ(stopped.text(), "x\n");
    EXPECT_EQ(child.err(), "");
  }
}

}  // namespace
}  // namespace shoal::tools
