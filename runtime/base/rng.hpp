#pragma once

// Counter-based random numbers: Philox4x32-10 (Salmon et al., SC'11, "Parallel random numbers:
// as easy as 1, 2, 3"). A number is a pure function of (key, counter), so a sample does not
// depend on who draws it, in which order, or how often the run was restarted.
//
// **Threads:** `philox` is pure; an `Rng` belongs to one thread.
// **Invariants:** results are the same on every machine; distributions are written out here
// because those of the standard library differ between implementations.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace troupe {

using PhiloxBlock = std::array<std::uint32_t, 4>;

/// Ten rounds of Philox4x32 on `counter` under `key`.
PhiloxBlock philox(PhiloxBlock counter, std::uint64_t key);

/// What a sampled token depends on, and nothing else.
struct SampleKey {
  std::uint64_t seed = 0;      ///< run seed
  std::uint64_t prompt = 0;    ///< prompt id in the data set
  std::uint32_t sample = 0;    ///< index inside the group of G samples
  std::uint32_t position = 0;  ///< token position from the start of the prompt
  bool operator==(const SampleKey&) const = default;
};

/// Uniform in [0, 1) with 53 bits, a pure function of the key.
double uniform(const SampleKey& key);

/// 64 well-mixed bits from any 64 (SplitMix64 finaliser); use to derive independent seeds.
std::uint64_t mix_seed(std::uint64_t seed, std::uint64_t stream);

/// Sequential generator over Philox for shuffles and initialisation. Its state is two integers.
class Rng {
 public:
  explicit Rng(std::uint64_t seed, std::uint64_t position = 0) : seed_(seed), position_(position) {}

  std::uint64_t next();                         ///< 64 random bits
  double uniform();                             ///< [0, 1)
  std::uint64_t below(std::uint64_t bound);     ///< unbiased in [0, bound); bound > 0
  double normal();                              ///< mean 0, variance 1 (Box–Muller, one per call)
  void shuffle(std::span<std::int64_t> items);  ///< Fisher–Yates
  std::vector<std::int64_t> permutation(std::int64_t count);

  std::uint64_t seed() const { return seed_; }
  std::uint64_t position() const { return position_; }

 private:
  std::uint64_t seed_;
  std::uint64_t position_;
};

}  // namespace troupe
