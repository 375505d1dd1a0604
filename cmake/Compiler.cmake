# Language level, warnings, sanitizers, and the compiler cache and linker where they are found.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
# Programs too, instead of -fPIE: one precompiled header then serves libraries and programs.
set(CMAKE_CXX_COMPILE_OPTIONS_PIE -fPIC)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

# Our own files are compiled with these; imported targets (LibTorch, GoogleTest) are system headers and stay quiet.
add_library(trireme_options INTERFACE)
# a * b + c is rounded twice on every machine: where it becomes one instruction, the bits are others.
target_compile_options(trireme_options INTERFACE -Wall -Wextra -Wpedantic -Wconversion -Wshadow -ffp-contract=off
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>  # false alarms of GCC 12 on std::string's operator+
  $<$<CXX_COMPILER_ID:Clang>:-Wno-missing-designated-field-initializers>
  $<$<CXX_COMPILER_ID:Clang>:-Wno-deprecated-declarations>)  # std::stable_sort of GCC 12's library uses what that deprecates
if(TRIREME_WERROR)
  target_compile_options(trireme_options INTERFACE -Werror)
endif()
if(TRIREME_SANITIZER)
  # Little is optimised and only lines are described: files that need torch/torch.h compile twice as fast so.
  # GCC's flow analysis gives false alarms in LibTorch's headers when it is instrumented.
  add_compile_options(-fsanitize=${TRIREME_SANITIZER} -fno-omit-frame-pointer -O1 -g1
                      $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  add_link_options(-fsanitize=${TRIREME_SANITIZER})
endif()
if(TRIREME_FUZZ)
  # Undefined behaviour that damaged numbers lead to, and that LibTorch's headers have none of.
  set(checks address,float-cast-overflow,signed-integer-overflow,integer-divide-by-zero,bounds,shift)
  add_compile_options(-fsanitize=fuzzer-no-link,${checks} -fno-sanitize-recover=all -fno-omit-frame-pointer -O1 -g1)
  add_link_options(-fsanitize=${checks})
endif()
if(TRIREME_COVERAGE)
  add_compile_options(--coverage -fprofile-update=atomic)
  add_link_options(--coverage)
endif()

# trireme_unity_build(<target> [<files that stay alone>…])
#
# Reading LibTorch's headers takes far longer than most of our files do: with TRIREME_UNITY those of one folder are compiled
# as one. Two that give one name to different things stay alone.
function(trireme_unity_build target)
  if(NOT TRIREME_UNITY)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cpp$")
  if(ARGN)
    list(REMOVE_ITEM sources ${ARGN})
  endif()
  foreach(source IN LISTS sources)
    get_filename_component(folder ${source} DIRECTORY)
    string(MAKE_C_IDENTIFIER "files_${folder}" group)
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()

# A compiler cache gives back files with other times; Ninja knows what a precompiled header depends on.
add_compile_options("$<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp>")
find_program(TRIREME_CCACHE ccache)
if(TRIREME_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # The sloppiness is what ccache asks for before it caches anything that uses a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${TRIREME_CCACHE})
endif()
# LLVM's linker, where it lies beside Clang, takes a fraction of the time of GNU's. mold 1.10 does too, but it lets some programs begin their
# read-only memory in a page that no segment has, which the loader refuses, and with -z norelro it sometimes never ends.
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND NOT CMAKE_CROSSCOMPILING)
  include(CheckLinkerFlag)
  check_linker_flag(CXX -fuse-ld=lld TRIREME_LLD)
  if(TRIREME_LLD)
    add_link_options(-fuse-ld=lld)
  endif()
endif()
