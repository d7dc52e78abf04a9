# LibTorch behind one target, `troupe_torch`, and one precompiled header that every source that
# includes torch shares: ~20 s and 1 GB a source without it.

find_package(Torch REQUIRED)
message(STATUS "LibTorch ${Torch_VERSION}")

add_library(troupe_torch INTERFACE)
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
target_precompile_headers(troupe_torch_pch PRIVATE <torch/torch.h>)
