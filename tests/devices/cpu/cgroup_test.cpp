#include "devices/cpu/cgroup.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/temporary.h"

namespace shoal::cpu {
namespace {

namespace fs = std::filesystem;

struct CgroupTest : testing::Test {
  CgroupTest() {
    fs::create_directories(root / "app" / "web");
    write("self", "1:name=systemd:/\n0::/app/web\n");
  }
  void write(const char* file, const char* text) const { std::ofstream(root / file) << text; }
  CgroupLimits read() const { return read_cgroup(root / "self", root); }
  const test::TemporaryFolder folder;
  const fs::path& root = folder.path();
};

TEST_F(CgroupTest, NoFilesNoLimits) {
  EXPECT_FALSE(read().cores);
  EXPECT_FALSE(read().memory);
  EXPECT_FALSE(read_cgroup(root / "absent", root / "absent").cores);
  write("app/web/cpu.max", "max 100000\n");
  write("app/web/memory.max", "max\n");
  write("app/web/memory.current", "1000\n");
  EXPECT_FALSE(read().cores);
  EXPECT_FALSE(read().memory);
}

TEST_F(CgroupTest, QuotaInCores) {
  write("app/web/cpu.max", "400000 100000\n");
  EXPECT_EQ(read().cores, 4);
  write("app/web/cpu.max", "150000 100000\n");
  EXPECT_EQ(read().cores, 2) << "rounded up";
  write("app/web/cpu.max", "1000 100000\n");
  EXPECT_EQ(read().cores, 1);
  write("app/web/cpu.max", "1000 0\n");
  EXPECT_FALSE(read().cores);
}

TEST_F(CgroupTest, AParentMayLimitFurther) {
  write("app/web/cpu.max", "400000 100000\n");
  write("app/cpu.max", "300000 100000\n");
  write("cpu.max", "800000 100000\n");
  EXPECT_EQ(read().cores, 3);
}

TEST_F(CgroupTest, PageCacheIsFree) {
  write("app/web/memory.max", "1000\n");
  write("app/web/memory.current", "900\n");
  write("app/web/memory.stat", "anon 300\nfile 600\ninactive_file 400\nactive_file 200\n");
  ASSERT_TRUE(read().memory);
  EXPECT_EQ(read().memory->total, 1000U);
  EXPECT_EQ(read().memory->free, 700U);
  write("app/memory.max", "5000\n");
  write("app/memory.current", "4900\n");
  EXPECT_EQ(read().memory->total, 1000U);
  EXPECT_EQ(read().memory->free, 100U) << "the parent has no more";
}

}  // namespace
}  // namespace shoal::cpu
