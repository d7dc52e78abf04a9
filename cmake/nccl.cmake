# NCCL's and CUDA's headers, wherever they are; neither is needed to build Troupe.
#
#   nccl_abi_check      compiles wherever nccl.h is found
#   reshard_nccl_linked code that links NCCL and cudart: TROUPE_CUDA only, and then required

set(cuda_places /usr/local/cuda $ENV{CUDA_HOME} $ENV{NCCL_HOME})
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${cuda_places} PATH_SUFFIXES include)
find_path(CUDART_INCLUDE_DIR cuda_runtime_api.h HINTS ${cuda_places} PATH_SUFFIXES include)
mark_as_advanced(NCCL_INCLUDE_DIR CUDART_INCLUDE_DIR)

if(NCCL_INCLUDE_DIR AND CUDART_INCLUDE_DIR)
  add_library(nccl_headers INTERFACE)
  target_include_directories(nccl_headers SYSTEM INTERFACE ${NCCL_INCLUDE_DIR} ${CUDART_INCLUDE_DIR})
  add_library(nccl_abi_check OBJECT ${CMAKE_SOURCE_DIR}/reshard/nccl/abi_check_nccl.cpp)
  target_include_directories(nccl_abi_check PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(nccl_abi_check PRIVATE troupe_flags nccl_headers)
elseif(TROUPE_CUDA)
  message(FATAL_ERROR "TROUPE_CUDA: no nccl.h or no cuda_runtime_api.h; set CUDA_HOME or NCCL_HOME")
endif()

if(TROUPE_CUDA)
  find_library(NCCL_LIBRARY nccl HINTS ${cuda_places} PATH_SUFFIXES lib lib64 REQUIRED)
  find_library(CUDART_LIBRARY cudart HINTS ${cuda_places} PATH_SUFFIXES lib lib64 REQUIRED)
  mark_as_advanced(NCCL_LIBRARY CUDART_LIBRARY)
  add_library(reshard_nccl_linked STATIC
    ${CMAKE_SOURCE_DIR}/reshard/nccl/linked_libraries_nccl.cpp)
  target_link_libraries(reshard_nccl_linked PRIVATE troupe_flags nccl_headers
    PUBLIC reshard_nccl ${NCCL_LIBRARY} ${CUDART_LIBRARY})
endif()
