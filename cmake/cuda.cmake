# Builds the CUDA plug-in, libshoal-cuda.so. SHOAL_CUDA=AUTO builds the plug-in if nvcc is found, ON always, OFF never.
# The plug-in links the CUDA runtime statically. It searches for the driver and NCCL at load time. So the plug-in also
# loads on machines without a driver or NCCL.
set(SHOAL_CUDA AUTO CACHE STRING "Build the CUDA plug-in: AUTO (if nvcc is found), ON, OFF")
option(SHOAL_CUDA_LINEINFO "Add line numbers to kernels, for ncu and compute-sanitizer; doubles the plug-in's size" OFF)
include(cmake/cuda_architectures.cmake)

# Sources of the plug-in and of its emulated build in tests/cuda. The plug-in contains all collectives, because a
# program can load the plug-in without linking the library `collectives`.
file(GLOB_RECURSE shoal_cuda_sources CONFIGURE_DEPENDS
     ${PROJECT_SOURCE_DIR}/devices/cuda/*.cpp ${PROJECT_SOURCE_DIR}/devices/cuda/*.cu
     ${PROJECT_SOURCE_DIR}/collectives/*.cpp ${PROJECT_SOURCE_DIR}/collectives/*.cu)

if(SHOAL_CUDA STREQUAL "OFF" OR SHOAL_SANITIZE)
  return()
endif()
include(CheckLanguage)
if(NOT CMAKE_CUDA_COMPILER)
  unset(CMAKE_CUDA_COMPILER CACHE)  # otherwise check_language() reuses the cached result "not found"
  find_program(SHOAL_NVCC nvcc HINTS /usr/local/cuda/bin ENV CUDA_PATH PATH_SUFFIXES bin)
  if(SHOAL_NVCC AND NOT DEFINED ENV{CUDACXX})
    set(ENV{CUDACXX} ${SHOAL_NVCC})
  endif()
endif()
set(CMAKE_CUDA_ARCHITECTURES 80)  # CMake's check of the compiler needs a value
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  if(SHOAL_CUDA STREQUAL "ON")
    message(FATAL_ERROR "SHOAL_CUDA=ON, but nvcc was not found; install the CUDA Toolkit or set CUDACXX to nvcc")
  endif()
  return()
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
if(SHOAL_CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${SHOAL_LAUNCHER})
endif()
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake before version 3.26
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)

# Only GPUs of compute capability 9.0 have the instructions of the kernels in *_wgmma.cu. nvcc compiles these kernels
# for 90a instead of 90. For other GPUs, the kernels are empty and unused. SHOAL_CUDA_WGMMA is defined if 90a is
# a target.
shoal_choose_cuda_architectures(CMAKE_CUDA_ARCHITECTURES ${CMAKE_CUDA_COMPILER})
set(shoal_wgmma_architectures ${CMAKE_CUDA_ARCHITECTURES})
list(TRANSFORM shoal_wgmma_architectures REPLACE "^90-real$" "90a-real")
set(shoal_wgmma_sources ${shoal_cuda_sources})
list(FILTER shoal_wgmma_sources INCLUDE REGEX "_wgmma\\.cu$")
set(shoal_other_sources ${shoal_cuda_sources})
list(REMOVE_ITEM shoal_other_sources ${shoal_wgmma_sources})

# Objects of the plug-in. The tests in tests/cuda/gpu also link these objects, because the plug-in hides its symbols.
set(shoal_nvcc_options --expt-relaxed-constexpr --extended-lambda $<$<BOOL:${SHOAL_CUDA_LINEINFO}>:-lineinfo>)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
  list(APPEND shoal_nvcc_options --compress-mode=size)
else()
  list(APPEND shoal_nvcc_options -Xfatbin=-compress-all)  # --compress-mode=size needs a newer driver than CUDA 12
endif()
set(shoal_cuda_werror "")
if(SHOAL_WERROR)
  set(shoal_cuda_werror --Werror=all-warnings;-Xcompiler=-Werror)
endif()
string(REGEX MATCHALL "[0-9]+" shoal_cuda_built "${CMAKE_CUDA_ARCHITECTURES}")
string(REPLACE ";" "," shoal_cuda_built "${shoal_cuda_built}")
set_source_files_properties(devices/cuda/architectures.cpp PROPERTIES
  COMPILE_DEFINITIONS "SHOAL_CUDA_BUILT=${shoal_cuda_built}")
add_library(shoal_cuda_objects OBJECT ${shoal_other_sources})
add_library(shoal_wgmma_objects OBJECT ${shoal_wgmma_sources})
set_target_properties(shoal_wgmma_objects PROPERTIES CUDA_ARCHITECTURES "${shoal_wgmma_architectures}")
foreach(objects shoal_cuda_objects shoal_wgmma_objects)
  set_target_properties(${objects} PROPERTIES CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden)
  target_link_libraries(${objects} PRIVATE shoal_plugin nlohmann_json::nlohmann_json CUDA::cudart_static)
  target_compile_options(${objects} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;${shoal_werror}>"
    "$<$<COMPILE_LANGUAGE:CUDA>:${shoal_nvcc_options};-Xcompiler=-Wall,-Wextra;${shoal_cuda_werror}>")
endforeach()
if("${shoal_wgmma_architectures}" MATCHES "90a")
  set_source_files_properties(devices/cuda/ops/mul_mat_tiles.cu PROPERTIES COMPILE_DEFINITIONS SHOAL_CUDA_WGMMA=1)
endif()

add_library(shoal_cuda MODULE $<TARGET_OBJECTS:shoal_cuda_objects> $<TARGET_OBJECTS:shoal_wgmma_objects>)
set_target_properties(shoal_cuda PROPERTIES OUTPUT_NAME shoal-cuda LINKER_LANGUAGE CUDA
                                            LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
target_link_libraries(shoal_cuda PRIVATE shoal_plugin CUDA::cudart_static ${CMAKE_DL_LIBS})
