# `cmake --install` and find_package(Trireme).
include(CMakePackageConfigHelpers)
get_property(rooms GLOBAL PROPERTY TRIREME_ROOMS)
install(TARGETS ${rooms} trireme EXPORT TriremeTargets FILE_SET HEADERS)
set(TRIREME_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/Trireme)
install(EXPORT TriremeTargets NAMESPACE trireme:: DESTINATION ${TRIREME_CMAKE_DIR})
configure_package_config_file(cmake/TriremeConfig.cmake.in ${PROJECT_BINARY_DIR}/TriremeConfig.cmake
                              INSTALL_DESTINATION ${TRIREME_CMAKE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/TriremeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/TriremeConfig.cmake ${PROJECT_BINARY_DIR}/TriremeConfigVersion.cmake
        DESTINATION ${TRIREME_CMAKE_DIR})
