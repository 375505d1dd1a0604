# Finds the Python that the package is built for, and takes LibTorch from its torch unless another one is given.
# Python_EXECUTABLE names it; without it, that of the virtual environment of tools/setup, or the first in PATH.
if(NOT Python_EXECUTABLE AND EXISTS ${PROJECT_SOURCE_DIR}/build/python/bin/python)
  set(Python_EXECUTABLE ${PROJECT_SOURCE_DIR}/build/python/bin/python)
endif()
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
if(NOT Torch_DIR)
  execute_process(COMMAND ${Python_EXECUTABLE} -c "import torch; print(torch.utils.cmake_prefix_path)"
                  OUTPUT_VARIABLE prefix OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failure ERROR_VARIABLE error)
  if(failure)
    message(FATAL_ERROR "TRIREME_PYTHON_PACKAGE needs a torch that ${Python_EXECUTABLE} can import; hint: install torch, or name another "
            "Python by Python_EXECUTABLE\n${error}")
  endif()
  set(Torch_DIR ${prefix}/Torch CACHE PATH "Folder of TorchConfig.cmake")
endif()
