# Run by ctest: `cmake --install`, then the consumer project with find_package(Trireme), then its program over two ranks.
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()
file(REMOVE_RECURSE ${WORK})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/install)
run(${CMAKE_COMMAND} -S ${PROJECT} -B ${WORK}/build -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=${CXX}
    -DCMAKE_PREFIX_PATH=${WORK}/install)
run(${CMAKE_COMMAND} --build ${WORK}/build)
run(${WORK}/install/bin/trireme run -n 2 -- ${WORK}/build/consumer)
