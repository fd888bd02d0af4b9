"""Tests the check scripts of the project on small generated source trees."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPTS = pathlib.Path(__file__).parents[2] / "scripts"


class ChecksTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)
        self.write("graph/graph.h", "#pragma once\n#include <vector>\n")
        self.write("sched/sched.h", '#pragma once\n#include "graph/graph.h"\n')
        self.write("meta/meta.h", '#pragma once\n#include "graph/graph.h"\n')
        self.write("tests/CMakeLists.txt", "shoal_tests(graph DEPENDS shoal_graph)\n")
        self.write("tests/graph/graph_test.cpp", '#include "graph/graph.h"\n')

    def tearDown(self):
        self.folder.cleanup()

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def check(self, script, *expected):
        result = subprocess.run([sys.executable, SCRIPTS / script, self.root], capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 1 if expected else 0, result.stdout + result.stderr)
        lines = result.stdout.splitlines()
        self.assertEqual(len(lines), len(expected), result.stdout)
        for line, words in zip(lines, expected):
            self.assertIn(words, line)

    def test_good_tree_passes(self):
        self.check("check_layering.py")
        self.check("check_size.py")

    def test_rejects_include_of_later_folder(self):
        self.write("graph/bad.cpp", '\n#include "meta/meta.h"\n')
        self.check("check_layering.py", "graph/bad.cpp:2: graph must not include meta/meta.h")

    def test_siblings_must_not_include_each_other(self):
        self.write("meta/bad.cpp", '#include "sched/sched.h"\n')
        self.write("sched/bad.cpp", '#  include "meta/meta.h"\n')
        self.check("check_layering.py", "sched must not include meta", "meta must not include sched")

    def test_rejects_wrong_includes_between_subfolders(self):
        self.write("meta/layout/layout.h", '#include "meta/layout/views.h"\n')
        self.write("meta/layout/views.h", '#include "meta/plan/plan.h"\n')
        self.write("meta/plan/plan.h", '#include "meta/layout/layout.h"\n')
        self.write("meta/attic/old.h", "")
        self.check("check_layering.py", "meta has no subfolder 'attic'", "meta/layout must not include meta/plan/plan.h")

    def test_folder_must_not_include_its_subfolders(self):
        self.write("tuning/predict.h", "")
        self.write("tuning/choose/chooser.h", '#include "tuning/predict.h"\n')
        self.check("check_layering.py")
        self.write("tuning/bad.cpp", '#include "tuning/choose/chooser.h"\n')
        self.check("check_layering.py", "tuning/bad.cpp:1: tuning must not include tuning/choose/chooser.h")

    def test_limits_constructions_of_placements_and_plans(self):
        self.write("tools/report/four.h", "  models::Placement one_, many_;  // models::Placement three(model);\n"
                   "  std::unique_ptr<models::Placement> placement_;\n  void run(const models::Placement& placement);\n")
        self.write("tuning/four.cpp", "auto a = std::make_unique<models::Placement>(model);\n"
                   "const models::ModelPlan plan(model, a);\nmodels::PlacementOptions options{};\n")
        for folder in ("models/place", "tuning/choose", "tests/graph", "benchmarks"):
            self.write(f"{folder}/any.cpp", "models::Placement placement(model);\n")
        self.check("check_layering.py")
        for fifth in ("models::Placement(model)", "models::ModelPlan{model}", "models::ModelPlan p(model)",
                      "std::make_unique<ModelPlan>(p)", "models::Placement placement"):
            self.write("tools/fifth.cpp", fifth + ";\n")
            self.check("check_layering.py", "5 constructions of Placement or ModelPlan, the limit is 4")

    def test_device_headers_are_private(self):
        self.write("devices/cpu/cpu_device.h", '#include "devices/cpu/team.h"\n')
        self.write("devices/cpu/team.h", "")
        self.write("devices/good.cpp", '#include "devices/cpu/cpu_device.h"\n')
        self.write("devices/bad.cpp", '#include "devices/cpu/team.h"\n')
        self.check("check_layering.py", "devices/bad.cpp:1: devices must not include devices/cpu/team.h")

    def test_library_must_not_include_tests(self):
        self.write("tests/support/x.h", "")
        self.write("benchmarks/good_bench.cpp", '#include "tests/support/x.h"\n')
        self.write("meta/bad.cpp", '#include "tests/support/x.h"\n')
        self.check("check_layering.py", "meta must not include tests/support/x.h")

    def test_includes_are_paths_from_the_root(self):
        self.write("graph/bad.cpp", '#include "graph.h"\n#include <graph/graph.h>\n')
        self.check("check_layering.py", '"graph.h" is not a file', "<graph/graph.h> is a file of this project")

    def test_rejects_long_files(self):
        self.write("graph/long.cpp", "\n" * 501)
        self.write("tests/graph/long_test.cpp", "\n" * 800)
        self.check("check_size.py", "graph/long.cpp: 501 lines, the limit is 500")
        self.write("tests/graph/long_test.cpp", "\n" * 801)
        self.check("check_size.py", "graph/long.cpp", "tests/graph/long_test.cpp: 801 lines, the limit is 800")

    def test_rejects_big_repository(self):
        self.write("data/model.gguf", "x" * 30_000_000)
        self.check("check_size.py", "all files: ")

    def test_rejects_test_that_is_not_built(self):
        self.write("tests/lost/lost_test.cpp", "")
        self.check("check_size.py", "tests/lost/lost_test.cpp: no shoal_tests(lost")

    def test_rejects_test_files_in_shared_temporary_folder(self):
        self.write("tests/support/temporary.cpp", "fs::temp_directory_path()\n")
        self.write("tests/graph/bad_test.cpp", 'int x;\nauto path = testing::TempDir() + "x.json";\n')
        self.check("check_size.py", "tests/graph/bad_test.cpp:2: tests that run concurrently share this folder")

    def test_finds_missing_files_of_documentation(self):
        self.write("docs/good.md", "`graph/graph.h` `graph/` `graph.h` `graph/graph` `ls graph/x` `tests/{graph,CMakeLists.txt}` `a/b`\n"
                   "```\n`graph/none.h`\n```\n")
        self.write("docs/recipes.md", "`graph/cumprod.cpp` `graph/<name>.h`\n")
        self.check("check_docs.py")
        self.write("docs/linked.md", "[good](good.md) [root](../graph/graph.h) [page](https://example.org/x)\n")
        self.check("check_docs.py")
        self.write("docs/bad.md", "\n[x](none.md) `graph/none.h` and `graph/graph.{h,cpp}`, `none.cpp`\n")
        self.check("check_docs.py", "docs/bad.md:2: there is no none.md", "no graph/none.h", "no graph/graph.cpp",
                   "no none.cpp")

    def test_pages_quote_examples_exactly(self):
        self.write("examples/sum.cpp", "// A sum.\nint sum() { return 3; }\n")
        self.write("docs/library.md", "```cpp\n// examples/sum.cpp\nint sum() { return 3; }\n```\n")
        self.check("check_docs.py")
        self.write("docs/library.md", "```cpp\n// examples/sum.cpp\nint sum() { return 4; }\n```\n```cpp\n// examples/none.cpp\n```\n")
        self.check("check_docs.py", "docs/library.md: a block differs from the code in examples/sum.cpp", "examples/none.cpp")

    def test_checks_c_files(self):
        self.write("examples/sum.c", "/* The sum of\n * the others. */\nint sum(void) { return 3; }\n")
        self.write("docs/c.md", "```c\n// examples/sum.c\nint sum(void) { return 4; }\n```\n")
        self.check("check_docs.py", "docs/c.md: a block differs from the code in examples/sum.c")
        self.check("check_prose.py", "examples/sum.c:2: 'the other' with its noun")
        self.write("c/shoal.h", "int sum(void);\n")
        self.write("tools/bad.cpp", '#include "c/shoal.h"\n')
        self.check("check_layering.py", "tools must not include c/shoal.h")

    def test_rejects_phrases_in_comments_pages_and_messages(self):
        self.write("graph/bad.cpp", '// The weights lie on the host.\nint x;  // no multiple of 32\n'
                   'fail("the message is brought by"\n     " another process, too");\n')
        self.write("docs/bad.md", "A first line.\nOf two devices, both wait for the others.\n```\nthose of\n```\n")
        self.check("check_prose.py", "docs/bad.md:1: start with the subject", "docs/bad.md:2: 'the other' with its noun",
                   "graph/bad.cpp:1: is stored", "graph/bad.cpp:2: not a multiple of", "graph/bad.cpp:3: is notified",
                   "graph/bad.cpp:4: also, before the verb")

    def test_accepts_phrases_in_code_and_in_messages_of_tests(self):
        self.write("graph/good.cpp", 'auto path = root / "lie";\nbring();\n')
        self.write("tests/graph/good_test.cpp", 'EXPECT_EQ(message, "those of the host");\n')
        self.check("check_prose.py")


if __name__ == "__main__":
    unittest.main()
