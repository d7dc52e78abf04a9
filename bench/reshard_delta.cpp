// Delta publications against full ones: bytes on the wire and time, by how many bytes changed.
//
//   bench_reshard_delta [--check] [--kib N]
//
// Trainer tp 2 → one engine over a network of threads; a share of the weights changes between
// versions, scattered element by element. With --check it ends with 1 when a delta of 1 % brings
// more than a fifth of the bytes, or when any delta brings more than a full publication.

#include "runtime/base/log.hpp"
#include "tests/reshard/execution/world.hpp"
#include "tests/reshard/random_case.hpp"

#include <fmt/format.h>

#include <chrono>
#include <string_view>

namespace {

using namespace troupe;
using namespace troupe::reshard;
using namespace troupe::reshard::testing;
using Clock = std::chrono::steady_clock;

Case model(std::int64_t kib) {
  ModelShape shape{.vocab = 256,
                   .hidden = 128,
                   .intermediate = 256,
                   .layers = std::max<std::int64_t>(1, kib / 640),
                   .heads = 8,
                   .kv_heads = 8,
                   .head_dim = 16};
  Case made;
  made.source = *train_roster(shape, {.tp = 2}, {.ranks_per_node = 8});
  made.target = *rollout_roster(shape, {}, {.first_rank = 8, .first_node = 1});
  return made;
}

/// Flips a bit of about `share` of the numbers, the same in all replicas, as a small step of an
/// optimizer would.
void change(World& world, double share, std::uint64_t version) {
  for_each_number(world.memory, [&](const TensorInfo& tensor, std::int64_t row, std::int64_t col,
                                    std::uint8_t* number) {
    const std::uint64_t dice = bits_of(tensor.name, row, col, ~version) >> 40;
    if (static_cast<double>(dice) < share * 16777216.0)
      number[0] = static_cast<std::uint8_t>(number[0] ^ 1U);
  });
}

struct Took {
  double seconds = 0;
  std::int64_t bytes = 0;
};

Took publish_once(World& world, const PublicationId& id) {
  const auto start = Clock::now();
  const auto outcome = world.publish_as(id);
  TROUPE_CHECK(outcome.has_value(), "{}", outcome.error().to_string());
  Took took{std::chrono::duration<double>(Clock::now() - start).count(), 0};
  for (const auto& [member, received] : outcome->received) took.bytes += received.pulled_bytes;
  return took;
}

bool run(std::int64_t kib) {
  const Case one = model(kib);
  WorldOptions options;
  options.spread = Spread::kRanks;
  options.source.keep_base = true;
  World world(one.source, one.target, one.options, options);
  world.fill_source(1);
  std::int64_t version = 1;
  const Took full = publish_once(world, world.id(version));
  bool held = true;
  fmt::print("full              {:>10} bytes {:>8.1f} ms\n", full.bytes, full.seconds * 1e3);
  for (const double share : {0.0, 0.0001, 0.001, 0.01, 0.1, 0.5, 1.0}) {
    change(world, share, static_cast<std::uint64_t>(version));
    const Took delta = publish_once(world, world.id(version + 1, version));
    ++version;
    const double part = static_cast<double>(delta.bytes) / static_cast<double>(full.bytes);
    const bool fits = part <= 1 && (share > 0.01 || part <= 0.2);
    held = held && fits;
    fmt::print("{:>8.2f} % changed {:>9} bytes {:>8.1f} ms   {:.3f} of full{}\n", share * 100,
               delta.bytes, delta.seconds * 1e3, part, fits ? "" : "   MISSED");
  }
  const Memory wanted = gather_then_slice(world.memory, world.plan->target(), one.options);
  const bool equal = world.active(8) == wanted.buffers.at(8);
  fmt::print("after all deltas the target is {}\n", equal ? "bit-equal" : "DIFFERENT");
  return held && equal;
}

}  // namespace

int main(int argc, char** argv) {
  log::set_up(log::Level::kError);
  bool check = false;
  std::int64_t kib = 8192;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--check") check = true;
    if (std::string_view(argv[i]) == "--kib" && i + 1 < argc) kib = std::stoll(argv[i + 1]);
  }
  return run(kib) || !check ? 0 : 1;
}
