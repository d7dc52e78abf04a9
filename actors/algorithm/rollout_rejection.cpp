#include "actors/algorithm/rollout_rejection.hpp"

#include "actors/algorithm/token_math.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace troupe::actors {
namespace {

using Criterion = RejectionCriterion;

constexpr std::array<std::pair<Criterion, std::string_view>, 11> kNames = {{
    {Criterion::kTokenK1, "token_k1"},
    {Criterion::kTokenK2, "token_k2"},
    {Criterion::kTokenK3, "token_k3"},
    {Criterion::kSeqSumK1, "seq_sum_k1"},
    {Criterion::kSeqSumK2, "seq_sum_k2"},
    {Criterion::kSeqSumK3, "seq_sum_k3"},
    {Criterion::kSeqMeanK1, "seq_mean_k1"},
    {Criterion::kSeqMeanK2, "seq_mean_k2"},
    {Criterion::kSeqMeanK3, "seq_mean_k3"},
    {Criterion::kSeqMaxK2, "seq_max_k2"},
    {Criterion::kSeqMaxK3, "seq_max_k3"},
}};

enum class Distance { kK1, kK2, kK3 };
enum class Over { kToken, kSum, kMean, kMax };
struct Parts {
  Over over = Over::kToken;
  Distance distance = Distance::kK1;
};

Parts parts_of(Criterion criterion) {
  switch (criterion) {
    case Criterion::kTokenK1:
      return {Over::kToken, Distance::kK1};
    case Criterion::kTokenK2:
      return {Over::kToken, Distance::kK2};
    case Criterion::kTokenK3:
      return {Over::kToken, Distance::kK3};
    case Criterion::kSeqSumK1:
      return {Over::kSum, Distance::kK1};
    case Criterion::kSeqSumK2:
      return {Over::kSum, Distance::kK2};
    case Criterion::kSeqSumK3:
      return {Over::kSum, Distance::kK3};
    case Criterion::kSeqMeanK1:
      return {Over::kMean, Distance::kK1};
    case Criterion::kSeqMeanK2:
      return {Over::kMean, Distance::kK2};
    case Criterion::kSeqMeanK3:
      return {Over::kMean, Distance::kK3};
    case Criterion::kSeqMaxK2:
      return {Over::kMax, Distance::kK2};
    case Criterion::kSeqMaxK3:
      return {Over::kMax, Distance::kK3};
  }
  return {};
}

double distance_of(Distance distance, double delta) {
  switch (distance) {
    case Distance::kK1:
      return delta;
    case Distance::kK2:
      return delta * delta / 2;
    case Distance::kK3:
      return std::expm1(delta) - delta;
  }
  return 0;
}

bool outside(const Rejection& rejection, Distance distance, double value) {
  if (distance != Distance::kK1) return value > rejection.high;
  // In log space, where the product of a long sequence does not overflow.
  return value > std::log(rejection.high) || (rejection.low > 0 && value < std::log(rejection.low));
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t comma = text.find(',');
    parts.push_back(trimmed(text.substr(0, comma)));
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

result<double> parse_number(std::string_view text, std::string_view key) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || !std::isfinite(value) || value < 0)
    return fail(ErrorCode::kConfig, "{}: '{}', wanted a number of 0 or more", key, text);
  return value;
}

result<Criterion> criterion_from_name(std::string_view name) {
  std::string known;
  for (const auto& [criterion, text] : kNames) {
    if (text == name) return criterion;
    known += (known.empty() ? "" : ", ") + std::string(text);
  }
  return fail(ErrorCode::kConfig, "rollout_rs: unknown '{}', wanted {}", name, known);
}

/// Walks over sequences; `drops(sequence)` says whether to drop all of its tokens.
template <class Drops>
std::int64_t reject_sequences(const TokenBatchView& batch, std::span<std::uint8_t> kept,
                              Drops&& drops) {
  std::int64_t rejected = 0;
  for (std::size_t s = 0; s < batch.sequences(); ++s) {
    const std::int64_t length = valid_length(batch, s);
    if (length == 0 || !drops(s, length)) continue;
    rejected += length;
    for (std::size_t t = batch.begin(s); t < batch.end(s); ++t)
      if (batch.mask[t] != 0) kept[t] = 0;
  }
  return rejected;
}

}  // namespace

std::string_view rejection_criterion_name(RejectionCriterion criterion) {
  for (const auto& [known, name] : kNames)
    if (known == criterion) return name;
  return "unknown";
}

result<void> Rejection::check() const {
  const std::string_view name = rejection_criterion_name(criterion);
  if (parts_of(criterion).distance == Distance::kK1) {
    if (low >= 0 && low <= 1 && high >= 1 && std::isfinite(high)) return {};
    return fail(ErrorCode::kConfig,
                "rollout_rs_threshold: {} keeps {} to {}, wanted 0 ≤ low ≤ 1 ≤ high", name, low,
                high);
  }
  if (low == 0 && high > 0 && std::isfinite(high)) return {};
  return fail(ErrorCode::kConfig,
              "rollout_rs_threshold: {} keeps {} to {}, wanted one bound above 0", name, low, high);
}

result<BoundText> parse_bound(std::string_view text, std::string_view key) {
  const std::size_t middle = text.find('_');
  if (middle == std::string_view::npos) {
    TROUPE_TRY(const double high, parse_number(text, key));
    return BoundText{.high = high};
  }
  TROUPE_TRY(const double low, parse_number(text.substr(0, middle), key));
  TROUPE_TRY(const double high, parse_number(text.substr(middle + 1), key));
  return BoundText{.low = low, .high = high, .two_sided = true};
}

result<std::vector<Rejection>> parse_rejections(std::string_view names, std::string_view bounds) {
  if (trimmed(names).empty()) {
    if (trimmed(bounds).empty()) return std::vector<Rejection>();
    return fail(ErrorCode::kConfig, "rollout_rs_threshold: '{}' is set, but rollout_rs is not",
                bounds);
  }
  const auto name_list = split(names);
  const auto bound_list = split(bounds);
  if (trimmed(bounds).empty() || name_list.size() != bound_list.size())
    return fail(ErrorCode::kConfig, "rollout_rs_threshold: {} bounds for {} criteria in '{}'",
                trimmed(bounds).empty() ? 0 : bound_list.size(), name_list.size(), names);
  std::vector<Rejection> rejections;
  for (std::size_t i = 0; i < name_list.size(); ++i) {
    TROUPE_TRY(const Criterion criterion, criterion_from_name(name_list[i]));
    TROUPE_TRY(const BoundText bound, parse_bound(bound_list[i], "rollout_rs_threshold"));
    Rejection rejection{.criterion = criterion, .low = bound.low, .high = bound.high};
    const bool is_ratio = parts_of(criterion).distance == Distance::kK1;
    if (is_ratio && !bound.two_sided && bound.high > 0) rejection.low = 1 / bound.high;
    TROUPE_TRY_VOID(rejection.check());
    rejections.push_back(rejection);
  }
  return rejections;
}

std::int64_t reject(const TokenBatchView& batch, std::span<const float> log_probs,
                    std::span<const float> rollout_log_probs, const Rejection& rejection,
                    std::span<std::uint8_t> kept) {
  const Parts parts = parts_of(rejection.criterion);
  const auto value_of = [&](std::size_t t) {
    return distance_of(parts.distance, log_ratio(log_probs[t], rollout_log_probs[t]).value);
  };
  if (parts.over == Over::kToken) {
    std::int64_t rejected = 0;
    for_each_token(batch, [&](std::size_t, std::size_t t) {
      if (!outside(rejection, parts.distance, value_of(t))) return;
      kept[t] = 0;
      ++rejected;
    });
    return rejected;
  }
  return reject_sequences(batch, kept, [&](std::size_t s, std::int64_t length) {
    double sum = 0;
    double largest = 0;
    for (std::size_t t = batch.begin(s); t < batch.end(s); ++t) {
      if (batch.mask[t] == 0) continue;
      const double value = value_of(t);
      sum += value;
      largest = std::max(largest, value);
    }
    if (parts.over == Over::kMean) sum /= static_cast<double>(length);
    return outside(rejection, parts.distance, parts.over == Over::kMax ? largest : sum);
  });
}

std::int64_t reject_vetoed(const TokenBatchView& batch, std::span<const float> log_probs,
                           std::span<const float> rollout_log_probs, double least,
                           std::span<std::uint8_t> kept) {
  const double bound = std::log(least);
  return reject_sequences(batch, kept, [&](std::size_t s, std::int64_t) {
    for (std::size_t t = batch.begin(s); t < batch.end(s); ++t)
      if (batch.mask[t] != 0 && log_ratio(log_probs[t], rollout_log_probs[t]).value < bound)
        return true;
    return false;
  });
}

std::int64_t reject_negative(const TokenBatchView& batch, std::span<const float> log_probs,
                             std::span<const float> rollout_log_probs,
                             std::span<const float> advantages, double kl_max,
                             std::span<std::uint8_t> kept) {
  std::int64_t rejected = 0;
  for (std::size_t s = 0; s < batch.sequences(); ++s) {
    double kl = 0;
    for (std::size_t t = batch.begin(s); t < batch.end(s); ++t)
      if (batch.mask[t] != 0) kl -= log_ratio(log_probs[t], rollout_log_probs[t]).value;
    const std::int64_t length = valid_length(batch, s);
    if (length == 0 || kl <= kl_max * static_cast<double>(length)) continue;
    for (std::size_t t = batch.begin(s); t < batch.end(s); ++t) {
      if (batch.mask[t] == 0 || !(advantages[t] < 0)) continue;
      kept[t] = 0;
      ++rejected;
    }
  }
  return rejected;
}

std::int64_t reject_second_moment(const TokenBatchView& batch, std::span<const float> log_probs,
                                  std::span<const float> rollout_log_probs, double moment_max,
                                  std::span<std::uint8_t> kept) {
  const auto square_of = [&](std::size_t t) {
    const double delta = log_ratio(log_probs[t], rollout_log_probs[t]).value;
    return delta * delta;
  };
  std::vector<double> squares;
  for_each_token(batch, [&](std::size_t, std::size_t t) { squares.push_back(square_of(t)); });
  std::sort(squares.begin(), squares.end());
  // Means of the smallest n never fall as n grows, so the last that fits is the one to keep.
  double sum = 0;
  double largest_kept = -1;
  for (std::size_t n = 0; n < squares.size();) {
    const double value = squares[n];
    for (; n < squares.size() && squares[n] == value; ++n) sum += value;
    if (sum > moment_max * static_cast<double>(n)) break;
    largest_kept = value;
  }
  std::int64_t rejected = 0;
  for_each_token(batch, [&](std::size_t, std::size_t t) {
    if (square_of(t) <= largest_kept) return;
    kept[t] = 0;
    ++rejected;
  });
  return rejected;
}

}  // namespace troupe::actors
