# SPDX-License-Identifier: Apache-2.0
# Run by ctest: the compiler has to find an error in every line that is marked, or in a template that it is the reason
# for, and in no other.
#
#   cmake -D "COMPILE=<compiler;options…>" -D FILE=<source> [-D EXPECTED=<regular expression>] -P expect_errors.cmake
execute_process(COMMAND ${COMPILE} ${FILE} OUTPUT_VARIABLE output ERROR_VARIABLE output)
get_filename_component(name ${FILE} NAME)
file(READ ${FILE} source)
string(REPLACE ";" "," source "${source}")
string(REPLACE "\n" ";" lines "${source}")
set(number 0)
foreach(line IN LISTS lines)
  math(EXPR number "${number} + 1")
  string(FIND "${line}" "// refused" is_marked)
  string(REGEX MATCH "${name}:${number}:[0-9]+: +(error|required from|note: in instantiation)" is_refused "${output}")
  if(is_marked GREATER -1 AND NOT is_refused)
    message(FATAL_ERROR "line ${number} compiles:\n${line}\n${output}")
  elseif(is_marked EQUAL -1 AND is_refused)
    message(FATAL_ERROR "line ${number} does not compile:\n${line}\n${output}")
  endif()
endforeach()
if(EXPECTED AND NOT output MATCHES "${EXPECTED}")
  message(FATAL_ERROR "the compiler says nothing that matches '${EXPECTED}':\n${output}")
endif()
