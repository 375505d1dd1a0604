# Lets find_package(Torch) succeed with a LibTorch that was built with CUDA, where no CUDA toolkit is installed.
#
# LibTorch's own CMake files want the whole toolkit with its compiler, but a program that links LibTorch needs only the CUDA
# runtime: its headers and libcudart. A Python environment has both beside torch, in the packages on which torch depends. This
# file makes the one target that LibTorch's files would make of the toolkit, and they then look no further. It does nothing
# for a LibTorch without CUDA, and where such packages are missing: then LibTorch's files look for the toolkit as usual.
#
# trireme_cuda_runtime(<folders with a TorchConfig.cmake…>): looks where find_package(Torch HINTS <folders…>) does.
function(trireme_cuda_runtime)
  if(TARGET torch::cudart)
    return()
  endif()
  set(prefixes $ENV{CMAKE_PREFIX_PATH})
  string(REPLACE ":" ";" prefixes "${prefixes}")
  find_path(torch_config TorchConfig.cmake NO_CACHE NO_DEFAULT_PATH PATHS ${Torch_DIR} ${CMAKE_PREFIX_PATH} ${prefixes} ${ARGN}
            PATH_SUFFIXES Torch share/cmake/Torch)
  if(NOT torch_config)
    return()
  endif()
  get_filename_component(packages ${torch_config}/../../../.. ABSOLUTE)  # where torch and nvidia are neighbours
  file(GLOB folders ${packages}/nvidia/cu*/include ${packages}/nvidia/cuda_runtime/include)
  find_path(TRIREME_CUDA_INCLUDE cuda_runtime_api.h HINTS ${folders} NO_DEFAULT_PATH)
  file(GLOB libraries ${TRIREME_CUDA_INCLUDE}/../lib/libcudart.so*)
  if(NOT TRIREME_CUDA_INCLUDE OR NOT libraries)
    return()
  endif()
  list(GET libraries 0 library)
  get_filename_component(library ${library} ABSOLUTE)
  # Its headers include some that torch does not bring: those of a compiler that is there, or of CMAKE_PREFIX_PATH, serve too.
  find_program(TRIREME_NVCC nvcc HINTS /usr/local/cuda/bin)
  get_filename_component(toolkit "${TRIREME_NVCC}" REALPATH)
  get_filename_component(toolkit "${toolkit}/../.." ABSOLUTE)
  set(includes ${TRIREME_CUDA_INCLUDE})
  foreach(header crt/host_defines.h nv/target)
    string(MAKE_C_IDENTIFIER TRIREME_CUDA_INCLUDE_OF_${header} variable)
    find_path(${variable} ${header} HINTS ${folders} ${toolkit}/include ${packages}/nvidia/cuda_cccl/include /usr/local/cuda/include
              PATH_SUFFIXES cccl)
    if(NOT ${variable})
      message(STATUS "No ${header} for the CUDA runtime of the Python packages: looking for the CUDA toolkit")
      return()
    endif()
    list(APPEND includes ${${variable}})
  endforeach()
  list(REMOVE_DUPLICATES includes)
  add_library(torch::cudart SHARED IMPORTED GLOBAL)
  set_target_properties(torch::cudart PROPERTIES IMPORTED_LOCATION ${library} INTERFACE_INCLUDE_DIRECTORIES "${includes}")
  message(STATUS "CUDA runtime of the Python packages: ${library}")
endfunction()
