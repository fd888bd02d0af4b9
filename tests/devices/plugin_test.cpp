#include <dlfcn.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "devices/device.h"
#include "devices/plugin.h"
#include "tests/support/temporary.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

Registry& registry() {
  return Registry::instance();
}

fs::path plugin(const std::string& name) {
  return fs::canonical(fs::path(SHOAL_TEST_PLUGINS) / ("libshoal-" + name + ".so"));
}

/// A temporary folder with copies of the given plug-ins.
struct Folder : test::TemporaryFolder {
  explicit Folder(std::initializer_list<std::string> plugins = {}) {
    for (const std::string& name : plugins) fs::copy(plugin(name), path() / plugin(name).filename());
  }
  std::string file(const std::string& name) const { return (path() / ("libshoal-" + name + ".so")).string(); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(path() / name) << text; }
};

/// A copy of this program in a new directory. One plug-in is next to the copy, and another plug-in is in the directory
/// of installed plug-ins.
class CopiedProgram {
 public:
  CopiedProgram() {
    fs::create_directories(folder_.path() / "bin");
    fs::create_directories(folder_.path() / "lib" / "shoal");
    fs::copy("/proc/self/exe", program());
    fs::copy(plugin("good"), folder_.path() / "bin");
    fs::copy(plugin("other"), folder_.path() / "lib" / "shoal");
  }
  static bool is_this() { return std::getenv("SHOAL_TEST_COPIED_PROGRAM") != nullptr; }
  /// Runs one test in the copied program. Returns the exit status.
  int run(const std::string& test) const {
    return std::system(fmt::format("SHOAL_TEST_COPIED_PROGRAM=1 '{}' --gtest_filter={} > '{}' 2>&1", program().string(),
                                   test, output().string())
                           .c_str());
  }
  std::string said() const { return test::text_of(output()); }

 private:
  fs::path program() const { return folder_.path() / "bin" / "program"; }
  fs::path output() const { return folder_.path() / "output"; }
  Folder folder_;
};

class PluginPath {
 public:
  explicit PluginPath(const std::string& value) { setenv("SHOAL_PLUGIN_PATH", value.c_str(), 1); }
  ~PluginPath() { unsetenv("SHOAL_PLUGIN_PATH"); }
};

/// Returns the reason why `file` was skipped; "" if the report does not contain the file.
std::string reason(const PluginReport& report, const std::string& file) {
  for (const auto& skipped : report.skipped) {
    if (skipped.file == file) return skipped.reason;
  }
  return "";
}

/// After each test, unloads the plug-ins that the test loaded.
class Plugins : public testing::Test {
 protected:
  void SetUp() override { unsetenv("SHOAL_PLUGIN_PATH"); }
  void TearDown() override {
    for (const char* family : {"GOOD", "OTHER"}) {
      if (registry().find_family(family) != nullptr) registry().unload(family);
    }
    EXPECT_EQ(registry().find_device("GOOD0"), nullptr);
  }

  /// Expects that load() throws E with a message that contains the file name and `words`.
  template <class E>
  void expect_refused(const fs::path& file, const std::string& words) {
    SCOPED_TRACE(file);
    EXPECT_THAT([&] { registry().load(file); },
                ThrowsMessage<E>(AllOf(HasSubstr("[plug-in " + file.string() + "] "), HasSubstr(words),
                                       testing::Not(HasSubstr("\n")))));
    EXPECT_EQ(registry().find_family("GOOD"), nullptr);
  }
};

TEST_F(Plugins, LoadsAndUnloadsAFamily) {
  const size_t families = registry().family_count(), devices = registry().device_count();
  for (int round = 0; round < 2; ++round) {
    BackendReg& family = registry().load(plugin("good"));
    EXPECT_EQ(family.name(), "GOOD");
    EXPECT_EQ(registry().find_family("good"), &family);
    EXPECT_EQ(registry().file_of(family), plugin("good"));
    EXPECT_EQ(registry().family_count(), families + 1);
    EXPECT_EQ(registry().device_count(), devices + 1);
    EXPECT_EQ(registry().device(devices).name(), "GOOD0");
    EXPECT_EQ(registry().init("good0")->name(), "GOOD0");
    EXPECT_EQ(&registry().load(plugin("good")), &family) << "loading it again changes nothing";
    registry().unload("Good");
    EXPECT_EQ(registry().find_family("GOOD"), nullptr);
    EXPECT_EQ(registry().find_device("GOOD0"), nullptr);
    EXPECT_EQ(dlopen(plugin("good").c_str(), RTLD_NOW | RTLD_NOLOAD), nullptr) << "the file is still mapped";
  }
}

TEST_F(Plugins, LoadsRelativePathFromCurrentFolder) {
  const fs::path before = fs::current_path();
  fs::current_path(plugin("good").parent_path());
  EXPECT_EQ(registry().load("libshoal-good.so").name(), "GOOD");
  fs::current_path(before);
}

TEST_F(Plugins, RefusesFilesThatAreNotPlugins) {
  const Folder folder({});
  folder.write("libshoal-text.so", "not a shared object\n");
  folder.write("libshoal-empty.so", "");
  expect_refused<InvalidArgument>(folder.file("missing"), "there is no such file");
  expect_refused<DeviceError>(folder.file("text"), "the file is not a shared object");
  expect_refused<DeviceError>(folder.file("empty"), "the file is not a shared object");
  expect_refused<DeviceError>(folder.path(), "the file is not a shared object");
  expect_refused<DeviceError>(plugin("no_entry"), "the file has no function shoal_plugin()");
  expect_refused<DeviceError>(plugin("undefined"), "function_of_another_version");
  expect_refused<DeviceError>(plugin("undefined"), "link programs that load plug-ins with shoal_enable_plugins()");
  expect_refused<DeviceError>(plugin("incomplete"), "does not set the family, the variant or a function");
}

TEST_F(Plugins, RefusesIncompatibleApiVersions) {
  const auto versions = [](int major, int minor) {
    return fmt::format("the plug-in is for API {}.{}, but this program has API {}.{}: ", int{kPluginApiMajor} + major,
                       int{kPluginApiMinor} + minor, kPluginApiMajor, kPluginApiMinor);
  };
  expect_refused<DeviceError>(plugin("next_major"), versions(1, 0) + "use a newer shoal");
  expect_refused<DeviceError>(plugin("next_minor"), versions(0, 1) + "use a newer shoal");
  expect_refused<DeviceError>(plugin("earlier_major"),
                              versions(-1, 0) + "build the plug-in against this program's version of shoal");
  expect_refused<DeviceError>(plugin("other_sizes"), "class layouts of the plug-in and of this program differ");
}

TEST_F(Plugins, RefusesUnsupportedFailingOrDuplicatePlugins) {
  expect_refused<DeviceError>(plugin("unsupported"), "GOOD (none) does not support this machine");
  expect_refused<DeviceError>(plugin("throws"), "the plug-in's make_family() failed: the driver does not answer");
  expect_refused<DeviceError>(plugin("other_name"), "family name is SOMETHING, not GOOD");
  expect_refused<InvalidArgument>(plugin("cpu"), "the family name Cpu is already used by a part of the program");
  expect_refused<InvalidArgument>(plugin("device_taken"), "the device name cpu0 is already used");
  EXPECT_EQ(registry().find_family("TAKER"), nullptr);
  registry().load(plugin("good"));
  EXPECT_THAT([] { registry().load(plugin("fast")); },
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("GOOD is already used by " + plugin("good").string()),
                                                   HasSubstr("unload the loaded plug-in first"))));
}

TEST_F(Plugins, RefusesToUnloadAFamilyInUse) {
  BackendReg& family = registry().load(plugin("good"));
  const auto expect_in_use = [&](int uses) {
    EXPECT_EQ(family.uses(), uses);
    EXPECT_THAT([] { registry().unload("GOOD"); },
                ThrowsMessage<InvalidArgument>(HasSubstr(fmt::format("GOOD cannot be unloaded: {} objects", uses))));
    EXPECT_EQ(registry().find_family("GOOD"), &family);
  };
  {
    const auto buffer = registry().device("GOOD0").buffer_type().allocate(64);
    expect_in_use(1);
    const auto backend = registry().init("GOOD0");
    expect_in_use(2);
  }
  registry().unload("GOOD");
  EXPECT_THAT([] { registry().unload("GOOD"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("there is no family 'GOOD'")));
  EXPECT_THAT([] { registry().unload("cpu"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("CPU is part of the program")));
}

TEST_F(Plugins, ThreadsMayLoadTheSameFile) {
  for (int round = 0; round < 20; ++round) {
    std::vector<BackendReg*> got(4);
    {
      std::vector<std::jthread> threads;
      for (BackendReg*& one : got) threads.emplace_back([&one] { one = &registry().load(plugin("good")); });
    }
    EXPECT_THAT(got, testing::Each(registry().find_family("GOOD")));
    registry().unload("GOOD");
  }
}

TEST_F(Plugins, LoadsTheBestSupportedVariant) {
  const Folder folder({"good", "fast", "unsupported"});
  const PluginReport report = registry().load_all_from(folder.path());
  EXPECT_THAT(report.loaded, ElementsAre("GOOD"));
  EXPECT_EQ(registry().file_of(*registry().find_family("GOOD")), folder.file("fast"));
  EXPECT_EQ(report.skipped.size(), 2u);
  EXPECT_THAT(report.skipped, testing::Each(testing::Field(&PluginReport::Skipped::is_broken, false)));
  EXPECT_THAT(reason(report, folder.file("good")),
              HasSubstr("GOOD has score 1, which is not higher than the score of"));
  EXPECT_THAT(reason(report, folder.file("unsupported")), HasSubstr("does not support this machine"));
}

TEST_F(Plugins, LoadsTheNextVariantIfTheBestFails) {
  const Folder folder({"good", "fast", "throws"});
  const PluginReport report = registry().load_all_from(folder.path());
  EXPECT_THAT(report.loaded, ElementsAre("GOOD"));
  EXPECT_EQ(registry().file_of(*registry().find_family("GOOD")), folder.file("fast"));
  EXPECT_THAT(reason(report, folder.file("throws")), HasSubstr("the driver does not answer"));
}

TEST_F(Plugins, LoadsOtherPluginsDespiteBrokenFiles) {
  const Folder folder({"good", "other", "next_major", "cpu", "no_entry"});
  folder.write("libshoal-a.so", "text");
  folder.write("libother.so", "is not looked at");
  folder.write("libshoal-readme.txt", "nor this");
  const PluginReport report = registry().load_all_from(folder.path());
  EXPECT_THAT(report.loaded, testing::UnorderedElementsAre("GOOD", "OTHER"));
  EXPECT_EQ(report.skipped.size(), 4u);
  EXPECT_THAT(report.skipped, testing::Each(testing::Field(&PluginReport::Skipped::is_broken, true)));
  EXPECT_THAT(reason(report, folder.file("a")), HasSubstr("not a shared object"));
  EXPECT_THAT(reason(report, folder.file("next_major")), HasSubstr("plug-in is for API"));
  EXPECT_THAT(reason(report, folder.file("cpu")), HasSubstr("used by a part of the program"));
  EXPECT_THAT(reason(report, folder.file("no_entry")), HasSubstr("no function"));

  const PluginReport again = registry().load_all_from(folder.path());
  EXPECT_THAT(again.loaded, IsEmpty());
  EXPECT_EQ(again.skipped.size(), 4u) << "loaded plug-ins are neither loaded again nor skipped";
  EXPECT_THAT([&] { registry().load_all_from(folder.path() / "nowhere"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("there is no directory " + folder.path().string())));
}

TEST_F(Plugins, SearchesDirectoriesOfTheEnvironmentVariable) {
  const Folder first({"good"}), second({"fast", "other"});
  const std::string nowhere = (first.path() / "nowhere").string();
  const PluginPath path(fmt::format("{}::{}:{}", first.path().string(), nowhere, second.path().string()));
  const PluginReport report = registry().load_all();
  EXPECT_THAT(report.loaded, testing::IsSupersetOf({"GOOD", "OTHER"})) << "in addition to plug-ins next to the program";
  EXPECT_EQ(registry().file_of(*registry().find_family("GOOD")), second.file("fast"))
      << "best variant of all directories";
  EXPECT_THAT(reason(report, nowhere), HasSubstr("SHOAL_PLUGIN_PATH"));
  EXPECT_THAT(reason(report, first.file("good")), HasSubstr("score"));
}

TEST_F(Plugins, SearchesDirectoriesOfTheProgram) {
  if (!CopiedProgram::is_this()) {
    const CopiedProgram copy;
    EXPECT_EQ(copy.run("Plugins.SearchesDirectoriesOfTheProgram"), 0) << copy.said();
    EXPECT_THAT(copy.said(), HasSubstr("[  PASSED  ] 1 test."));
    return;
  }
  const PluginReport report = registry().load_all();
  EXPECT_THAT(report.loaded, testing::UnorderedElementsAre("GOOD", "OTHER"));
  EXPECT_THAT(report.skipped, IsEmpty());
}

}  // namespace
}  // namespace shoal
