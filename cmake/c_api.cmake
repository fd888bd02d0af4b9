# Builds libshoal.so, which provides the C interface (c/shoal.h). The library contains everything below the folder c. A C
# program links only this library.
#
# The library exports the functions of the C interface, and the C++ symbols of base, graph, devices and processes. A
# plug-in finds the C++ symbols in the library instead of the program. The option --exclude-libs hides the symbols of all
# other libraries. A program must not link the static libraries of shoal and libshoal.so at the same time.
file(GLOB shoal_c_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/c/*.cpp)
add_library(shoal_c SHARED ${shoal_c_sources})
add_library(shoal::c ALIAS shoal_c)
shoal_unity(shoal_c)
set_target_properties(shoal_c PROPERTIES EXPORT_NAME c OUTPUT_NAME shoal VERSION 1.0 SOVERSION 1
                                         CXX_VISIBILITY_PRESET hidden LINK_DEPENDS ${PROJECT_SOURCE_DIR}/c/shoal.map)
target_include_directories(shoal_c PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/c>
                                          $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_compile_options(shoal_c PRIVATE -Wno-missing-field-initializers)  # the SHOAL_..._INIT macros set few members
target_link_libraries(shoal_c PRIVATE shoal_models shoal_flags ${CMAKE_DL_LIBS})
shoal_enable_plugins(shoal_c)
target_link_options(shoal_c PRIVATE LINKER:--version-script=${PROJECT_SOURCE_DIR}/c/shoal.map LINKER:-Bsymbolic-functions
  LINKER:--exclude-libs,libshoal_collectives.a:libshoal_machine.a:libshoal_meta.a:libshoal_sched.a:libshoal_models.a)
