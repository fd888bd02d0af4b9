# Compiles the files of data/machines into the library, so a program needs no data files. A generated source file
# contains the texts of these files. machine/catalogue_data.h declares the texts as constants. A change of a data file
# generates the source file again.
foreach(name gpus hosts links)
  set(file ${PROJECT_SOURCE_DIR}/data/machines/${name}.json)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(READ ${file} ${name})
endforeach()
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/catalogue_texts.cpp @ONLY CONTENT [[#include "machine/catalogue_data.h"

namespace shoal::machine {

const std::string_view kGpusJson = R"json(@gpus@)json";
const std::string_view kHostsJson = R"json(@hosts@)json";
const std::string_view kLinksJson = R"json(@links@)json";

}  // namespace shoal::machine
]])
target_sources(shoal_machine PRIVATE ${PROJECT_BINARY_DIR}/generated/catalogue_texts.cpp)
