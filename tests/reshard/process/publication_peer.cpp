// A member of a publication in a process of its own; see member_process.hpp.

#include "tests/reshard/process/member_process.hpp"

int main(int argc, char** argv) { return troupe::reshard::testing::run_member(argc, argv); }
