# Builds the plug-in libshoal-mpi.so, which provides MPI to programs with several processes (processes/join.h).
# SHOAL_MPI=AUTO builds the plug-in if MPI is found, ON always, OFF never. Only this plug-in links MPI.
set(SHOAL_MPI AUTO CACHE STRING "Build the MPI plug-in: AUTO (if MPI is found), ON, OFF")

if(SHOAL_MPI STREQUAL "OFF")
  return()
endif()
# If only openmpi-bin is installed, MPI has a compiler wrapper but no headers or libraries. find_package() would then
# fail and store wrong paths in the cache. The paths would stay wrong even after the full installation of MPI. So a
# test program is compiled first.
find_program(mpi_wrapper NAMES ${MPI_CXX_COMPILER} mpicxx NO_CACHE)
if(mpi_wrapper)
  file(WRITE ${CMAKE_BINARY_DIR}/CMakeFiles/mpi_program.cpp "#include <mpi.h>\nint main() { return MPI_Finalize(); }\n")
  execute_process(COMMAND ${mpi_wrapper} mpi_program.cpp -o mpi_program WORKING_DIRECTORY ${CMAKE_BINARY_DIR}/CMakeFiles
                  RESULT_VARIABLE mpi_failed OUTPUT_QUIET ERROR_QUIET)
endif()
if(mpi_failed)
  message(STATUS "${mpi_wrapper} cannot compile an MPI program: scripts/install_deps --mpi installs the missing packages")
else()
  set(MPI_CXX_SKIP_MPICXX ON)
  find_package(MPI COMPONENTS CXX)
endif()
if(NOT MPI_CXX_FOUND)
  if(SHOAL_MPI STREQUAL "ON")
    message(FATAL_ERROR "SHOAL_MPI=ON, but no MPI was found; install it (scripts/install_deps --mpi)")
  endif()
  return()
endif()

file(GLOB shoal_mpi_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/processes/mpi/*.cpp)
add_library(shoal_mpi MODULE ${shoal_mpi_sources})
set_target_properties(shoal_mpi PROPERTIES OUTPUT_NAME shoal-mpi CXX_VISIBILITY_PRESET hidden
                                           LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
target_link_libraries(shoal_mpi PRIVATE shoal_plugin MPI::MPI_CXX shoal_flags)
