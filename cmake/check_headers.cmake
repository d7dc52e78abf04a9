# `check_headers`: every header compiles alone. The sources are one include each. Headers that name
# LibTorch are left out of builds without it.

file(GLOB_RECURSE troupe_headers CONFIGURE_DEPENDS
  ${CMAKE_SOURCE_DIR}/runtime/*.hpp ${CMAKE_SOURCE_DIR}/placement/*.hpp
  ${CMAKE_SOURCE_DIR}/reshard/*.hpp ${CMAKE_SOURCE_DIR}/actors/*.hpp ${CMAKE_SOURCE_DIR}/sim/*.hpp)
set(header_sources "")
foreach(header ${troupe_headers})
  file(STRINGS ${header} names_torch REGEX "#include <(torch|ATen|c10)/")
  if(names_torch AND NOT TROUPE_TORCH)
    continue()
  endif()
  file(RELATIVE_PATH relative ${CMAKE_SOURCE_DIR} ${header})
  string(REPLACE "/" "_" stem ${relative})
  set(source ${CMAKE_BINARY_DIR}/check_headers/${stem}.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "#include \"${relative}\"\n")
  list(APPEND header_sources ${source})
endforeach()
if(header_sources)
  add_library(check_headers OBJECT EXCLUDE_FROM_ALL ${header_sources})
  target_compile_options(check_headers PRIVATE -O0 -Wno-psabi)
  target_include_directories(check_headers PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(check_headers PRIVATE troupe_flags schemas fmt::fmt tl::expected Threads::Threads
    nlohmann_json::nlohmann_json CAF::core $<TARGET_NAME_IF_EXISTS:troupe_torch>)
endif()
