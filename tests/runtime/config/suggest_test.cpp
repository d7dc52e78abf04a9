// Proves the edit distance against the plain recursive definition, and that suggestions name what
// a person would have meant.

#include "runtime/config/suggest.hpp"

#include "runtime/base/rng.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace troupe::runtime {
namespace {

/// Optimal string alignment by its recursive definition.
std::size_t slow_distance(std::string_view a, std::string_view b) {
  if (a.empty()) return b.size();
  if (b.empty()) return a.size();
  const auto a1 = a.substr(0, a.size() - 1);
  const auto b1 = b.substr(0, b.size() - 1);
  std::size_t best = std::min({slow_distance(a1, b) + 1, slow_distance(a, b1) + 1,
                               slow_distance(a1, b1) + (a.back() == b.back() ? 0 : 1)});
  if (a.size() > 1 && b.size() > 1 && a.back() == b[b.size() - 2] && a[a.size() - 2] == b.back()) {
    best = std::min(best, slow_distance(a.substr(0, a.size() - 2), b.substr(0, b.size() - 2)) + 1);
  }
  return best;
}

TEST(EditDistance, EqualsTheRecursiveDefinitionUpToItsLimit) {
  Rng rng(7);
  for (int i = 0; i < 500; ++i) {
    std::string a, b;
    for (std::uint64_t k = rng.below(7); k > 0; --k) a += static_cast<char>('a' + rng.below(3));
    for (std::uint64_t k = rng.below(7); k > 0; --k) b += static_cast<char>('a' + rng.below(3));
    const std::size_t limit = rng.below(8);
    EXPECT_EQ(edit_distance(a, b, limit), std::min(slow_distance(a, b), limit + 1))
        << a << " " << b;
  }
}

TEST(SuggestPath, NamesTheNearestPathOrTheSameLeafElsewhere) {
  const std::vector<std::string> paths{"trainer.seed",   "trainer.save_freq", "data.seed",
                                       "actor.optim.lr", "critic.optim.lr",   "data.train_files"};
  EXPECT_EQ(suggest_path("trainer.sede", paths), "did you mean trainer.seed?");
  EXPECT_EQ(suggest_path("trainer.savefreq", paths), "did you mean trainer.save_freq?");
  EXPECT_EQ(suggest_path("model.optimizer.lr", paths),
            "did you mean actor.optim.lr or critic.optim.lr?");
  EXPECT_EQ(suggest_path("algorithm.train_file", paths), "did you mean data.train_files?");
  EXPECT_EQ(suggest_path("completely.different_thing", paths), "");
  EXPECT_EQ(suggest_path("", paths), "");
  EXPECT_EQ(suggest_path(std::string(100000, 'x'), paths), "");
  EXPECT_EQ(suggest_path("seed", {}), "");
}

}  // namespace
}  // namespace troupe::runtime
