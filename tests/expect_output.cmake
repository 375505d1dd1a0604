# SPDX-License-Identifier: Apache-2.0
# Run by ctest: a program has to end with 0, or with CODE, and to print something that matches. PASS_REGULAR_EXPRESSION alone would
# take the text for enough, whatever the exit code.
#
#   cmake -D COMMAND=<program;arguments…> -D EXPECTED=<regular expression>
#         [-D BETWEEN=<regular expression with a group that is a number;least;most>] [-D CODE=<number>] -P expect_output.cmake
if(NOT DEFINED CODE)
  set(CODE 0)
endif()
execute_process(COMMAND ${COMMAND} OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE code)
message("${output}")
if(NOT code STREQUAL CODE)
  message(FATAL_ERROR "ended with ${code}, expected ${CODE}")
endif()
if(NOT output MATCHES "${EXPECTED}")
  message(FATAL_ERROR "printed nothing that matches '${EXPECTED}'")
endif()
if(BETWEEN)
  list(GET BETWEEN 0 shown)
  list(GET BETWEEN 1 least)
  list(GET BETWEEN 2 most)
  if(NOT output MATCHES "${shown}")
    message(FATAL_ERROR "printed nothing that matches '${shown}'")
  endif()
  set(number ${CMAKE_MATCH_1})
  if(number LESS least OR number GREATER most OR NOT number MATCHES "^-?[0-9]")
    message(FATAL_ERROR "printed ${number}, expected ${least} to ${most}")
  endif()
endif()
