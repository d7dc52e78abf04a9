#include "sim/world/sample_plan.hpp"

#include "runtime/base/rng.hpp"
#include "sim/engine/random.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace troupe::sim {
namespace {

constexpr std::int64_t kChunks = 32;        // of the longest answer
constexpr std::int64_t kVersionChunks = 8;  // more, for versions crossed

}  // namespace

result<SamplePlan> SamplePlan::create(const SimJob& job) {
  TROUPE_TRY(LengthModel prompts, LengthModel::create(job.prompt_lengths));
  TROUPE_TRY(LengthModel answers, LengthModel::create(job.answer_lengths));
  return SamplePlan(job, std::move(prompts), std::move(answers));
}

SamplePlan::SamplePlan(const SimJob& job, LengthModel prompts, LengthModel answers)
    : seed_(job.seed),
      prompts_per_step_(job.prompts_per_step),
      answer_max_(job.answer_lengths.tokens_max),
      prompts_(std::move(prompts)),
      answers_(std::move(answers)),
      environment_(job.environment),
      chunk_tokens_(job.mode == SimMode::kSynchronous
                        ? std::numeric_limits<std::int32_t>::max()
                        : std::max<std::int64_t>(1, (answer_max_ + kChunks - 1) / kChunks)) {}

std::int64_t SamplePlan::prompt_tokens(std::uint64_t prompt) const {
  return prompts_.draw(mix_seed(seed_, 1), 0, prompt, 0);
}

std::int64_t SamplePlan::answer_tokens(std::uint64_t prompt, std::uint32_t sample) const {
  const auto step = static_cast<std::int64_t>(prompt) / prompts_per_step_;
  return answers_.draw(mix_seed(seed_, 2), step, prompt, sample);
}

int SamplePlan::turns(std::uint64_t prompt, std::uint32_t sample) const {
  if (!environment_) return 1;
  const DrawKey key{mix_seed(seed_, 3), prompt, Purpose::kEnvironment, sample};
  const int more = environment_->turns_max - environment_->turns_min + 1;
  const int drawn = environment_->turns_min + static_cast<int>(uniform(key) * more);
  return static_cast<int>(std::min<std::int64_t>(drawn, answer_tokens(prompt, sample)));
}

std::int64_t SamplePlan::tokens_by_turn(std::uint64_t prompt, std::uint32_t sample,
                                        int turn) const {
  const std::int64_t tokens = answer_tokens(prompt, sample);
  const int all = turns(prompt, sample);
  return turn + 1 >= all ? tokens : tokens * (turn + 1) / all;
}

std::vector<std::int32_t> SamplePlan::chunks_of(std::int64_t tokens) const {
  std::vector<std::int32_t> chunks;
  for (; tokens > 0; tokens -= chunks.back())
    chunks.push_back(static_cast<std::int32_t>(std::min(tokens, chunk_tokens_)));
  return chunks;
}

std::int64_t SamplePlan::turn_chunks() const {
  if (!environment_) return 0;
  return 2 + (environment_->tokens_a_turn + chunk_tokens_ - 1) / chunk_tokens_;
}

std::int32_t SamplePlan::chunks_max() const {
  std::int64_t chunks = (answer_max_ + chunk_tokens_ - 1) / chunk_tokens_ + kVersionChunks;
  if (environment_) chunks += environment_->turns_max * turn_chunks();
  return static_cast<std::int32_t>(chunks);
}

std::int64_t tokens_in(std::span<const std::int32_t> chunks) {
  return std::accumulate(chunks.begin(), chunks.end(), std::int64_t{0});
}

}  // namespace troupe::sim
