# `cmake --install`: find_package(Trireme) and pkg-config. What is installed needs nothing of the folder it was built in.
include(CMakePackageConfigHelpers)
get_property(components GLOBAL PROPERTY TRIREME_COMPONENTS)
install(TARGETS ${components} trireme EXPORT TriremeTargets)
# When it installs, not when it configures: a header may include others by then.
install(CODE "
  include(${PROJECT_SOURCE_DIR}/cmake/InstalledHeaders.cmake)
  trireme_installed_headers(headers ${PROJECT_SOURCE_DIR})
  foreach(header IN LISTS headers)
    cmake_path(GET header PARENT_PATH folder)
    file(INSTALL DESTINATION \${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}/\${folder} TYPE FILE
         FILES ${PROJECT_SOURCE_DIR}/\${header})
  endforeach()")
set(TRIREME_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/Trireme)
install(EXPORT TriremeTargets NAMESPACE trireme:: DESTINATION ${TRIREME_CMAKE_DIR})
string(REGEX MATCH "^[0-9]+[.][0-9]+" TRIREME_TORCH_MINOR "${Torch_VERSION}")
configure_package_config_file(cmake/TriremeConfig.cmake.in ${PROJECT_BINARY_DIR}/TriremeConfig.cmake
                              INSTALL_DESTINATION ${TRIREME_CMAKE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/TriremeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/TriremeConfig.cmake ${PROJECT_BINARY_DIR}/TriremeConfigVersion.cmake cmake/CudaRuntime.cmake
        DESTINATION ${TRIREME_CMAKE_DIR})

# Messages name pages of the guide.
install(DIRECTORY docs/guide docs/design docs/formats DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/trireme)
install(FILES docs/operators.md CHANGELOG.md LICENSE cmake/package/copyright DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/trireme)
if(TARGET trireme_program)
  include(Manual)
endif()

# What `make install` builds: no tests, examples or benchmarks.
add_custom_target(install_parts)
add_dependencies(install_parts ${components})
foreach(program trireme_program trireme_torch_module trireme_mpi_module trireme_manual)
  if(TARGET ${program})
    add_dependencies(install_parts ${program})
  endif()
endforeach()

if(TRIREME_TORCH)
  set(TRIREME_PC_LIBRARIES "")
  foreach(component IN LISTS components)
    string(APPEND TRIREME_PC_LIBRARIES " -l${component}")
  endforeach()
  get_property(objects GLOBAL PROPERTY TRIREME_SHARED_OBJECTS)
  list(REMOVE_DUPLICATES objects)
  set(TRIREME_PC_SHARED_OBJECTS "")
  foreach(object IN LISTS objects)
    string(APPEND TRIREME_PC_SHARED_OBJECTS " -l:${object}")
  endforeach()
  # The kernels of devices register themselves: nothing refers to them by name.
  set(TRIREME_PC_TORCH_LIBRARIES "-ltorch -ltorch_cpu -lc10")
  if(TORCH_CUDA_LIBRARIES)
    set(TRIREME_PC_TORCH_LIBRARIES "-Wl,--no-as-needed -ltorch -ltorch_cpu -ltorch_cuda -lc10 -lc10_cuda -Wl,--as-needed")
  endif()
  set(pkg_config_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
  file(RELATIVE_PATH TRIREME_PC_TO_PREFIX /prefix/${pkg_config_dir} /prefix)
  configure_file(cmake/trireme.pc.in ${PROJECT_BINARY_DIR}/trireme.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/trireme.pc DESTINATION ${pkg_config_dir})

  if(PROJECT_IS_TOP_LEVEL)
    include(Package)
  endif()
endif()
