#include "actors/reward/expression.hpp"

#include <utility>

namespace troupe::actors {
namespace {

constexpr std::size_t kLiteralDigitsMax = 18;

/// Recursive descent: sum → product → factor. Every method returns empty on any fault.
class ExpressionParser {
 public:
  ExpressionParser(std::string_view text, const ExpressionLimits& limits)
      : text_(text), limits_(limits) {}

  std::optional<EvaluatedExpression> run() {
    if (text_.size() > limits_.text_bytes_max) return std::nullopt;
    const auto value = sum();
    skip_spaces();
    if (!value || at_ != text_.size()) return std::nullopt;
    return EvaluatedExpression{*value, std::move(numbers_)};
  }

 private:
  using Value = std::optional<Rational>;

  void skip_spaces() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
  }
  bool take(std::string_view word) {
    skip_spaces();
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  Value sum() {
    Value left = product();
    while (left) {
      if (take("+")) {
        left = combine(add, *left, product());
      } else if (take("-") || take("\xE2\x88\x92")) {
        left = combine(subtract, *left, product());
      } else {
        break;
      }
    }
    return left;
  }

  Value product() {
    Value left = factor();
    while (left) {
      if (take("*") || take("\xC3\x97")) {
        left = combine(multiply, *left, factor());
      } else if (take("/") || take("\xC3\xB7")) {
        left = combine(divide, *left, factor());
      } else {
        break;
      }
    }
    return left;
  }

  Value factor() {
    if (depth_ >= limits_.depth_max) return std::nullopt;
    ++depth_;
    Value value;
    if (take("(")) {
      value = sum();
      if (!take(")")) value.reset();
    } else if (take("-") || take("\xE2\x88\x92")) {
      value = combine(subtract, Rational{}, factor());
    } else {
      value = literal();
    }
    --depth_;
    return value;
  }

  Value literal() {
    skip_spaces();
    const std::size_t begin = at_;
    std::int64_t value = 0;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      if (at_ - begin >= kLiteralDigitsMax) return std::nullopt;
      value = value * 10 + (text_[at_++] - '0');
    }
    if (at_ == begin) return std::nullopt;
    numbers_.push_back(value);
    return Rational::make(value);
  }

  static Value combine(Value (*operation)(const Rational&, const Rational&), const Rational& left,
                       const Value& right) {
    return right ? operation(left, *right) : std::nullopt;
  }

  std::string_view text_;
  const ExpressionLimits& limits_;
  std::size_t at_ = 0;
  int depth_ = 0;
  std::vector<std::int64_t> numbers_;
};

}  // namespace

std::optional<EvaluatedExpression> evaluate_expression(std::string_view text,
                                                       const ExpressionLimits& limits) {
  return ExpressionParser(text, limits).run();
}

}  // namespace troupe::actors
