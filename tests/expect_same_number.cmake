# SPDX-License-Identifier: Apache-2.0
# Run by ctest: two programs have to end with 0 and to print the same number, up to a bound.
#
#   cmake -D ALONE=<program;arguments…> -D COMMAND=<program;arguments…>
#         -D SHOWN=<regular expression with a group that is a decimal number> -D BOUND=<number> -P expect_same_number.cmake

# Sets `result` to a decimal number in millionths, because CMake computes with integers.
function(in_millionths result number)
  if(NOT number MATCHES "^([0-9]+)[.]?([0-9]*)$")
    message(FATAL_ERROR "${number} is no decimal number")
  endif()
  string(SUBSTRING "${CMAKE_MATCH_2}000000" 0 6 fraction)
  string(REGEX MATCH "[1-9][0-9]*$|0$" number "${CMAKE_MATCH_1}${fraction}")
  set(${result} ${number} PARENT_SCOPE)
endfunction()

foreach(program ALONE COMMAND)
  execute_process(COMMAND ${${program}} OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE code)
  message("${output}")
  if(NOT code STREQUAL "0")
    message(FATAL_ERROR "ended with ${code}, expected 0")
  endif()
  if(NOT output MATCHES "${SHOWN}")
    message(FATAL_ERROR "printed nothing that matches '${SHOWN}'")
  endif()
  in_millionths(${program}_number ${CMAKE_MATCH_1})
endforeach()
in_millionths(bound ${BOUND})
math(EXPR difference "${COMMAND_number} - ${ALONE_number}")
if(difference GREATER bound OR difference LESS -${bound})
  message(FATAL_ERROR "the numbers differ by ${difference} millionths, expected at most ${bound}")
endif()
