# trireme_test(<name> SOURCES <files…> [LINK <targets…>] [TORCH none|aten|full] [SLOW] [EXHAUSTIVE] [NEEDS <targets…>]
#              [ALONE <files…>])
#
# One test program of GoogleTest cases and one ctest entry. SLOW puts it under the label `slow`, which
# `make test` leaves out. EXHAUSTIVE adds a second entry under that label, <name>_exhaustive, which runs the same
# program with TRIREME_EXHAUSTIVE set. NEEDS are programs that the test runs, ALONE files that
# TRIREME_UNITY joins with no other.
if(CMAKE_CROSSCOMPILING)
  # Distributions have the library for their own processor, and its sources (package googletest).
  set(INSTALL_GTEST OFF)
  add_subdirectory(/usr/src/googletest ${PROJECT_BINARY_DIR}/googletest EXCLUDE_FROM_ALL)
else()
  find_package(GTest 1.12 REQUIRED)
endif()
function(trireme_test name)
  cmake_parse_arguments(test "SLOW;EXHAUSTIVE" "TORCH" "SOURCES;LINK;NEEDS;ALONE" ${ARGN})
  add_executable(${name} ${test_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${test_LINK} trireme_options GTest::gmock GTest::gtest_main)
  # Tests run seconds and compile for minutes: what they test is optimised, they themselves are little.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  if(test_TORCH STREQUAL "full")
    target_link_libraries(${name} PRIVATE torch)
    target_precompile_headers(${name} REUSE_FROM trireme_pch)
  endif()
  trireme_joined(${name} ${test_ALONE})
  if(test_NEEDS)
    add_dependencies(${name} ${test_NEEDS})
  endif()
  set(labels fast)
  set(timeout 300)
  if(test_SLOW)
    set(labels slow)
    set(timeout 1200)
  endif()
  # One process per program, not per case: loading LibTorch takes longer than most cases do.
  add_test(NAME ${name} COMMAND ${name} --gtest_brief=1)
  set(environment
      "TRIREME_BIN=${CMAKE_RUNTIME_OUTPUT_DIRECTORY};TRIREME_SOURCE=${PROJECT_SOURCE_DIR};OMP_NUM_THREADS=1")
  set_tests_properties(${name} PROPERTIES LABELS ${labels} TIMEOUT ${timeout} ENVIRONMENT "${environment}")
  if(test_EXHAUSTIVE)
    add_test(NAME ${name}_exhaustive COMMAND ${name} --gtest_brief=1)
    set_tests_properties(${name}_exhaustive PROPERTIES LABELS slow TIMEOUT 1200 ENVIRONMENT
      "${environment};TRIREME_EXHAUSTIVE=1")
  endif()
endfunction()
