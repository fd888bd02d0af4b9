# Builds the module of the Python package (python/). SHOAL_PYTHON=AUTO builds the module if the interpreter has nanobind
# and its headers are installed, ON always, OFF never. In the build folder, python/shoal is a usable package: it has the
# module, and links to the sources, the program and the plug-ins. The tests load AddressSanitizer before a module with
# AddressSanitizer. There is no module with ThreadSanitizer.
set(SHOAL_PYTHON AUTO CACHE STRING "Build the Python module: AUTO (if nanobind is found), ON, OFF")
if(SHOAL_PYTHON STREQUAL "OFF" OR SHOAL_SANITIZE MATCHES "thread")
  return()
endif()

if(NOT Python_EXECUTABLE AND EXISTS ${PROJECT_SOURCE_DIR}/build/venv/bin/python)
  set(Python_EXECUTABLE ${PROJECT_SOURCE_DIR}/build/venv/bin/python)  # scripts/install_python makes this environment
endif()
find_package(Python 3.10 QUIET COMPONENTS Interpreter Development.Module)
set(missing "")
if(NOT Python_FOUND)
  set(missing "Python 3.10 or later with its headers (python3-dev)")
else()
  execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir OUTPUT_VARIABLE nanobind_ROOT
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT "${failed}" STREQUAL "0")
    set(missing "nanobind for ${Python_EXECUTABLE} (scripts/install_python)")
  endif()
endif()
if(missing)
  if(SHOAL_PYTHON STREQUAL "ON")
    message(FATAL_ERROR "SHOAL_PYTHON=ON needs ${missing}")
  endif()
  message(STATUS "no Python module: it needs ${missing}")
  return()
endif()
find_package(nanobind CONFIG REQUIRED)

set(shoal_package ${PROJECT_BINARY_DIR}/python/shoal)
file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/python/src/*.cpp)
nanobind_add_module(shoal_python NB_STATIC ${sources})
set_target_properties(shoal_python PROPERTIES OUTPUT_NAME _shoal LIBRARY_OUTPUT_DIRECTORY ${shoal_package})
target_compile_definitions(shoal_python PRIVATE SHOAL_VERSION="${PROJECT_VERSION}")
target_link_libraries(shoal_python PRIVATE shoal_tools shoal_flags ${CMAKE_DL_LIBS})
# Plug-ins find the symbols of these libraries in the module, as they find them in the program.
shoal_enable_plugins(shoal_python)
target_link_options(shoal_python PRIVATE LINKER:-Bsymbolic-functions
  LINKER:--exclude-libs,libshoal_collectives.a:libshoal_machine.a:libshoal_meta.a:libshoal_sched.a:libshoal_models.a:libshoal_tuning.a:libshoal_tools.a)
if(NOT SHOAL_SANITIZE)
  nanobind_add_stub(shoal_python_stub MODULE _shoal OUTPUT ${shoal_package}/_shoal.pyi PYTHON_PATH ${shoal_package}
                    DEPENDS shoal_python)
endif()

file(GLOB package_files RELATIVE ${PROJECT_SOURCE_DIR}/python/shoal CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/python/shoal/*)
list(FILTER package_files EXCLUDE REGEX "^(__pycache__|_shoal\\..*)$")
file(MAKE_DIRECTORY ${shoal_package})
foreach(name ${package_files})
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/python/shoal/${name} ${shoal_package}/${name} SYMBOLIC)
endforeach()
foreach(name bin share)
  file(CREATE_LINK ../../${name} ${shoal_package}/${name} SYMBOLIC)
endforeach()

# The component `python` is the content of a wheel (python/pyproject.toml).
install(TARGETS shoal_python LIBRARY DESTINATION shoal COMPONENT python EXCLUDE_FROM_ALL)
install(FILES ${shoal_package}/_shoal.pyi DESTINATION shoal COMPONENT python EXCLUDE_FROM_ALL)
install(TARGETS shoal RUNTIME DESTINATION shoal/bin COMPONENT python EXCLUDE_FROM_ALL)
add_custom_target(shoal_plugins)
foreach(plugin shoal_cuda shoal_mpi)
  if(TARGET ${plugin})
    add_dependencies(shoal_plugins ${plugin})
    install(TARGETS ${plugin} LIBRARY DESTINATION shoal/bin COMPONENT python EXCLUDE_FROM_ALL OPTIONAL)
  endif()
endforeach()
install(FILES tools/chat/chat_template.py DESTINATION shoal/share/shoal COMPONENT python EXCLUDE_FROM_ALL)
