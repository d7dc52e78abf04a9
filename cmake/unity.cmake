# With TROUPE_UNITY the sources of a library are compiled a dozen at a time: headers are most of what a
# source costs, so that a build from scratch takes about half the time. `./run` and `./check` build so
# (preset release); all other presets compile every source by itself, which is what shows a missing
# include. Names of unnamed namespaces then meet: these sources share one with another of
# their library and stay by themselves.

option(TROUPE_UNITY "compile the sources of a library together" OFF)

set(troupe_sources_alone
  actors/algorithm/kl.cpp
  actors/algorithm/policy_loss_covariance.cpp
  actors/algorithm/policy_loss_sequence.cpp
  actors/kernel/kernels_avx2.cpp  # instructions of its own, as the next has
  actors/kernel/kernels_avx512.cpp
  actors/kernel/kernels_portable.cpp
  actors/loops/correction_step.cpp
  actors/pacing/staleness_ledger.cpp
  actors/reward/number.cpp
  actors/reward/rules.cpp
  actors/rollout/weight_slot.cpp
  actors/text/pre_tokenizer.cpp
  reshard/execution/piece.cpp
  runtime/link/socket_driver.cpp
  runtime/observe/metrics_writer.cpp
)

# Types of unnamed namespaces are as good as ever there, but their sources are no longer the main file.
function(troupe_unity name)
  if(NOT TROUPE_UNITY)
    return()
  endif()
  set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
  target_compile_options(${name} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
  foreach(source ${troupe_sources_alone})
    set_source_files_properties(${CMAKE_SOURCE_DIR}/${source} PROPERTIES
      SKIP_UNITY_BUILD_INCLUSION ON)
  endforeach()
endfunction()
