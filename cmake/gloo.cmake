# Gloo, as libgloo-dev installs it. Its own CMake package names the directories of its build machine,
# so the two files are looked for by name. Defines: Gloo::gloo.
find_path(GLOO_INCLUDE_DIR gloo/rendezvous/context.h)
find_library(GLOO_LIBRARY gloo)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Gloo REQUIRED_VARS GLOO_LIBRARY GLOO_INCLUDE_DIR)
if(NOT Gloo_FOUND)
  message(FATAL_ERROR "Gloo is missing: install libgloo-dev")
endif()
if(NOT TARGET Gloo::gloo)
  add_library(Gloo::gloo UNKNOWN IMPORTED)
endif()
set_target_properties(Gloo::gloo PROPERTIES IMPORTED_LOCATION ${GLOO_LIBRARY}
  INTERFACE_INCLUDE_DIRECTORIES ${GLOO_INCLUDE_DIR})
