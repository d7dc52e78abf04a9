# LibTorch behind one target, `troupe_torch`, and one precompiled header that every source that
# includes torch shares: ~20 s and 1 GB a source without it.
#
# CMAKE_PREFIX_PATH chooses another LibTorch than the system's. The CMake files of a CUDA build of it
# (every wheel on PyPI is one) insist on a toolkit of its own version and compile device code to
# find out about it; no source here calls LibTorch's CUDA side, so its CPU libraries are taken by
# name, with TROUPE_CUDA (our own CUDA and NCCL parts, cmake/nccl.cmake) as without.

find_file(TROUPE_TORCH_CONFIG TorchConfig.cmake
  PATH_SUFFIXES share/cmake/Torch lib/cmake/Torch lib/${CMAKE_LIBRARY_ARCHITECTURE}/cmake/Torch)
set(torch_prefix "")
if(TROUPE_TORCH_CONFIG MATCHES "^(.*)/share/cmake/Torch/TorchConfig.cmake$")
  set(torch_prefix ${CMAKE_MATCH_1})
endif()

add_library(troupe_torch INTERFACE)
if(torch_prefix AND EXISTS ${torch_prefix}/lib/libtorch_cuda.so)
  set(Torch_VERSION "unknown")
  if(EXISTS ${torch_prefix}/share/cmake/Torch/TorchConfigVersion.cmake)
    include(${torch_prefix}/share/cmake/Torch/TorchConfigVersion.cmake)
    set(Torch_VERSION ${PACKAGE_VERSION})
  endif()
  message(STATUS "LibTorch ${Torch_VERSION}, the CPU libraries of a CUDA build: ${torch_prefix}")
  set(TORCH_INCLUDE_DIRS ${torch_prefix}/include ${torch_prefix}/include/torch/csrc/api/include)
  set(TORCH_LIBRARIES ${torch_prefix}/lib/libtorch_cpu.so ${torch_prefix}/lib/libc10.so)
  file(STRINGS ${TROUPE_TORCH_CONFIG} TORCH_CXX_FLAGS REGEX "_GLIBCXX_USE_CXX11_ABI=[01]")
  string(REGEX MATCH "-D_GLIBCXX_USE_CXX11_ABI=[01]" TORCH_CXX_FLAGS "${TORCH_CXX_FLAGS}")
  set(TROUPE_TORCH_BY_CONFIG OFF)
else()
  find_package(Torch REQUIRED)
  message(STATUS "LibTorch ${Torch_VERSION}")
  set(TROUPE_TORCH_BY_CONFIG ON)
endif()
if("${TORCH_CXX_FLAGS}" MATCHES "_GLIBCXX_USE_CXX11_ABI=0")
  message(FATAL_ERROR "LibTorch ${Torch_VERSION} is built for the old ABI of libstdc++, which the "
    "system's fmt, yaml-cpp and GoogleTest are not; take PyPI's torch 2.6 or later")
endif()

foreach(directory ${TORCH_INCLUDE_DIRS})
  target_include_directories(troupe_torch SYSTEM INTERFACE $<BUILD_INTERFACE:${directory}>)
endforeach()
target_link_libraries(troupe_torch INTERFACE ${TORCH_LIBRARIES})
separate_arguments(torch_flags UNIX_COMMAND "${TORCH_CXX_FLAGS}")
target_compile_options(troupe_torch INTERFACE ${torch_flags})

file(WRITE ${CMAKE_BINARY_DIR}/torch_pch.cpp "// holds the precompiled header only\n")
add_library(troupe_torch_pch OBJECT ${CMAKE_BINARY_DIR}/torch_pch.cpp)
target_link_libraries(troupe_torch_pch PRIVATE troupe_flags troupe_torch)
target_include_directories(troupe_torch_pch PRIVATE ${CMAKE_SOURCE_DIR})
target_precompile_headers(troupe_torch_pch PRIVATE <torch/autograd.h> <torch/types.h> <torch/utils.h>)
