# `cmake --install` and the package that `find_package(Troupe)` reads.
#
# Two export sets, so that a torch-free program never looks for LibTorch:
#   Troupe::<library>                 everything that does not reach LibTorch
#   Troupe::<library> with COMPONENTS torch   the rest (built with TROUPE_TORCH only)
# Headers keep their layout under include/troupe: #include "runtime/batch/batch.hpp".

include(CMakePackageConfigHelpers)

# Sets `out` to TRUE when `target` links troupe_torch, directly or through other targets of ours.
function(troupe_reaches_torch target out)
  set(${out} FALSE PARENT_SCOPE)
  set(queue ${target})
  set(seen "")
  while(queue)
    list(POP_FRONT queue current)
    if(current IN_LIST seen OR NOT TARGET ${current})
      continue()
    endif()
    list(APPEND seen ${current})
    if(current STREQUAL "troupe_torch")
      set(${out} TRUE PARENT_SCOPE)
      return()
    endif()
    get_target_property(is_imported ${current} IMPORTED)
    if(is_imported)
      continue()
    endif()
    get_target_property(direct ${current} INTERFACE_LINK_LIBRARIES)
    if(direct)
      string(REGEX REPLACE "\\$<LINK_ONLY:([^>]*)>" "\\1" direct "${direct}")
      list(APPEND queue ${direct})
    endif()
  endwhile()
endfunction()

set(troupe_package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/Troupe)
get_property(troupe_libraries GLOBAL PROPERTY troupe_libraries)
set(torch_libraries "")
foreach(library ${troupe_libraries})
  get_target_property(type ${library} TYPE)
  if(type STREQUAL "STATIC_LIBRARY")
    set_target_properties(${library} PROPERTIES OUTPUT_NAME troupe_${library})
  endif()
  troupe_reaches_torch(${library} needs_torch)
  if(needs_torch)
    list(APPEND torch_libraries ${library})
  endif()
endforeach()
set(core_libraries ${troupe_libraries})
if(torch_libraries)
  list(REMOVE_ITEM core_libraries ${torch_libraries})
endif()

install(TARGETS ${core_libraries} EXPORT TroupeTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
install(EXPORT TroupeTargets NAMESPACE Troupe:: DESTINATION ${troupe_package_folder}
  COMPONENT development)
if(TROUPE_TORCH)
  install(TARGETS ${torch_libraries} troupe_torch EXPORT TroupeTorchTargets
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development_torch)
  install(EXPORT TroupeTorchTargets NAMESPACE Troupe:: DESTINATION ${troupe_package_folder}
    COMPONENT development_torch)
endif()

foreach(layer runtime placement reshard actors sim)
  install(DIRECTORY ${layer} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/troupe
    COMPONENT development FILES_MATCHING PATTERN "*.hpp")
endforeach()
foreach(folder training troupe)
  install(DIRECTORY apps/${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/troupe/apps
    COMPONENT development FILES_MATCHING PATTERN "*.hpp")
endforeach()

if(NOT DEFINED TROUPE_TORCH_BY_CONFIG)
  set(TROUPE_TORCH_BY_CONFIG OFF)
endif()
configure_package_config_file(cmake/TroupeConfig.cmake.in
  ${CMAKE_BINARY_DIR}/package/TroupeConfig.cmake INSTALL_DESTINATION ${troupe_package_folder})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/package/TroupeConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/package/TroupeConfig.cmake
  ${CMAKE_BINARY_DIR}/package/TroupeConfigVersion.cmake cmake/FindCAF.cmake cmake/gloo.cmake
  DESTINATION ${troupe_package_folder} COMPONENT development)
if(EXISTS ${CMAKE_SOURCE_DIR}/LICENSE)
  install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT development)
endif()
