#include "runtime/base/rng.hpp"

#include "runtime/base/check.hpp"

#include <cmath>
#include <numbers>
#include <numeric>
#include <utility>

namespace troupe {
namespace {

constexpr std::uint32_t kMultiplier0 = 0xD2511F53;
constexpr std::uint32_t kMultiplier1 = 0xCD9E8D57;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9;
constexpr std::uint32_t kWeyl1 = 0xBB67AE85;

constexpr std::uint32_t low(std::uint64_t x) { return static_cast<std::uint32_t>(x); }
constexpr std::uint32_t high(std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); }

double to_unit(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1.0p-53; }

}  // namespace

PhiloxBlock philox(PhiloxBlock counter, std::uint64_t key) {
  std::uint32_t key0 = low(key);
  std::uint32_t key1 = high(key);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{kMultiplier0} * counter[0];
    const std::uint64_t product1 = std::uint64_t{kMultiplier1} * counter[2];
    counter = {high(product1) ^ counter[1] ^ key0, low(product1),
               high(product0) ^ counter[3] ^ key1, low(product0)};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return counter;
}

double uniform(const SampleKey& key) {
  const PhiloxBlock block =
      philox({low(key.prompt), high(key.prompt), key.sample, key.position}, key.seed);
  return to_unit((std::uint64_t{block[0]} << 32) | block[1]);
}

std::uint64_t mix_seed(std::uint64_t seed, std::uint64_t stream) {
  std::uint64_t z = seed + (stream + 1) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

std::uint64_t Rng::next() {
  const PhiloxBlock block = philox({low(position_), high(position_), 0, 1}, seed_);
  ++position_;
  return (std::uint64_t{block[0]} << 32) | block[1];
}

double Rng::uniform() { return to_unit(next()); }

std::uint64_t Rng::below(std::uint64_t bound) {
  TROUPE_CHECK(bound > 0, "rng: bound {}, wanted > 0", bound);
  const std::uint64_t limit = bound * (UINT64_MAX / bound);
  std::uint64_t draw = next();
  while (draw >= limit) draw = next();
  return draw % bound;
}

double Rng::normal() {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * uniform());
}

void Rng::shuffle(std::span<std::int64_t> items) {
  for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
}

std::vector<std::int64_t> Rng::permutation(std::int64_t count) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  shuffle(order);
  return order;
}

}  // namespace troupe
