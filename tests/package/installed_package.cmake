# Proves that an installed Troupe can be used from outside its tree: installs the development files
# to an empty prefix, copies each example elsewhere, configures it with nothing but
# CMAKE_PREFIX_PATH, builds it and runs its tests.
#
#   cmake -DTROUPE_BINARY_DIR=… -DTROUPE_SOURCE_DIR=… [-DWITH_TORCH=ON] -P installed_package.cmake

cmake_minimum_required(VERSION 3.25)

function(run_step what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${what} failed (${status}); its files are in ${work}:\n${output}")
  endif()
  message(STATUS "${what}: ok")
endfunction()

if(DEFINED ENV{TMPDIR})
  set(temporary $ENV{TMPDIR})
else()
  set(temporary /tmp)
endif()
string(RANDOM LENGTH 12 suffix)
set(work ${temporary}/troupe-package-${suffix})
set(prefix ${work}/prefix)

run_step("install" ${CMAKE_COMMAND} --install ${TROUPE_BINARY_DIR} --prefix ${prefix} --component development)
if(WITH_TORCH)
  run_step("install torch part" ${CMAKE_COMMAND} --install ${TROUPE_BINARY_DIR} --prefix ${prefix}
    --component development_torch)
endif()
run_step("install programs" ${CMAKE_COMMAND} --install ${TROUPE_BINARY_DIR} --prefix ${prefix}
  --component programs)

file(GLOB examples ${TROUPE_SOURCE_DIR}/apps/examples/*/CMakeLists.txt)
if(NOT WITH_TORCH)
  list(FILTER examples EXCLUDE REGEX "/custom_training/")
else()
  list(APPEND examples ${TROUPE_SOURCE_DIR}/tests/package/torch_component/CMakeLists.txt)
endif()
if(NOT examples)
  message(FATAL_ERROR "no examples under ${TROUPE_SOURCE_DIR}/apps/examples")
endif()
foreach(example ${examples})
  cmake_path(GET example PARENT_PATH folder)
  cmake_path(GET folder FILENAME name)
  file(COPY ${folder} DESTINATION ${work}/source)
  set(build ${work}/build/${name})
  run_step("configure ${name}" ${CMAKE_COMMAND} -S ${work}/source/${name} -B ${build} -G Ninja
    -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER})
  run_step("build ${name}" ${CMAKE_COMMAND} --build ${build})
  run_step("run ${name}" ${CMAKE_CTEST_COMMAND} --test-dir ${build} --output-on-failure --no-tests=error)
endforeach()
file(REMOVE_RECURSE ${work})
