#include "actors/reward/rules.hpp"

#include "actors/reward/answer_text.hpp"
#include "actors/reward/number.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace troupe::actors {
namespace {

constexpr std::size_t kAnswerBytesShown = 1024;

RewardScore verdict(bool right, std::string_view answer) {
  return {.score = right ? 1.0 : 0.0,
          .extras = {{"acc", right ? 1.0 : 0.0}, {"no_answer", 0.0}},
          .answer = std::string(answer.substr(0, kAnswerBytesShown))};
}

RewardScore no_answer() {
  return {.score = 0.0, .extras = {{"acc", 0.0}, {"no_answer", 1.0}}, .answer = {}};
}

/// A number and how it stood in the text.
struct ReadNumber {
  Number number;
  std::string_view text;
};

std::optional<ReadNumber> number_of_marker(const MarkedAnswer& marked) {
  std::string_view text = marked.text;
  if (const auto box = last_boxed(text)) text = box->text;
  const std::size_t equals = text.rfind('=');
  if (equals != std::string_view::npos) text = trim(text.substr(equals + 1));
  if (auto whole = parse_number(text)) return ReadNumber{*std::move(whole), text};
  if (auto first = first_number(text))
    return ReadNumber{std::move(first->number),
                      text.substr(first->begin, first->end - first->begin)};
  return std::nullopt;
}

/// The answer of a grade-school solution: the later marker, the other one, the last number.
std::optional<ReadNumber> gsm8k_answer(std::string_view text) {
  std::vector<MarkedAnswer> markers;
  for (const auto& marker : {last_hash_answer(text), last_boxed(text)}) {
    if (marker) markers.push_back(*marker);
  }
  std::sort(markers.begin(), markers.end(),
            [](const MarkedAnswer& a, const MarkedAnswer& b) { return a.at > b.at; });
  for (const MarkedAnswer& marker : markers) {
    if (auto found = number_of_marker(marker)) return found;
  }
  if (auto last = last_number(text))
    return ReadNumber{std::move(last->number), text.substr(last->begin, last->end - last->begin)};
  return std::nullopt;
}

/// The rest of the sentence after the last "answer is" or "answer:".
std::optional<MarkedAnswer> last_worded_answer(std::string_view text) {
  std::optional<MarkedAnswer> last;
  for (const std::string_view words : {"nswer is", "nswer:"}) {
    const std::size_t at = text.rfind(words);
    if (at == std::string_view::npos || (last && last->at > at)) continue;
    std::string_view rest = text.substr(at + words.size());
    rest = rest.substr(0, rest.find('\n'));
    rest = rest.substr(0, rest.find(". "));
    if (rest.starts_with(':')) rest.remove_prefix(1);
    rest = trim(rest);
    if (!rest.empty()) last = MarkedAnswer{rest, at};
  }
  return last;
}

std::optional<std::string_view> math_answer(std::string_view text) {
  if (const auto box = last_boxed(text)) return box->text;
  if (const auto hash = last_hash_answer(text)) return hash->text;
  if (const auto words = last_worded_answer(text)) return words->text;
  if (const auto last = last_number(text)) return text.substr(last->begin, last->end - last->begin);
  return std::nullopt;
}

std::vector<std::string_view> words_of(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n";
  std::vector<std::string_view> words;
  std::size_t at = text.find_first_not_of(kSpaces);
  while (at != std::string_view::npos) {
    const std::size_t end = std::min(text.find_first_of(kSpaces, at), text.size());
    words.push_back(text.substr(at, end - at));
    at = text.find_first_not_of(kSpaces, end);
  }
  return words;
}

}  // namespace

RewardScore gsm8k_reward(std::string_view solution, std::string_view ground_truth) {
  const auto found = gsm8k_answer(solution);
  if (!found) return no_answer();
  // The reference may carry its unit or its working; one without any number is compared as text.
  const auto wanted = gsm8k_answer(ground_truth);
  const bool right = wanted ? found->number == wanted->number : found->text == trim(ground_truth);
  return verdict(right, found->text);
}

RewardScore math_reward(std::string_view solution, std::string_view ground_truth) {
  const auto found = math_answer(solution);
  if (!found || found->empty()) return no_answer();
  const auto box = last_boxed(ground_truth);
  return verdict(math_equal(*found, box ? box->text : ground_truth), *found);
}

RewardScore exact_match_reward(std::string_view solution, std::string_view ground_truth) {
  const std::string_view answer = trim(solution);
  return answer.empty() && !trim(ground_truth).empty()
             ? no_answer()
             : verdict(answer == trim(ground_truth), answer);
}

RewardScore sequence_reward(std::string_view solution, std::string_view ground_truth,
                            const SequenceRewardOptions& options) {
  const auto found = words_of(solution);
  const auto wanted = words_of(ground_truth);
  if (found.empty() && !wanted.empty()) return no_answer();
  RewardScore score = verdict(found == wanted, trim(solution));
  if (options.partial_credit && found != wanted) {
    std::size_t right = 0;
    for (std::size_t i = 0; i < std::min(found.size(), wanted.size()); ++i)
      right += found[i] == wanted[i] ? 1 : 0;
    score.score =
        static_cast<double>(right) / static_cast<double>(std::max(found.size(), wanted.size()));
  }
  return score;
}

}  // namespace troupe::actors
