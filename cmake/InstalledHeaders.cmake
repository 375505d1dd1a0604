# The headers that are installed: those that the umbrella header and the list below reach. All others are internal.
#
#   trireme_installed_headers(<variable> <folder of the sources>)
#   cmake -P cmake/InstalledHeaders.cmake      prints them, one a line
cmake_policy(VERSION 3.25)  # scripts begin without one
set(TRIREME_PUBLIC_HEADERS
  trireme/trireme.h
  # Public, but too special for the umbrella header; the guide "Adding a rule" and examples include them.
  trireme/data/text/make_bert_pairs.h
  trireme/data/text/word_piece_training.h
  trireme/optim/lamb.h
  trireme/report/number.h
  trireme/tensor/rules/rule_table.h
  trireme/tensor/rules/across.h
  trireme/tensor/rules/contraction.h
  trireme/tensor/rules/einsum_rule.h)

function(trireme_installed_headers variable sources)
  set(reached "")
  set(waiting ${TRIREME_PUBLIC_HEADERS})
  while(waiting)
    list(POP_FRONT waiting header)
    if(header IN_LIST reached)
      continue()
    endif()
    if(NOT EXISTS ${sources}/${header})
      message(FATAL_ERROR "cmake/InstalledHeaders.cmake names ${header}, which does not exist; name the header that took its place")
    endif()
    string(REGEX MATCHALL "/" folders ${header})
    list(LENGTH folders depth)
    if(depth GREATER 3)
      message(FATAL_ERROR "${header} is public, and in more than two folders of trireme/; move it up, or include it in sources only")
    endif()
    list(APPEND reached ${header})
    file(STRINGS ${sources}/${header} lines REGEX "^ *# *include *<trireme/")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE ".*<([^>]+)>.*" "\\1" included "${line}")
      if(NOT EXISTS ${sources}/${included})
        message(FATAL_ERROR "${header} includes ${included}, which does not exist; include the header that took its place")
      endif()
      list(APPEND waiting ${included})
    endforeach()
  endwhile()
  list(SORT reached)
  set(${variable} ${reached} PARENT_SCOPE)
endfunction()

if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH folder)
  trireme_installed_headers(headers ${folder})
  list(JOIN headers "\n" text)
  execute_process(COMMAND ${CMAKE_COMMAND} -E echo "${text}")  # message() writes to the error output
endif()
