# Installs the package. Another project can then call find_package(shoal) and link shoal::meta or shoal::models. Headers
# are installed in include/shoal. A project includes a header by its path in this repository: #include "graph/graph.h".
include(CMakePackageConfigHelpers)

set(shoal_root ${CMAKE_CURRENT_LIST_DIR}/..)

set(shoal_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/shoal)
foreach(folder base graph devices processes collectives machine sched meta models tuning)
  install(TARGETS shoal_${folder} EXPORT shoal-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(DIRECTORY ${shoal_root}/${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/shoal FILES_MATCHING PATTERN "*.h"
          PATTERN "*.def")
endforeach()
install(TARGETS shoal_plugin EXPORT shoal-targets)
if(TARGET shoal_cuda)  # OPTIONAL, because a build with --target shoal makes no plug-in
  install(TARGETS shoal_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/shoal OPTIONAL)
endif()
if(TARGET shoal_mpi)
  install(TARGETS shoal_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/shoal OPTIONAL)
endif()
# The C interface has its own file of targets, so that C projects need no other package. OPTIONAL, because a build with
# --target shoal makes no libshoal.so.
if(TARGET shoal_c)
  install(TARGETS shoal_c EXPORT shoal-c-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} OPTIONAL)
  install(EXPORT shoal-c-targets NAMESPACE shoal:: DESTINATION ${shoal_package_dir})
  install(FILES ${shoal_root}/c/shoal.h ${shoal_root}/c/shoal_devices.h ${shoal_root}/c/shoal_models.h
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
  file(RELATIVE_PATH shoal_pc_to_headers ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_FULL_INCLUDEDIR})
  configure_file(${shoal_root}/cmake/shoal.pc.in ${PROJECT_BINARY_DIR}/shoal.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/shoal.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()
install(EXPORT shoal-targets NAMESPACE shoal:: DESTINATION ${shoal_package_dir})

configure_package_config_file(${shoal_root}/cmake/shoal-config.cmake.in ${PROJECT_BINARY_DIR}/shoal-config.cmake
                              INSTALL_DESTINATION ${shoal_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/shoal-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/shoal-config.cmake ${PROJECT_BINARY_DIR}/shoal-config-version.cmake
              ${shoal_root}/cmake/plugins.cmake
        DESTINATION ${shoal_package_dir})
