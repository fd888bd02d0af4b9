# One static library per folder. A folder sees the repository root as its include path and may only link what it
# names here; scripts/check_layering.py holds the includes to the same order.

# Builds that start from nothing spend most of their time on headers: files of a folder are compiled eight at a time.
# SHOAL_UNITY=OFF compiles each by itself, which is faster where one file is changed again and again.
option(SHOAL_UNITY "Compile several files of a folder at a time" ON)
function(shoal_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${SHOAL_UNITY} UNITY_BUILD_BATCH_SIZE 8)
endfunction()

function(shoal_library folder)
  cmake_parse_arguments(arg "" "" "DEPENDS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/devices/cpu/kernels/")
  list(FILTER sources EXCLUDE REGEX "/(devices/cuda|collectives/(p2p|nccl|cuda)|processes/mpi)/")  # of plug-ins: cmake/cuda.cmake, cmake/mpi.cmake
  if(NOT sources)
    return()
  endif()
  # Ops of the CPU devices have functions of the same names, each in its own file.
  set(alike ${sources})
  list(FILTER alike INCLUDE REGEX "/devices/cpu/ops/")
  set_source_files_properties(${alike} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  set(target shoal_${folder})
  add_library(${target} STATIC ${sources})
  add_library(shoal::${folder} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${folder})
  shoal_unity(${target})
  target_compile_features(${target} PUBLIC cxx_std_20)  # as the headers need it, also in projects that link it
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                                              $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/shoal>)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:shoal_flags>)
  foreach(dependency ${arg_DEPENDS})
    if(TARGET shoal_${dependency})
      target_link_libraries(${target} PUBLIC shoal_${dependency})
    elseif(TARGET shoal_found_${dependency})
      target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:shoal_found_${dependency}>
                                              $<INSTALL_INTERFACE:${dependency}>)
    else()
      target_link_libraries(${target} PUBLIC ${dependency})
    endif()
  endforeach()
endfunction()

# The inner loops of the CPU devices, compiled once per instruction-set level into the same library; each
# object sees SHOAL_ISA (the namespace of its level) and the dispatcher picks a table at start-up.
function(shoal_cpu_kernels folder)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/devices/cpu/kernels/*.cpp)
  set(flags_baseline "")
  set(flags_avx2 -mavx2 -mfma -mf16c -mbmi2)
  set(flags_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mfma -mf16c -mbmi2 -mprefer-vector-width=512)
  if(NOT sources)
    return()
  endif()
  set(levels baseline)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    list(APPEND levels avx2 avx512)
    target_compile_definitions(shoal_${folder} PRIVATE SHOAL_X86=1)
  endif()
  foreach(level ${levels})
    set(target shoal_kernels_${level})
    add_library(${target} OBJECT ${sources})
    target_compile_definitions(${target} PRIVATE SHOAL_ISA=${level})
    target_compile_options(${target} PRIVATE ${flags_${level}} -O3 -fno-math-errno -fno-trapping-math
                                             -fopenmp-simd)
    # Products and sums are fused where the code says so and nowhere else: the same bits in every tile. Vectors are
    # passed within one file only.
    target_compile_options(${target} PRIVATE -ffp-contract=off -Wno-psabi)
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
    target_link_libraries(${target} PRIVATE shoal_flags fmt::fmt)
    target_sources(shoal_${folder} PRIVATE $<TARGET_OBJECTS:${target}>)
  endforeach()
endfunction()

function(shoal_program folder)
  cmake_parse_arguments(arg "" "NAME" "DEPENDS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.cpp)
  set(main ${sources})
  list(FILTER main INCLUDE REGEX "/main\\.cpp$")
  list(REMOVE_ITEM sources ${main})
  if(NOT main)
    return()
  endif()
  # Everything but main() is a library, so that tests can call the commands.
  add_library(shoal_${folder} STATIC ${sources})
  shoal_unity(shoal_${folder})
  target_include_directories(shoal_${folder} PUBLIC ${PROJECT_SOURCE_DIR})
  target_compile_definitions(shoal_${folder} PRIVATE SHOAL_VERSION="${PROJECT_VERSION}")
  target_link_libraries(shoal_${folder} PRIVATE shoal_flags)
  foreach(dependency ${arg_DEPENDS})
    if(TARGET shoal_${dependency})
      target_link_libraries(shoal_${folder} PUBLIC shoal_${dependency})
    else()
      target_link_libraries(shoal_${folder} PUBLIC ${dependency})
    endif()
  endforeach()
  add_executable(${arg_NAME} ${main})
  target_link_libraries(${arg_NAME} PRIVATE shoal_${folder} shoal_flags)
  install(TARGETS ${arg_NAME} RUNTIME DESTINATION bin)
endfunction()
