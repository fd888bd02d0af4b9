# Selects the compute capabilities for which the CUDA plug-in is compiled. The plug-in contains no PTX. With PTX, the
# driver could compile kernels for minutes at the first start. If the plug-in has no machine code for a GPU, the program
# does not use the GPU and reports the reason (devices/cuda/architectures.h).
set(SHOAL_CUDA_ARCHITECTURES "" CACHE STRING
    "Compute capabilities of the CUDA plug-in, such as 86 or 80;90; empty: the capabilities of this machine's GPUs")
set(SHOAL_CUDA_WITHOUT_GPU "80;86;89;90;120" CACHE STRING
    "Compute capabilities if SHOAL_CUDA_ARCHITECTURES is empty and this machine has no GPU")

# Sets `result` to the compute capabilities in the list `option`, without duplicates.
function(shoal_capabilities_of result option)
  set(given "${${option}}")
  list(TRANSFORM given REPLACE "-real$" "")
  list(REMOVE_DUPLICATES given)
  foreach(architecture ${given})
    if(NOT architecture MATCHES "^[0-9]+$" OR architecture LESS 80)
      message(FATAL_ERROR "${option}=${${option}}: '${architecture}' is not a compute capability of at least 80; give "
                          "a list such as 86 or 80;90")
    endif()
  endforeach()
  set(${result} "${given}" PARENT_SCOPE)
endfunction()

# Sets `result` to the compute capabilities in ${ARGN} for which `nvcc` can compile. Prints a message of severity
# `severity` for each unsupported capability.
function(shoal_known_to_nvcc result nvcc severity)
  execute_process(COMMAND ${nvcc} --list-gpu-arch OUTPUT_VARIABLE known ERROR_QUIET)
  set(kept "")
  foreach(architecture ${ARGN})
    if("${known}" MATCHES "compute_${architecture}(\n|$)")
      list(APPEND kept ${architecture})
    else()
      message(${severity} "${nvcc} cannot compile for compute capability ${architecture}, so the CUDA plug-in will not "
                          "use such GPUs; install a newer CUDA Toolkit")
    endif()
  endforeach()
  set(${result} "${kept}" PARENT_SCOPE)
endfunction()

# Sets `result` to the compute capabilities of the GPUs of this machine, without duplicates. Omits capabilities below
# 8.0.
function(shoal_capabilities_of_gpus result)
  set(gpus "")
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                  OUTPUT_VARIABLE found RESULT_VARIABLE status ERROR_QUIET)
  if(status EQUAL 0)
    string(REGEX MATCHALL "([89]|[1-9][0-9])[.][0-9]" gpus "${found}")
    list(REMOVE_DUPLICATES gpus)
    list(TRANSFORM gpus REPLACE "[.]" "")
  endif()
  set(${result} "${gpus}" PARENT_SCOPE)
endfunction()

# Warns about GPUs that cannot run the plug-in. `gpus`: compute capabilities of the GPUs. ${ARGN}: compute capabilities
# of the plug-in. devices/cuda/architectures.h explains which GPU can run the code for which capability.
function(shoal_warn_of_gpus_without_code gpus)
  foreach(gpu ${gpus})
    set(has_code FALSE)
    foreach(architecture ${ARGN})
      string(REGEX REPLACE ".$" "" generation ${architecture})
      if(gpu EQUAL architecture OR (gpu MATCHES "^${generation}.$" AND gpu GREATER architecture AND
                                    NOT "${gpu};${architecture}" MATCHES "87|88|101|110"))
        set(has_code TRUE)
      endif()
    endforeach()
    if(NOT has_code)
      message(WARNING "SHOAL_CUDA_ARCHITECTURES=${SHOAL_CUDA_ARCHITECTURES} omits this machine's GPU of compute "
                      "capability ${gpu}; -DSHOAL_CUDA_ARCHITECTURES= compiles for the GPUs of this machine")
    endif()
  endforeach()
endfunction()

# Sets `result` to the targets of the CUDA plug-in, such as "86-real;90-real".
function(shoal_choose_cuda_architectures result nvcc)
  shoal_capabilities_of(chosen SHOAL_CUDA_ARCHITECTURES)
  shoal_capabilities_of_gpus(gpus)
  if(chosen)
    shoal_known_to_nvcc(chosen ${nvcc} FATAL_ERROR ${chosen})
    shoal_warn_of_gpus_without_code("${gpus}" ${chosen})
  else()
    shoal_known_to_nvcc(chosen ${nvcc} WARNING ${gpus})
  endif()
  if(NOT chosen)
    shoal_capabilities_of(chosen SHOAL_CUDA_WITHOUT_GPU)
    shoal_known_to_nvcc(chosen ${nvcc} WARNING ${chosen})
  endif()
  if(NOT chosen)
    message(FATAL_ERROR "${nvcc} can compile for none of SHOAL_CUDA_WITHOUT_GPU=${SHOAL_CUDA_WITHOUT_GPU}; set "
                        "SHOAL_CUDA_ARCHITECTURES to other capabilities, install a newer CUDA Toolkit, or build with "
                        "-DSHOAL_CUDA=OFF")
  endif()
  message(STATUS "The CUDA plug-in is compiled for compute capability ${chosen}")
  list(TRANSFORM chosen APPEND "-real")
  set(${result} "${chosen}" PARENT_SCOPE)
endfunction()
