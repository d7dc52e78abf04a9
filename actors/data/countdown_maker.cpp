#include "actors/data/countdown_maker.hpp"

#include <utility>
#include <vector>

namespace troupe::actors {
namespace {

constexpr int kTries = 64;
constexpr std::int64_t kIntermediateMax = 1'000'000'000;

enum class Binding { kSum, kProduct, kAtom };

struct Term {
  std::int64_t value = 0;
  std::string text;
  Binding binding = Binding::kAtom;
};

std::string bracketed(const Term& term, bool needed) {
  return needed ? "(" + term.text + ")" : term.text;
}

/// `left operation right`; empty when the value would not be a positive whole number.
std::optional<Term> combine(const Term& left, const Term& right, char operation) {
  const bool left_sum = left.binding == Binding::kSum;
  const bool right_sum = right.binding == Binding::kSum;
  switch (operation) {
    case '+':
      return Term{left.value + right.value, left.text + "+" + right.text, Binding::kSum};
    case '-':
      if (left.value <= right.value) return std::nullopt;
      return Term{left.value - right.value, left.text + "-" + bracketed(right, right_sum),
                  Binding::kSum};
    case '*':
      if (left.value > kIntermediateMax / right.value) return std::nullopt;
      return Term{left.value * right.value,
                  bracketed(left, left_sum) + "*" + bracketed(right, right_sum), Binding::kProduct};
    default:
      if (left.value % right.value != 0) return std::nullopt;
      return Term{
          left.value / right.value,
          bracketed(left, left_sum) + "/" + bracketed(right, right.binding != Binding::kAtom),
          Binding::kProduct};
  }
}

/// Takes a random term out of the list.
Term take(std::vector<Term>& terms, Rng& rng) {
  std::swap(terms[rng.below(terms.size())], terms.back());
  Term term = std::move(terms.back());
  terms.pop_back();
  return term;
}

}  // namespace

std::optional<Countdown> make_countdown(std::span<const std::int64_t> numbers,
                                        std::int64_t target_max, Rng& rng) {
  for (int attempt = 0; attempt < kTries; ++attempt) {
    std::vector<Term> terms;
    for (const std::int64_t number : numbers)
      terms.push_back({number, std::to_string(number), Binding::kAtom});
    bool possible = true;
    while (possible && terms.size() > 1) {
      const Term left = take(terms, rng);
      const Term right = take(terms, rng);
      auto combined = combine(left, right, "+-*/"[rng.below(4)]);
      possible = combined.has_value();
      if (possible) terms.push_back(*std::move(combined));
    }
    if (possible && terms.size() == 1 && terms[0].value >= 1 && terms[0].value <= target_max)
      return Countdown{.target = terms[0].value, .expression = std::move(terms[0].text)};
  }
  return std::nullopt;
}

}  // namespace troupe::actors
