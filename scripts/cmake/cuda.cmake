# Decides whether the CUDA parts are built, and builds the kernel library.
#   GLM53_CUDA=OFF   never
#   GLM53_CUDA=AUTO  when nvcc >= 13.0 is found
#   GLM53_CUDA=ON    an error without it
# Sets GLM53_HAVE_CUDA. No GPU and no driver is needed to build.
set(GLM53_CUDA_ARCHITECTURES "90a-real;121a-real" CACHE STRING "GPU targets of kernels/: H200 and GB10")
set(GLM53_CUDA_MINIMUM 13.0)
# All programs of a carried build (scripts/pack_gpu.sh) share one copy of the kernels.
option(GLM53_SHARED_KERNELS "Build the kernels as a shared library, with the shared CUDA run time" OFF)
set(GLM53_HAVE_CUDA OFF)

if(NOT GLM53_CUDA MATCHES "^(ON|OFF|AUTO)$")
  message(FATAL_ERROR "GLM53_CUDA is '${GLM53_CUDA}': it must be ON, OFF or AUTO")
endif()

if(NOT GLM53_CUDA STREQUAL "OFF")
  # enable_language would stop the configuration where AUTO must go on, so nvcc's version is read first.
  find_program(GLM53_NVCC nvcc HINTS ${CMAKE_CUDA_COMPILER} $ENV{CUDA_PATH}/bin PATHS /usr/local/cuda/bin)
  set(nvcc_version "")
  if(GLM53_NVCC)
    execute_process(COMMAND ${GLM53_NVCC} --version OUTPUT_VARIABLE nvcc_output ERROR_QUIET)
    if(nvcc_output MATCHES "release ([0-9]+\\.[0-9]+)")
      set(nvcc_version ${CMAKE_MATCH_1})
    endif()
  endif()
  if(nvcc_version AND nvcc_version VERSION_GREATER_EQUAL GLM53_CUDA_MINIMUM)
    set(GLM53_HAVE_CUDA ON)
    message(STATUS "CUDA: nvcc ${nvcc_version} (${GLM53_NVCC}), targets ${GLM53_CUDA_ARCHITECTURES}")
  elseif(GLM53_CUDA STREQUAL "ON")
    message(FATAL_ERROR "GLM53_CUDA=ON needs nvcc >= ${GLM53_CUDA_MINIMUM}; found: '${GLM53_NVCC}' '${nvcc_version}'")
  else()
    message(STATUS "CUDA: no nvcc >= ${GLM53_CUDA_MINIMUM}; building the CPU backend only")
  endif()
endif()

if(GLM53_HAVE_CUDA)
  set(CMAKE_CUDA_COMPILER ${GLM53_NVCC})
  set(CMAKE_CUDA_ARCHITECTURES ${GLM53_CUDA_ARCHITECTURES})
  if(GLM53_SHARED_KERNELS)
    set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
    # Programs look for the libraries they are carried with in lib/ beside them. An RPATH, unlike a RUNPATH, holds for
    # the libraries' own needs as well.
    set(CMAKE_BUILD_RPATH "$ORIGIN/lib")
    add_link_options(LINKER:--disable-new-dtags)
  else()
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  endif()
  enable_language(CUDA)
  if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    # CMake 3.25.1 does not know that nvcc has C++20.
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  find_package(CUDAToolkit REQUIRED)
  add_subdirectory(kernels)
endif()
