# Which GPUs the CUDA plug-in is compiled for. The plug-in has machine code only: without PTX the driver never compiles
# kernels for minutes at the first start, and a GPU without code is refused with a reason (devices/cuda/architectures.h).
set(SHOAL_CUDA_ARCHITECTURES "" CACHE STRING
    "Compute capabilities of the CUDA plug-in, such as 86 or 80;90; empty: those of this machine's GPUs")
set(SHOAL_CUDA_WITHOUT_GPU "80;86;89;90;120" CACHE STRING
    "Compute capabilities if SHOAL_CUDA_ARCHITECTURES is empty and this machine has no GPU")

# Sets `result` to those that `nvcc` can compile for.
function(shoal_known_to_nvcc result nvcc)
  execute_process(COMMAND ${nvcc} --list-gpu-arch OUTPUT_VARIABLE known ERROR_QUIET)
  set(kept "")
  foreach(architecture ${ARGN})
    if("${known}" MATCHES "compute_${architecture}(\n|$)")
      list(APPEND kept ${architecture})
    else()
      message(WARNING "${nvcc} cannot compile for compute capability ${architecture}, so the CUDA plug-in will not use "
                      "such GPUs; a newer CUDA Toolkit can")
    endif()
  endforeach()
  set(${result} "${kept}" PARENT_SCOPE)
endfunction()

# Sets `result` to a list such as "86-real;90-real".
function(shoal_choose_cuda_architectures result nvcc)
  set(chosen ${SHOAL_CUDA_ARCHITECTURES})
  list(TRANSFORM chosen REPLACE "-real$" "")
  foreach(architecture ${chosen})
    if(NOT architecture MATCHES "^[0-9]+$" OR architecture LESS 80)
      message(FATAL_ERROR "SHOAL_CUDA_ARCHITECTURES=${SHOAL_CUDA_ARCHITECTURES}: '${architecture}' is not a compute "
                          "capability from 80 on; give a list such as 86 or 80;90")
    endif()
  endforeach()
  if(NOT chosen)
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                    OUTPUT_VARIABLE found RESULT_VARIABLE status ERROR_QUIET)
    if(status EQUAL 0)
      string(REGEX MATCHALL "([89]|[1-9][0-9])[.][0-9]" chosen "${found}")
      list(REMOVE_DUPLICATES chosen)
      list(TRANSFORM chosen REPLACE "[.]" "")
      shoal_known_to_nvcc(chosen ${nvcc} ${chosen})
    endif()
  endif()
  if(NOT chosen)
    shoal_known_to_nvcc(chosen ${nvcc} ${SHOAL_CUDA_WITHOUT_GPU})
  endif()
  message(STATUS "The CUDA plug-in is compiled for compute capability ${chosen}")
  list(TRANSFORM chosen APPEND "-real")
  set(${result} "${chosen}" PARENT_SCOPE)
endfunction()
