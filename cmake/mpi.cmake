# The plug-in libshoal-mpi.so, which brings MPI to programs that run as several processes (processes/join.h): built where
# MPI is (SHOAL_MPI=AUTO), always (ON) or never (OFF). Nothing else links MPI.
set(SHOAL_MPI AUTO CACHE STRING "Build the MPI plug-in: AUTO (where MPI is found), ON, OFF")

if(SHOAL_MPI STREQUAL "OFF")
  return()
endif()
set(MPI_CXX_SKIP_MPICXX ON)
find_package(MPI COMPONENTS CXX)
if(NOT MPI_CXX_FOUND)
  if(SHOAL_MPI STREQUAL "ON")
    message(FATAL_ERROR "SHOAL_MPI=ON, but there is no MPI; install one (scripts/install_deps --mpi)")
  endif()
  return()
endif()

file(GLOB shoal_mpi_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/processes/mpi/*.cpp)
add_library(shoal_mpi MODULE ${shoal_mpi_sources})
set_target_properties(shoal_mpi PROPERTIES OUTPUT_NAME shoal-mpi CXX_VISIBILITY_PRESET hidden
                                           LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
target_link_libraries(shoal_mpi PRIVATE shoal_plugin MPI::MPI_CXX shoal_flags)
