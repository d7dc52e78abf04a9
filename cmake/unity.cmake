# With TROUPE_UNITY the sources of a library are compiled some at a time, as one: most of what a source
# costs are its headers, so that a build from scratch takes a third of the time. `./run` and `./check`
# build so (preset release); all other presets compile every source by itself, which is what shows a
# missing include. Names of unnamed namespaces then meet: these sources share one with another of
# their library and stay by themselves.

option(TROUPE_UNITY "compile the sources of a library together" OFF)

set(troupe_sources_alone
  actors/algorithm/kl.cpp
  actors/algorithm/policy_loss_covariance.cpp
  actors/algorithm/policy_loss_sequence.cpp
  actors/kernel/kernels_avx2.cpp  # instructions of its own, as the next
  actors/kernel/kernels_avx512.cpp
  actors/kernel/kernels_portable.cpp
  actors/loops/correction_step.cpp
  actors/model/token_log_prob_parallel.cpp
  actors/pacing/staleness_ledger.cpp
  actors/reward/number.cpp
  actors/reward/rules.cpp
  actors/rollout/weight_slot.cpp
  actors/text/pre_tokenizer.cpp
  placement/backtrack.cpp
  placement/explain.cpp
  placement/materialize.cpp
  placement/node_reservation_service.cpp
  placement/place.cpp
  placement/placement_client.cpp
  reshard/execution/piece.cpp
  reshard/execution/publication_source.cpp
  runtime/cluster/node_agent.cpp
  runtime/cluster/node_agent_effects.cpp
  runtime/cluster/process.cpp
  runtime/comm/engine_ucx.cpp
  runtime/comm/group_gloo.cpp
  runtime/comm/links_gloo.cpp
  runtime/comm/mailbox_gloo.cpp
  runtime/comm/meeting.cpp
  runtime/comm/owner_ucx.cpp
  runtime/comm/posted_call.cpp
  runtime/comm/reader_ucx.cpp
  runtime/comm/rebuild_gloo.cpp
  runtime/exchange/exchange_export.cpp
  runtime/group/rank_server.cpp
  runtime/link/private_file.cpp
  runtime/link/socket_driver.cpp
  runtime/observe/metrics_writer.cpp
  runtime/observe/trace.cpp
  runtime/observe/trace_read.cpp
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
