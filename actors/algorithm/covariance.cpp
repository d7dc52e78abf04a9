#include "actors/algorithm/covariance.hpp"

#include "runtime/base/rng.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

namespace troupe::actors {
namespace {

constexpr std::size_t kWords = 3;

std::int64_t floats_to_word(float high, float low) {
  const auto bits =
      (std::uint64_t{std::bit_cast<std::uint32_t>(high)} << 32) | std::bit_cast<std::uint32_t>(low);
  return std::bit_cast<std::int64_t>(bits);
}

std::pair<float, float> word_to_floats(std::int64_t word) {
  const auto bits = std::bit_cast<std::uint64_t>(word);
  return {std::bit_cast<float>(static_cast<std::uint32_t>(bits >> 32)),
          std::bit_cast<float>(static_cast<std::uint32_t>(bits))};
}

std::size_t share_of(double ratio, std::size_t count) {
  return std::max<std::size_t>(1, static_cast<std::size_t>(ratio * static_cast<double>(count)));
}

/// The number by which a token is drawn: 64 bits of (seed, sequence id, position).
std::uint64_t lot(std::uint64_t seed, const TokenKey& key) {
  return mix_seed(mix_seed(seed, static_cast<std::uint64_t>(key.sequence)),
                  static_cast<std::uint64_t>(key.position));
}

TokenSelection sorted(std::vector<TokenKey> keys) {
  std::sort(keys.begin(), keys.end());
  return {.keys = std::move(keys)};
}

}  // namespace

bool TokenSelection::contains(const TokenKey& key) const {
  return std::binary_search(keys.begin(), keys.end(), key);
}

void CovarianceStatistics::add(const CovarianceToken& token) {
  if (std::isfinite(token.log_prob) && std::isfinite(token.advantage)) tokens_.push_back(token);
}

void CovarianceStatistics::merge(const CovarianceStatistics& other) {
  // By index, as `other` may be this object.
  const std::size_t count = other.tokens_.size();
  tokens_.reserve(tokens_.size() + count);
  for (std::size_t i = 0; i < count; ++i) tokens_.push_back(other.tokens_[i]);
}

std::vector<std::int64_t> CovarianceStatistics::to_words() const {
  std::vector<std::int64_t> words;
  words.reserve(tokens_.size() * kWords);
  for (const CovarianceToken& token : tokens_) {
    words.push_back(token.key.sequence);
    words.push_back(token.key.position * 2 + (token.clipped ? 1 : 0));
    words.push_back(floats_to_word(token.advantage, token.log_prob));
  }
  return words;
}

result<CovarianceStatistics> CovarianceStatistics::from_words(std::span<const std::int64_t> words) {
  if (words.size() % kWords != 0)
    return fail(ErrorCode::kCorrupt, "covariance statistics: {} words, wanted a multiple of {}",
                words.size(), kWords);
  CovarianceStatistics statistics;
  for (std::size_t i = 0; i < words.size(); i += kWords) {
    const auto [advantage, log_prob] = word_to_floats(words[i + 2]);
    if (words[i + 1] < 0 || !std::isfinite(advantage) || !std::isfinite(log_prob))
      return fail(ErrorCode::kCorrupt,
                  "covariance statistics: token {} has position {}, advantage {}, log-prob {}",
                  i / kWords, words[i + 1] / 2, advantage, log_prob);
    statistics.add({.key = {.sequence = words[i], .position = words[i + 1] / 2},
                    .advantage = advantage,
                    .log_prob = log_prob,
                    .clipped = words[i + 1] % 2 == 1});
  }
  return statistics;
}

result<std::vector<CovarianceStatistics::Scored>> CovarianceStatistics::score() const {
  std::vector<Scored> scored;
  scored.reserve(tokens_.size());
  for (const CovarianceToken& token : tokens_) scored.push_back({.token = token});
  std::sort(scored.begin(), scored.end(),
            [](const Scored& a, const Scored& b) { return a.token.key < b.token.key; });
  double advantages = 0;
  double log_probs = 0;
  for (std::size_t i = 0; i < scored.size(); ++i) {
    const CovarianceToken& token = scored[i].token;
    if (i > 0 && scored[i - 1].token.key == token.key)
      return fail(ErrorCode::kInvalidArgument,
                  "covariance statistics: sequence id {} token {} occurs twice", token.key.sequence,
                  token.key.position);
    advantages += token.advantage;
    log_probs += token.log_prob;
  }
  const auto count = static_cast<double>(std::max<std::size_t>(1, scored.size()));
  for (Scored& entry : scored)
    entry.covariance =
        (entry.token.advantage - advantages / count) * (entry.token.log_prob - log_probs / count);
  return scored;
}

result<TokenSelection> CovarianceStatistics::select_largest(double ratio) const {
  TROUPE_TRY(std::vector<Scored> scored, score());
  if (scored.empty() || ratio <= 0) return TokenSelection{};
  const std::size_t wanted = std::min(share_of(ratio, scored.size()), scored.size());
  const auto middle = scored.begin() + static_cast<std::ptrdiff_t>(wanted);
  std::partial_sort(scored.begin(), middle, scored.end(), [](const Scored& a, const Scored& b) {
    if (a.covariance != b.covariance) return a.covariance > b.covariance;
    return a.token.key < b.token.key;
  });
  std::vector<TokenKey> keys;
  for (auto entry = scored.begin(); entry != middle; ++entry) keys.push_back(entry->token.key);
  return sorted(std::move(keys));
}

result<TokenSelection> CovarianceStatistics::select_random(double ratio, Range range,
                                                           std::uint64_t seed) const {
  TROUPE_TRY(const std::vector<Scored> scored, score());
  if (ratio <= 0) return TokenSelection{};
  std::vector<std::pair<std::uint64_t, TokenKey>> lots;
  for (const Scored& entry : scored) {
    const bool in_range = entry.covariance > range.low && entry.covariance < range.high;
    if (in_range && !entry.token.clipped)
      lots.emplace_back(lot(seed, entry.token.key), entry.token.key);
  }
  std::sort(lots.begin(), lots.end());
  lots.resize(std::min(lots.size(), share_of(ratio, scored.size())));
  std::vector<TokenKey> keys;
  for (const auto& [number, key] : lots) keys.push_back(key);
  return sorted(std::move(keys));
}

}  // namespace troupe::actors
