// A member, or the coordinator, of a publication in a process of its own; see member_process.hpp
// and coordinator_process.hpp.

#include "tests/reshard/process/coordinator_process.hpp"

int main(int argc, char** argv) {
  using namespace troupe::reshard::testing;
  if (argc > 8 && std::string_view(argv[1]) == "--coordinator") return run_coordinator(argc, argv);
  return run_member(argc, argv);
}
