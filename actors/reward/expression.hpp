#pragma once

// Arithmetic as people write it, evaluated in exact rationals: for rules that check a formula.
//
// **Threads:** pure functions.
// **Invariants:** nothing overflows or recurses without bound; text that is too long, too deep,
// malformed, or whose value does not fit 64 bits is no expression.

#include "actors/reward/number.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace troupe::actors {

struct ExpressionLimits {
  std::size_t text_bytes_max = 1024;
  int depth_max = 32;  ///< nested parentheses and signs
};

struct EvaluatedExpression {
  Rational value;
  std::vector<std::int64_t> numbers;  ///< the literals, in order
};

/// Evaluates + - * / (also × and ÷), parentheses, signs and unsigned whole numbers with the usual
/// precedence. Empty for anything else, division by zero and overflow.
std::optional<EvaluatedExpression> evaluate_expression(std::string_view text,
                                                       const ExpressionLimits& limits = {});

}  // namespace troupe::actors
