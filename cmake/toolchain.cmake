# Warnings, sanitizers, linker and compiler cache for every target of ours.

add_library(troupe_flags INTERFACE)
target_compile_options(troupe_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror -ffp-contract=off)
# g++ 12 reports these inside its own <string> and <optional> when optimising; they are false there.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(troupe_flags INTERFACE
    -Wno-restrict -Wno-maybe-uninitialized -Wno-stringop-overflow -Wno-array-bounds
    -Wno-dangling-pointer)
endif()

if(TROUPE_SANITIZE)
  add_compile_options(-fsanitize=${TROUPE_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${TROUPE_SANITIZE})
  if(TROUPE_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=undefined -fno-sanitize=vptr)
    # clang's check of called types does not assemble in coroutines ("across sections", clang 14).
    add_compile_options($<$<CXX_COMPILER_ID:Clang>:-fno-sanitize=function>)
  endif()
endif()

find_program(TROUPE_LLD ld.lld)
if(TROUPE_LLD AND NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  add_link_options(-fuse-ld=lld)
endif()

find_program(TROUPE_CCACHE ccache)
if(TROUPE_CCACHE)
  # PCH needs this sloppiness, or ccache never hits a torch source.
  set(cache_launcher ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1 ${TROUPE_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${cache_launcher})
  set(CMAKE_C_COMPILER_LAUNCHER ${cache_launcher})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-fpch-preprocess)
  endif()
endif()

# -O2 keeps the build short; the kernels that need more ask for it themselves.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_CXX_FLAGS_DEBUG "-Og -g1")
