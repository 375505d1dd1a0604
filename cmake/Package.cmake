# What `make package` makes of the installed files by CPack: a Debian package and an archive that can be unpacked anywhere.
# cmake/package/prepare.cmake takes the paths of this machine out of them, and finds what they depend on.
set(CPACK_PACKAGE_NAME trireme)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_VENDOR "Trireme")
set(CPACK_PACKAGE_CONTACT "The Trireme contributors <contributors@trireme.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "parallel training for LibTorch")
set(CPACK_PACKAGE_DESCRIPTION "Trains an ordinary torch::nn::Module over many processes, in C++20.
This has the library, its headers, CMake and pkg-config files, and the
program trireme, which starts the processes.

It needs a LibTorch ${TRIREME_TORCH_MINOR}, which Debian does not have. One in
${TRIREME_LIBTORCH_FOLDER} is found without further settings. Another one is named by
TRIREME_TORCH_DIR to the program, by Torch_DIR or CMAKE_PREFIX_PATH to CMake,
and by --define-variable=torch=<folder> to pkg-config.")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGE_CHECKSUM SHA256)
set(CPACK_STRIP_FILES OFF)  # it would take the static libraries too
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_THREADS 0)  # as many as there are cores

set(CPACK_GENERATOR DEB TXZ)
string(TOLOWER "trireme-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}" CPACK_PACKAGE_FILE_NAME)
set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_SOURCE_DIR}/cmake/package/by_generator.cmake)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/package/prepare.cmake)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "g++, cmake (>= 3.25), pkg-config, python3")

# For prepare.cmake.
set(CPACK_TRIREME_LIBTORCH_FOLDER ${TRIREME_LIBTORCH_FOLDER})
set(CPACK_TRIREME_TORCH_DIR ${Torch_DIR})
set(CPACK_TRIREME_TORCH_PREFIX ${TORCH_INSTALL_PREFIX})
set(CPACK_TRIREME_COMPILER ${CMAKE_CXX_COMPILER})
set(CPACK_TRIREME_STRIP ${CMAKE_STRIP})
set(CPACK_TRIREME_SHARED_OBJECTS ${objects})
set(CPACK_TRIREME_LIBDIR ${CMAKE_INSTALL_LIBDIR})
include(CPack)
