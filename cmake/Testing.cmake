# trireme_test(<name> SOURCES <files…> [LINK <targets…>] [TORCH none|aten|full] [SLOW] [SLOW_CASES <patterns…>]
#              [THREADS] [EXHAUSTIVE] [OPTIMISED] [NEEDS <targets…>] [NO_UNITY <files…>])
#
# One test program of GoogleTest cases and one ctest entry. SLOW puts it under the label `slow`, which
# `make test` leaves out; SLOW_CASES, patterns as --gtest_filter takes them, puts these cases alone there, by a second entry
# <name>_slow. THREADS marks what `make tsan` runs under the thread sanitizer. EXHAUSTIVE adds a second entry under that label, <name>_exhaustive, which runs the same
# program with TRIREME_EXHAUSTIVE set. OPTIMISED is for tests that compute for seconds themselves; they cannot use TORCH. NEEDS are programs that the test runs, NO_UNITY files that
# TRIREME_UNITY joins with no other.
if(CMAKE_CROSSCOMPILING)
  # Distributions have the library for their own processor, and its sources (package googletest).
  set(INSTALL_GTEST OFF)
  add_subdirectory(/usr/src/googletest ${PROJECT_BINARY_DIR}/googletest EXCLUDE_FROM_ALL)
else()
  find_package(GTest 1.12 REQUIRED)
endif()

add_custom_target(threaded_tests)

# Tests run seconds and compile for minutes: their libraries are optimised, they themselves little. Clang compiles them in
# half of the time without any optimisation, with a precompiled header of their own; GCC was not faster without it.
add_library(trireme_test_options INTERFACE)
target_link_libraries(trireme_test_options INTERFACE trireme_options)
# Tests, and programs that tests start, end quickly, except where a tool reports at their end.
if(NOT TRIREME_SANITIZER AND NOT TRIREME_COVERAGE AND NOT TRIREME_FUZZ)
  add_library(trireme_quick_exit OBJECT ${PROJECT_SOURCE_DIR}/tests/quick_exit.cpp)
  target_link_libraries(trireme_quick_exit PRIVATE trireme_options)
  target_sources(trireme_test_options INTERFACE $<TARGET_OBJECTS:trireme_quick_exit>)
endif()
set(TRIREME_TESTS_BY_CLANG OFF)
if(TRIREME_TORCH AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  set(TRIREME_TESTS_BY_CLANG ON)
  target_compile_options(trireme_test_options INTERFACE
    $<$<AND:$<CONFIG:Release>,$<NOT:$<BOOL:$<TARGET_PROPERTY:TRIREME_OPTIMISED>>>>:-O0>)
  add_library(trireme_test_pch OBJECT ${PROJECT_SOURCE_DIR}/cmake/precompiled.cpp)
  target_link_libraries(trireme_test_pch PRIVATE torch trireme_test_options GTest::gmock)
  target_precompile_headers(trireme_test_pch PRIVATE ${PROJECT_SOURCE_DIR}/cmake/precompiled.h <gmock/gmock.h> <gtest/gtest.h>)
endif()

# trireme_test_program(<target>): a program of tests that includes torch/torch.h, or by Clang any header of LibTorch.
function(trireme_test_program target)
  target_link_libraries(${target} PRIVATE torch trireme_test_options)
  if(TRIREME_TESTS_BY_CLANG)
    target_link_libraries(${target} PRIVATE GTest::gmock)
    target_precompile_headers(${target} REUSE_FROM trireme_test_pch)
  else()
    target_precompile_headers(${target} REUSE_FROM trireme_pch)
  endif()
endfunction()

function(trireme_test name)
  cmake_parse_arguments(test "SLOW;THREADS;EXHAUSTIVE;OPTIMISED" "TORCH" "SOURCES;LINK;NEEDS;NO_UNITY;SLOW_CASES" ${ARGN})
  add_executable(${name} ${test_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${test_LINK} trireme_test_options GTest::gmock GTest::gtest_main)
  if(test_OPTIMISED)
    set_target_properties(${name} PROPERTIES TRIREME_OPTIMISED ON)
  endif()
  if(test_OPTIMISED OR NOT TRIREME_TESTS_BY_CLANG)
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
  # Clang loads all of LibTorch precompiled faster than it reads single headers, GCC does not.
  if(test_TORCH STREQUAL "full" OR (test_TORCH STREQUAL "aten" AND TRIREME_TESTS_BY_CLANG))
    trireme_test_program(${name})
  endif()
  trireme_unity_build(${name} ${test_NO_UNITY})
  if(test_NEEDS)
    add_dependencies(${name} ${test_NEEDS})
  endif()
  set(labels fast)
  set(timeout 300)
  if(test_SLOW)
    set(labels slow)
    set(timeout 1200)
  endif()
  if(test_THREADS)
    list(APPEND labels threads)
    add_dependencies(threaded_tests ${name})
  endif()
  # One process per program, not per case: loading LibTorch takes longer than most cases do.
  set(filter "")
  if(test_SLOW_CASES)
    list(JOIN test_SLOW_CASES ":" slow_cases)
    set(filter "--gtest_filter=-${slow_cases}")
    add_test(NAME ${name}_slow COMMAND ${name} --gtest_brief=1 "--gtest_filter=${slow_cases}")
    set_tests_properties(${name}_slow PROPERTIES LABELS slow TIMEOUT 1200
                         FAIL_REGULAR_EXPRESSION "=] 0 tests from")  # a pattern that matches nothing
    cmake_language(EVAL CODE "cmake_language(DEFER CALL trireme_same_environment ${name} ${name}_slow)")
  endif()
  add_test(NAME ${name} COMMAND ${name} --gtest_brief=1 ${filter})
  set(environment
      "TRIREME_BIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY};TRIREME_SOURCE=${PROJECT_SOURCE_DIR};OMP_NUM_THREADS=1")
  set_tests_properties(${name} PROPERTIES LABELS "${labels}" TIMEOUT ${timeout} ENVIRONMENT "${environment}")
  if(test_EXHAUSTIVE)
    add_test(NAME ${name}_exhaustive COMMAND ${name} --gtest_brief=1)
    set_tests_properties(${name}_exhaustive PROPERTIES LABELS slow TIMEOUT 1200 ENVIRONMENT
      "${environment};TRIREME_EXHAUSTIVE=1")
  endif()
endfunction()

# Gives one ctest entry the environment of another, after the folder has said all of it.
function(trireme_same_environment from to)
  get_property(environment TEST ${from} PROPERTY ENVIRONMENT)
  set_property(TEST ${to} PROPERTY ENVIRONMENT "${environment}")
endfunction()
