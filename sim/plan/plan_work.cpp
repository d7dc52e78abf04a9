#include "sim/plan/plan_work.hpp"

#include <algorithm>
#include <cmath>
#include <deque>
#include <queue>

namespace troupe::sim {
namespace {

constexpr int kQuantiles = 1'024;
/// Samples of one engine that are laid out; more of them repeat what these do on average.
constexpr std::int64_t kLaidOut = 2'048;

std::vector<double> quantiles_of(const LengthModel& lengths) {
  std::vector<double> all;
  const auto most = static_cast<double>(lengths.options().tokens_max);
  for (int i = 0; i < kQuantiles; ++i)
    all.push_back(std::clamp(std::round(lengths.quantile((i + 0.5) / kQuantiles)), 1.0, most));
  return all;
}

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double square_mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return sum / static_cast<double>(values.size());
}

/// One engine with its share of a batch.
class Share {
 public:
  Share(const PlanWork& work, const DecodeCost& cost, const EngineRoom& room, std::int64_t samples)
      : work_(work), cost_(cost), room_(room) {
    own_prompt_ =
        room.share_prompt ? work.prompt_mean / static_cast<double>(work.group) : work.prompt_mean;
    lay_out(samples);
  }

  EngineTime run() {
    EngineTime time;
    while (next_ < left_.size() || !again_.empty() || !running_.empty()) {
      admit();
      time.running_most = std::max(time.running_most, static_cast<std::int64_t>(running_.size()));
      step(time);
    }
    time.span_s = now_s_;
    return time;
  }

 private:
  struct One {
    double end = 0;    ///< in steps
    double begin = 0;  ///< in steps; admitted later means younger
    double had = 0;    ///< tokens that it had when it was admitted
  };
  struct Waiting {
    double left = 0;
    double had = 0;
  };

  /// Quantiles in an order whose every stretch is spread evenly: multiples of the golden ratio.
  void lay_out(std::int64_t samples) {
    constexpr double kGolden = 0.6180339887498949;
    const auto n = static_cast<double>(work_.answers.size());
    for (std::int64_t i = 0; i < samples; ++i) {
      const double p = std::fmod((static_cast<double>(i) + 0.5) * kGolden, 1.0);
      left_.push_back(work_.answers[static_cast<std::size_t>(p * n)]);
    }
    *std::max_element(left_.begin(), left_.end()) = work_.answer_longest;
  }

  void admit() {
    double tokens = 0;
    double squares = 0;
    while (static_cast<std::int64_t>(running_.size()) < room_.sequences_max &&
           (next_ < left_.size() || !again_.empty())) {
      const Waiting one = again_.empty() ? Waiting{left_[next_], 0} : again_.front();
      // With room for a step of all that run; else the youngest would come and go for ever.
      const double room = static_cast<double>(room_.kv_tokens) * (1 - room_.watermark) -
                          static_cast<double>(running_.size() + 1);
      if (!running_.empty() && used_ + own_prompt_ + one.had + kKvBlockTokens > room) break;
      again_.empty() ? static_cast<void>(++next_) : again_.pop_front();
      running_.push_back({steps_ + one.left, steps_, one.had});
      std::push_heap(running_.begin(), running_.end(), later);
      used_ += own_prompt_ + one.had + kKvBlockTokens / 2.0;
      cached_ += work_.prompt_mean + one.had;
      const double computed = own_prompt_ + one.had;
      tokens += computed;
      squares += computed * (work_.prompt_mean + one.had);
    }
    now_s_ += cost_.prefill_s(tokens, squares);
  }

  static bool later(const One& a, const One& b) { return a.end > b.end; }

  void step(EngineTime& time) {
    const auto b = static_cast<double>(running_.size());
    double steps = running_.front().end - steps_;
    const double room = std::floor((static_cast<double>(room_.kv_tokens) - used_) / b);
    const bool full = running_.size() > 1 && room < steps;
    if (full) steps = std::max(room, 0.0);
    now_s_ += cost_.steps_s(static_cast<std::int64_t>(running_.size()), cached_,
                            static_cast<std::int64_t>(steps));
    steps_ += steps;
    cached_ += b * steps;
    used_ += b * steps;
    if (full) {
      put_back();
      ++time.preemptions;
    }
    while (!running_.empty() && running_.front().end <= steps_) {
      std::pop_heap(running_.begin(), running_.end(), later);
      take_out(running_.back());
      running_.pop_back();
    }
  }

  void take_out(const One& one) {
    const double grown = one.had + steps_ - one.begin;
    cached_ -= work_.prompt_mean + grown;
    used_ -= own_prompt_ + grown + kKvBlockTokens / 2.0;
  }

  /// The youngest goes back and is computed again later, as engines do.
  void put_back() {
    const auto youngest =
        std::max_element(running_.begin(), running_.end(),
                         [](const One& a, const One& b) { return a.begin < b.begin; });
    take_out(*youngest);
    again_.push_front({youngest->end - steps_, youngest->had + steps_ - youngest->begin});
    running_.erase(youngest);
    std::make_heap(running_.begin(), running_.end(), later);
  }

  const PlanWork& work_;
  const DecodeCost& cost_;
  const EngineRoom room_;
  double own_prompt_ = 0;
  std::vector<double> left_;  ///< lengths, in order
  std::size_t next_ = 0;
  std::deque<Waiting> again_;
  std::vector<One> running_;  ///< a heap by end
  double steps_ = 0;
  double now_s_ = 0;
  double used_ = 0;    ///< of the KV cache
  double cached_ = 0;  ///< tokens attended to
};

/// A batch when samples of the next one start as those of this one end.
void add_steady(const PlanWork& work, const DecodeCost& cost, const EngineRoom& room,
                std::int64_t samples, std::int64_t ahead, EngineTime& time) {
  const double own = work.prompt_mean / static_cast<double>(room.share_prompt ? work.group : 1) +
                     kKvBlockTokens / 2.0 + work.residence;
  const double held = static_cast<double>(room.kv_tokens) * (1 - room.watermark) / own;
  const double wanted = std::min({static_cast<double>(room.sequences_max),
                                  static_cast<double>(samples * (ahead + 1)), std::max(1.0, held)});
  const auto running = static_cast<std::int64_t>(wanted);
  const double cached = wanted * (work.prompt_mean + work.residence);
  const double step_s = cost.step_s(running, cached);
  const auto batch = static_cast<double>(samples);
  const double prompt = work.prompt_mean / static_cast<double>(room.share_prompt ? work.group : 1);
  time.steady_s = batch * work.answer_mean * step_s / static_cast<double>(running) +
                  batch * cost.prefill_s(prompt, prompt * work.prompt_mean);
  time.longest_s = work.answer_longest * step_s;
}

}  // namespace

result<PlanWork> PlanWork::create(const SimJob& job) {
  TROUPE_TRY(const LengthModel prompts, LengthModel::create(job.prompt_lengths));
  TROUPE_TRY(const LengthModel lengths, LengthModel::create(job.answer_lengths));
  PlanWork work;
  work.samples = job.prompts_per_step * job.group_size;
  work.group = job.group_size;
  const std::vector<double> prompt = quantiles_of(prompts);
  work.answers = quantiles_of(lengths);
  work.prompt_mean = mean_of(prompt);
  work.answer_mean = mean_of(work.answers);
  const double p = 1 - 0.5 / static_cast<double>(work.samples);
  work.answer_longest = std::clamp(std::round(lengths.quantile(p)), 1.0,
                                   static_cast<double>(job.answer_lengths.tokens_max));
  const double squares = square_mean_of(work.answers);
  work.residence = squares / (2 * work.answer_mean);
  work.tokens_longest = job.prompt_lengths.tokens_max + job.answer_lengths.tokens_max;
  const auto count = static_cast<double>(work.samples);
  work.pass.tokens = count * (work.prompt_mean + work.answer_mean);
  work.pass.squares =
      count * (square_mean_of(prompt) + squares + 2 * work.prompt_mean * work.answer_mean);
  work.pass.sequences = work.samples;
  work.update = work.pass;
  const std::int64_t minibatch = std::min(work.samples, job.minibatch_prompts * job.group_size);
  work.update.optimizer_steps = job.epochs * ((work.samples + minibatch - 1) / minibatch);
  work.update.tokens *= static_cast<double>(job.epochs);
  work.update.squares *= static_cast<double>(job.epochs);
  work.reward_s = job.reward.sample_s * std::ceil(count / job.reward.workers);
  return work;
}

EngineTime engine_time(const PlanWork& work, const DecodeCost& cost, const EngineRoom& room,
                       std::int64_t samples, std::int64_t ahead) {
  const std::int64_t laid_out = std::min(samples, kLaidOut);
  EngineTime time = Share(work, cost, room, laid_out).run();
  add_steady(work, cost, room, laid_out, ahead, time);
  if (samples > laid_out) {
    const double more = static_cast<double>(samples - laid_out) / static_cast<double>(laid_out);
    time.span_s += more * time.steady_s;
    time.steady_s *= 1 + more;
  }
  return time;
}

}  // namespace troupe::sim
