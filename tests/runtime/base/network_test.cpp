// Proves that a host knows its own addresses: the loopback is reached from itself and has an
// interface, strangers have neither.

#include "runtime/base/network.hpp"

#include <gtest/gtest.h>

namespace troupe {
namespace {

TEST(Network, ReachesLoopbackFromLoopback) {
  const auto own = local_address_towards("127.0.0.1", 80);
  ASSERT_TRUE(own) << own.error().message;
  EXPECT_EQ(*own, "127.0.0.1");
  EXPECT_EQ(interface_of(*own), "lo");
}

TEST(Network, NamesUnknownHostsAndAddresses) {
  const auto unknown = local_address_towards("no-such-host.invalid", 80);
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, ErrorCode::kIo);
  EXPECT_NE(unknown.error().message.find("no-such-host.invalid"), std::string::npos);
  EXPECT_EQ(interface_of("192.0.2.1"), "");  // reserved for documentation (RFC 5737)
}

}  // namespace
}  // namespace troupe
