# trireme_test(<name> SOURCES <files…> [LINK <targets…>] [TORCH none|aten|full] [THOROUGH] [THOROUGH_CASES <patterns…>]
#              [SLOW] [SLOW_CASES <patterns…>] [LEVELS <names…>] [THREADS] [OPTIMISED] [NEEDS <targets…>] [NO_UNITY <files…>])
#
# One test program of GoogleTest cases and one ctest entry, under the label `fast`, which `make test` runs. THOROUGH puts it under
# `thorough`, which continuous integration runs too (`make test-thorough`), and SLOW under `slow` (`make test-slow`). THOROUGH_CASES and
# SLOW_CASES, patterns as --gtest_filter takes them, put these cases alone there, by entries <name>_thorough and <name>_slow; a case
# that both name is slow. LEVELS are `thorough`, `exhaustive` or both, for programs that do more in each case where TRIREME_THOROUGH or
# TRIREME_EXHAUSTIVE is set: entries <name>_thorough, of that label, and <name>_exhaustive, a slow one, run all cases so. THREADS marks
# what `make tsan` runs under the thread sanitizer, with thorough cases and without slow ones. OPTIMISED is for tests that compute for
# seconds themselves; they cannot use TORCH. NEEDS are programs that the test runs, NO_UNITY files that TRIREME_UNITY joins with no other.
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
  cmake_parse_arguments(test "SLOW;THOROUGH;THREADS;OPTIMISED" "TORCH" "SOURCES;LINK;NEEDS;NO_UNITY;SLOW_CASES;THOROUGH_CASES;LEVELS" ${ARGN})
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
  set(thorough_labels thorough)
  set(timeout 300)
  if(test_SLOW)
    set(labels slow)
    set(timeout 1200)
  elseif(test_THOROUGH)
    set(labels thorough)
  endif()
  if(test_THREADS)
    list(APPEND labels threads)
    list(APPEND thorough_labels threads)
    add_dependencies(threaded_tests ${name})
  endif()
  # One process per program and label, not per case: loading LibTorch takes longer than most cases do.
  set(environment
      "TRIREME_BIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY};TRIREME_SOURCE=${PROJECT_SOURCE_DIR};OMP_NUM_THREADS=1")
  set(filter "")
  if(test_SLOW_CASES OR test_THOROUGH_CASES)
    set(others ${test_SLOW_CASES} ${test_THOROUGH_CASES})
    list(JOIN others ":" others)
    set(filter "--gtest_filter=-${others}")
  endif()
  add_test(NAME ${name} COMMAND ${name} --gtest_brief=1 ${filter})
  set_tests_properties(${name} PROPERTIES LABELS "${labels}" TIMEOUT ${timeout} ENVIRONMENT "${environment}")
  if(filter)
    set_tests_properties(${name} PROPERTIES FAIL_REGULAR_EXPRESSION "=] 0 tests from")  # patterns that match everything
  endif()
  list(JOIN test_SLOW_CASES ":" slow)
  list(JOIN test_THOROUGH_CASES ":" thorough)
  if(slow)
    trireme_test_entry(${name} slow "${slow}" slow 1200)
    string(PREPEND slow "-")
  endif()
  if("thorough" IN_LIST test_LEVELS)
    trireme_test_entry(${name} thorough "*${slow}" "${thorough_labels}" 300 TRIREME_THOROUGH=1)
  elseif(thorough)
    trireme_test_entry(${name} thorough "${thorough}${slow}" "${thorough_labels}" 300)
  endif()
  if("exhaustive" IN_LIST test_LEVELS)
    trireme_test_entry(${name} exhaustive "*" slow 1200 TRIREME_EXHAUSTIVE=1)
  endif()
endfunction()

# Adds the ctest entry <name>_<kind>, of those cases of a program that a filter of GoogleTest takes; more arguments are variables of
# its environment.
function(trireme_test_entry name kind filter labels timeout)
  add_test(NAME ${name}_${kind} COMMAND ${name} --gtest_brief=1 "--gtest_filter=${filter}")
  set_tests_properties(${name}_${kind} PROPERTIES LABELS "${labels}" TIMEOUT ${timeout}
                       FAIL_REGULAR_EXPRESSION "=] 0 tests from")  # a pattern that matches nothing
  cmake_language(EVAL CODE "cmake_language(DEFER CALL trireme_same_environment ${name} ${name}_${kind} ${ARGN})")
endfunction()

# Gives one ctest entry the environment of another, after the folder has said all of it, and more variables.
function(trireme_same_environment from to)
  get_property(environment TEST ${from} PROPERTY ENVIRONMENT)
  set_property(TEST ${to} PROPERTY ENVIRONMENT "${environment}" ${ARGN})
endfunction()
