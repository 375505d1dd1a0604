# Finds LibTorch and precompiles its headers once for every target that needs them (tests by Clang have their own:
# cmake/Testing.cmake).
if(NOT Torch_DIR AND EXISTS ${PROJECT_SOURCE_DIR}/build/torch-prefix)
  file(READ ${PROJECT_SOURCE_DIR}/build/torch-prefix torch_prefix)
  string(STRIP "${torch_prefix}" torch_prefix)
  list(PREPEND CMAKE_PREFIX_PATH ${torch_prefix})
endif()
include(CudaRuntime)
trireme_cuda_runtime()
find_package(Torch ${TRIREME_TORCH_MINIMUM} REQUIRED)
# Templates of LibTorch before 2.13 have names that GCC gives them, and Clang only up to version 17.
if(Torch_VERSION VERSION_LESS 2.13 AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(trireme_options INTERFACE -fclang-abi-compat=17)
endif()
# Some builds of LibTorch export std::filesystem functions of their own, of which remove_all() calls a null pointer. So programs
# look for them in the C++ standard library first.
string(APPEND CMAKE_EXE_LINKER_FLAGS " -Wl,--push-state,--no-as-needed -lstdc++ -Wl,--pop-state")
# Where an installed Trireme finds a LibTorch without further settings, when the one it was built with is not there.
set(TRIREME_LIBTORCH_FOLDER /opt/libtorch CACHE PATH "Folder of a LibTorch that installed programs fall back to")

# Debian's Gloo headers serve LibTorch's own copy of the library; its library is never linked.
find_path(TRIREME_GLOO_INCLUDE gloo/context.h)
# A LibTorch with CUDA brings NCCL's library, seldom its headers; the Python packages beside it do.
if(TORCH_CUDA_LIBRARIES)
  find_path(TRIREME_NCCL_INCLUDE nccl.h HINTS ${TORCH_INSTALL_PREFIX}/../nvidia/nccl/include
            ${TORCH_INSTALL_PREFIX}/../nvidia/cu13/include)
endif()

add_library(trireme_pch OBJECT ${PROJECT_SOURCE_DIR}/cmake/precompiled.cpp)
target_link_libraries(trireme_pch PRIVATE torch trireme_options)
target_precompile_headers(trireme_pch PRIVATE ${PROJECT_SOURCE_DIR}/cmake/precompiled.h)

if(TRIREME_PYTHON_PACKAGE)
  find_library(TRIREME_TORCH_PYTHON_LIBRARY torch_python PATHS ${TORCH_INSTALL_PREFIX}/lib REQUIRED NO_DEFAULT_PATH)
endif()
