# Writes the commit of the checkout into a generated source file, for `shoal bench`. A new commit changes no build
# dependency, so every build asks git for the commit. The generated file is compiled again only if the commit has
# changed. CMakeLists.txt includes this script to define a target. The target runs this script with -P.
if(CMAKE_SCRIPT_MODE_FILE)
  set(commit unknown)
  execute_process(COMMAND git -C ${SOURCE_DIR} describe --always --exclude * --abbrev=9 --dirty=+
                  OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if("${failed}" STREQUAL "0" AND EXISTS ${SOURCE_DIR}/.git)  # ignores the commit of an enclosing project
    set(commit "${found}")
  endif()
  file(CONFIGURE OUTPUT ${FILE} @ONLY CONTENT [[#include "tools/cli/text.h"

namespace shoal::tools {

std::string build_commit() {
  return "@commit@";
}

}  // namespace shoal::tools
]])
  return()
endif()

set(shoal_commit_file ${PROJECT_BINARY_DIR}/generated/build_commit.cpp)
add_custom_target(shoal_commit BYPRODUCTS ${shoal_commit_file} VERBATIM
                  COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${PROJECT_SOURCE_DIR} -DFILE=${shoal_commit_file}
                          -P ${CMAKE_CURRENT_LIST_FILE})
target_sources(shoal_tools PRIVATE ${shoal_commit_file})
set_source_files_properties(${shoal_commit_file} PROPERTIES GENERATED ON)
add_dependencies(shoal_tools shoal_commit)
