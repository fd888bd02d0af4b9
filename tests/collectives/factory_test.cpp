// Tests the communicator factory that a plug-in (tests/devices/plugins) offers for its device family.
#include "collectives/factory.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "base/error.h"

namespace shoal::collectives {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// Keeps a plug-in loaded while this object lives.
class Loaded {
 public:
  explicit Loaded(const std::string& name) : family_(Registry::instance().load(file(name))) {}
  ~Loaded() { Registry::instance().unload("GOOD"); }
  static std::string file(const std::string& name) {
    return std::filesystem::canonical(std::filesystem::path(SHOAL_TEST_PLUGINS) / ("libshoal-" + name + ".so"));
  }
  const BackendReg& family() const { return family_; }

 private:
  BackendReg& family_;
};

TEST(FamilyFactory, ComesFromThePlugin) {
  const Loaded loaded("factory");
  const CommunicatorFactory factory = factory_of(loaded.family());
  ASSERT_TRUE(factory);
  EXPECT_THAT([&] { factory({}, {}); },
              ThrowsMessage<InvalidArgument>("the communicator factory returned no communicator for 0 ranks"));
}

TEST(FamilyFactory, IsEmptyIfFamilyOffersNoFactory) {
  const Loaded loaded("good");
  EXPECT_FALSE(factory_of(loaded.family()));
}

TEST(FamilyFactory, RefusesPluginWithDifferentClassSizes) {
  const Loaded loaded("other_factory_sizes");
  EXPECT_THAT([&] { factory_of(loaded.family()); },
              ThrowsMessage<DeviceError>(
                  AllOf(HasSubstr("[plug-in " + Loaded::file("other_factory_sizes") + "] the class layouts of"),
                        HasSubstr("build both with the same version of shoal"), testing::Not(HasSubstr("\n")))));
}

}  // namespace
}  // namespace shoal::collectives
