# Compiler options, warnings, sanitizers, and required packages.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
find_program(SHOAL_CCACHE ccache)
if(SHOAL_CCACHE)
  # With CCACHE_BASEDIR, all checkouts of a machine share their objects.
  set(SHOAL_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} ${SHOAL_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SHOAL_LAUNCHER})
endif()

find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED)

# Finds a library that has no CMake package. Uses pkg-config if possible, otherwise searches for the header and the
# library file.
find_package(PkgConfig QUIET)
function(shoal_find name module header library)
  add_library(shoal_found_${name} INTERFACE)
  if(PkgConfig_FOUND)
    pkg_check_modules(${name} QUIET IMPORTED_TARGET GLOBAL ${module})
  endif()
  if(TARGET PkgConfig::${name})
    target_link_libraries(shoal_found_${name} INTERFACE PkgConfig::${name})
    return()
  endif()
  find_path(SHOAL_HEADERS_OF_${name} ${header} REQUIRED)
  find_library(SHOAL_LIBRARY_OF_${name} ${library} REQUIRED)
  target_include_directories(shoal_found_${name} SYSTEM INTERFACE ${SHOAL_HEADERS_OF_${name}})
  target_link_libraries(shoal_found_${name} INTERFACE ${SHOAL_LIBRARY_OF_${name}})
endfunction()
shoal_find(hwloc hwloc hwloc.h hwloc)
shoal_find(pcre2-8 libpcre2-8 pcre2.h pcre2-8)
shoal_find(edit libedit histedit.h edit)

option(SHOAL_WERROR "Treat warnings as errors; use OFF for untested compilers" ON)
set(shoal_werror $<$<BOOL:${SHOAL_WERROR}>:-Werror>)
add_library(shoal_flags INTERFACE)
target_compile_options(shoal_flags INTERFACE -Wall -Wextra ${shoal_werror})
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 wrongly warns about overlapping copies in `"text" + std::string` (GCC bug 105329).
  target_compile_options(shoal_flags INTERFACE -Wno-restrict)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC treats the files of a unity build as headers and warns about unnamed namespaces in them.
  target_compile_options(shoal_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # Clang warns about every `omp simd` loop that it does not vectorise. At low optimisation levels, it vectorises none.
  target_compile_options(shoal_flags INTERFACE -Wno-pass-failed)
endif()
if(SHOAL_SANITIZE)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # With sanitizers, GCC 12 wrongly warns about uninitialised variables in std::regex and in AVX-512 intrinsics (GCC
    # bugs 105562, 105593).
    target_compile_options(shoal_flags INTERFACE -Wno-maybe-uninitialized -Wno-uninitialized)
  endif()
  add_compile_options(-fsanitize=${SHOAL_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -O1 -g1)
  add_link_options(-fsanitize=${SHOAL_SANITIZE})
endif()
