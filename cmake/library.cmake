# Makes one static library per folder. The include path of all folders is the repository root. A folder links only the
# libraries in its DEPENDS. scripts/check_layering.py checks that a folder includes only headers of itself and of
# earlier folders.

# A full build spends most of its time on headers, so the compiler reads eight files of a folder as one.
# SHOAL_UNITY=OFF compiles each file separately, which is faster if one file changes repeatedly.
option(SHOAL_UNITY "Compile several files of a folder at a time" ON)
function(shoal_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${SHOAL_UNITY} UNITY_BUILD_BATCH_SIZE 8)
endfunction()

function(shoal_library folder)
  cmake_parse_arguments(arg "" "" "DEPENDS" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/devices/cpu/kernels/")
  list(FILTER sources EXCLUDE REGEX "/(devices/cuda|collectives/(p2p|nccl|cuda)|processes/mpi)/")  # in plug-ins: cmake/cuda.cmake, cmake/mpi.cmake
  if(NOT sources)
    return()
  endif()
  # A unity build cannot combine the op files of the CPU devices, because several of these files define functions with
  # the same name.
  set(alike ${sources})
  list(FILTER alike INCLUDE REGEX "/devices/cpu/ops/")
  set_source_files_properties(${alike} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  set(target shoal_${folder})
  add_library(${target} STATIC ${sources})
  add_library(shoal::${folder} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${folder})
  shoal_unity(${target})
  target_compile_features(${target} PUBLIC cxx_std_20)  # PUBLIC: the headers also need C++20
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

# Compiles the inner loops of the CPU devices once per instruction-set level. All levels are in one library. SHOAL_ISA
# is the namespace of a level. At start-up, the dispatcher selects the function table of one level.
function(shoal_cpu_kernels folder)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/devices/cpu/kernels/*.cpp)
  set(flags_baseline "")
  set(flags_avx2 -mavx2 -mfma -mf16c -mbmi2)
  set(flags_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mfma -mf16c -mbmi2 -mprefer-vector-width=512)
  # A few files need AVX-512 VBMI. These files are compiled only for the level avx512vbmi (devices/cpu/isa.cpp).
  set(flags_avx512vbmi ${flags_avx512} -mavx512vbmi)
  set(vbmi_sources ${sources})
  list(FILTER vbmi_sources INCLUDE REGEX "_vbmi\\.cpp$")
  list(FILTER sources EXCLUDE REGEX "_vbmi\\.cpp$")
  if(NOT sources)
    return()
  endif()
  set(levels baseline)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    list(APPEND levels avx2 avx512 avx512vbmi)
    target_compile_definitions(shoal_${folder} PRIVATE SHOAL_X86=1)
  endif()
  foreach(level ${levels})
    set(target shoal_kernels_${level})
    if(level STREQUAL "avx512vbmi")
      add_library(${target} OBJECT ${vbmi_sources})
    else()
      add_library(${target} OBJECT ${sources})
    endif()
    target_compile_definitions(${target} PRIVATE SHOAL_ISA=${level})
    target_compile_options(${target} PRIVATE ${flags_${level}} -O3 -fno-math-errno -fno-trapping-math
                                             -fopenmp-simd)
    # -ffp-contract=off: the compiler fuses no products and sums, so all tiles give the same bits. The code calls fma
    # explicitly. -Wno-psabi: disables a warning about the ABI of vector arguments. The warning is harmless, because a
    # function with vector arguments is called only within its file.
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
  # All sources except main.cpp are a library, so tests can call the commands.
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
