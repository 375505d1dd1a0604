# Run by ctest: `cmake --install`, then the consumer project with find_package(Trireme), then its program over two ranks;
# then the same program without CMake, by pkg-config. What was installed must need nothing of the folders it was built in.
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()
file(REMOVE_RECURSE ${WORK})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/install)

# The one path of the build that may be named is that of LibTorch, which is asked for last.
file(GLOB_RECURSE texts ${WORK}/install/*.cmake ${WORK}/install/*.pc)
foreach(text IN LISTS texts)
  file(STRINGS ${text} lines)
  foreach(line IN LISTS lines)
    string(REPLACE "${TORCH}" "" line "${line}")
    if(line MATCHES "${BUILD}" OR line MATCHES "${SOURCE}/")
      message(FATAL_ERROR "${text} names a folder of the build: ${line}")
    endif()
    if(line MATCHES "(JPEG|PNG|PCRE2|UTF8PROC|LIBDEFLATE|nlohmann_json|OpenSSL|ZLIB)")
      message(FATAL_ERROR "${text} asks programs for a library that only Trireme's own sources use: ${line}")
    endif()
  endforeach()
endforeach()

# LibTorch is the consumer's own, and the recipes of the guide are used.
run(${CMAKE_COMMAND} -S ${PROJECT} -B ${WORK}/build -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=${CXX}
    -DCMAKE_PREFIX_PATH=${WORK}/install -DTorch_DIR=${TORCH}/share/cmake/Torch)
run(${CMAKE_COMMAND} --build ${WORK}/build)
run(${WORK}/install/bin/trireme run -n 2 -- ${WORK}/build/consumer)

# One of another minor version is refused with both versions.
file(WRITE ${WORK}/other/TorchConfig.cmake "")
file(WRITE ${WORK}/other/TorchConfigVersion.cmake "set(PACKAGE_VERSION 1.0.0)\nset(PACKAGE_VERSION_COMPATIBLE TRUE)\n")
execute_process(COMMAND ${CMAKE_COMMAND} -S ${PROJECT} -B ${WORK}/refused -G Ninja -DCMAKE_CXX_COMPILER=${CXX}
    -DCMAKE_PREFIX_PATH=${WORK}/install -DTorch_DIR=${WORK}/other RESULT_VARIABLE code ERROR_VARIABLE message OUTPUT_QUIET)
string(REGEX REPLACE "[ \n]+" " " message "${message}")
if(code EQUAL 0 OR NOT message MATCHES "has 1.0.0; expected [0-9.]+x")
  message(FATAL_ERROR "a LibTorch of another minor version was not refused: ${message}")
endif()

find_program(pkg_config pkg-config REQUIRED)
set(ENV{PKG_CONFIG_PATH} ${WORK}/install/lib/pkgconfig)
execute_process(COMMAND ${pkg_config} --define-variable=torch=${TORCH} --cflags --libs trireme OUTPUT_VARIABLE flags
                OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
separate_arguments(flags UNIX_COMMAND "${flags}")
run(${CXX} ${PROJECT}/main.cpp -o ${WORK}/by_pkg_config ${flags})
run(${WORK}/install/bin/trireme run -n 2 -- ${WORK}/by_pkg_config)
