# SPDX-License-Identifier: Apache-2.0
# Run by ctest: a program has to end with 0 and to print something that matches. PASS_REGULAR_EXPRESSION alone would
# take the text for enough, whatever the exit code.
#
#   cmake -D COMMAND=<program;arguments…> -D EXPECTED=<regular expression> -P expect_output.cmake
execute_process(COMMAND ${COMMAND} OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE code)
message("${output}")
if(NOT code STREQUAL "0")
  message(FATAL_ERROR "ended with ${code}, expected 0")
endif()
if(NOT output MATCHES "${EXPECTED}")
  message(FATAL_ERROR "printed nothing that matches '${EXPECTED}'")
endif()
