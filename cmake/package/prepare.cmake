# Read by CPack when the files of a package lie in a folder of their own. Takes the path of the LibTorch that Trireme was built
# with out of them, and finds the Debian packages that they depend on.
set(root ${CPACK_TEMPORARY_INSTALL_DIRECTORY})
if(CPACK_GENERATOR STREQUAL "DEB")
  string(APPEND root ${CPACK_PACKAGING_INSTALL_PREFIX})
endif()
set(libraries ${root}/${CPACK_TRIREME_LIBDIR})

file(GLOB_RECURSE texts ${root}/*.cmake ${root}/*.pc)
foreach(file IN LISTS texts)
  file(READ ${file} text)
  string(REPLACE ${CPACK_TRIREME_TORCH_DIR} ${CPACK_TRIREME_LIBTORCH_FOLDER}/share/cmake/Torch text "${text}")
  string(REPLACE ${CPACK_TRIREME_TORCH_PREFIX} ${CPACK_TRIREME_LIBTORCH_FOLDER} text "${text}")
  file(WRITE ${file} "${text}")
endforeach()
# What links LibTorch looks for it there alone.
file(GLOB objects ${root}/bin/* ${libraries}/trireme/*.so)
foreach(file IN LISTS objects)
  execute_process(COMMAND readelf -d ${file} OUTPUT_VARIABLE dynamic COMMAND_ERROR_IS_FATAL ANY)
  if(dynamic MATCHES "R(UN)?PATH\\) +Library r(un)?path: \\[([^]]*${CPACK_TRIREME_TORCH_PREFIX}[^]]*)\\]")
    file(RPATH_CHANGE FILE ${file} OLD_RPATH ${CMAKE_MATCH_3} NEW_RPATH ${CPACK_TRIREME_LIBTORCH_FOLDER}/lib)
  endif()
  execute_process(COMMAND ${CPACK_TRIREME_STRIP} --strip-unneeded ${file} COMMAND_ERROR_IS_FATAL ANY)
endforeach()

if(NOT CPACK_GENERATOR STREQUAL "DEB")
  return()
endif()
file(RENAME ${root}/share/doc/trireme/CHANGELOG.md ${root}/share/doc/trireme/changelog)
execute_process(COMMAND gzip --best --no-name ${root}/share/doc/trireme/changelog COMMAND_ERROR_IS_FATAL ANY)

# trireme_depends(<variable> <files…>): what dpkg-shlibdeps says of them. LibTorch belongs to no package.
set(folder ${CPACK_TOPLEVEL_DIRECTORY}/depends)
file(WRITE ${folder}/debian/control "Source: trireme\n\nPackage: trireme\nArchitecture: any\n")
function(trireme_depends variable)
  execute_process(COMMAND dpkg-shlibdeps -O --ignore-missing-info -l${CPACK_TRIREME_TORCH_PREFIX}/lib ${ARGN}
                  WORKING_DIRECTORY ${folder} OUTPUT_VARIABLE output ERROR_VARIABLE messages RESULT_VARIABLE code)
  if(NOT code EQUAL 0 OR NOT output MATCHES "shlibs:Depends=([^\n]+)")
    message(FATAL_ERROR "dpkg-shlibdeps failed; hint: it is in the package dpkg-dev\n${messages}")
  endif()
  string(REPLACE ", " ";" packages "${CMAKE_MATCH_1}")
  set(${variable} ${packages} PARENT_SCOPE)
endfunction()

# Programs that link the static libraries need shared objects too: those of one that has all of them whole.
file(GLOB archives ${libraries}/libtrireme_*.a)
list(TRANSFORM CPACK_TRIREME_SHARED_OBJECTS PREPEND -l: OUTPUT_VARIABLE objects)
execute_process(COMMAND ${CPACK_TRIREME_COMPILER} -shared -o ${folder}/everything.so -Wl,--whole-archive ${archives}
                        -Wl,--no-whole-archive ${objects} -L${CPACK_TRIREME_TORCH_PREFIX}/lib -ltorch -ltorch_cpu -lc10
                COMMAND_ERROR_IS_FATAL ANY)
trireme_depends(depends ${folder}/everything.so ${root}/bin/trireme ${libraries}/trireme/trireme_torch.so)
# The engine over MPI is loaded when a program asks for it. Debian's MPI is where the loader looks by itself.
set(recommends "")
if(EXISTS ${libraries}/trireme/trireme_mpi.so)
  file(RPATH_REMOVE FILE ${libraries}/trireme/trireme_mpi.so)
  trireme_depends(recommends ${libraries}/trireme/trireme_mpi.so)
  list(REMOVE_ITEM recommends ${depends})
  list(FILTER recommends EXCLUDE REGEX "^lib(c6|stdc\\+\\+6|gcc-s1) ")
endif()
list(JOIN depends ", " CPACK_DEBIAN_PACKAGE_DEPENDS)
list(JOIN recommends ", " CPACK_DEBIAN_PACKAGE_RECOMMENDS)
