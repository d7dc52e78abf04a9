// The loops over the rollout service, as loops of the trainer.

#include "actors/loops/asynchronous.hpp"
#include "apps/training/train_loop.hpp"

#include <utility>
#include <vector>

namespace troupe::apps {
namespace {

using actors::DataCursor;
using actors::GroupWorld;
using actors::StepReport;
using runtime::task;
using runtime::value_or_throw;
using Service = actors::RolloutService<GroupWorld>;

constexpr const char* kServiceBlob = "rollout_service";
constexpr const char* kIssueState = "rollout_cursor";

class StreamingLoop final : public TrainLoop {
 public:
  StreamingLoop(actors::Cast<GroupWorld>& cast, const actors::PromptLoader& prompts,
                StreamingLoopOptions options)
      : cast_(cast), prompts_(prompts), options_(std::move(options)) {}

  void begin(const DataCursor& cursor, std::int64_t steps_done) override {
    cursor_ = issue_ = cursor;
    options_.service.rollout.first_step = steps_done;
  }

  void load(const runtime::Checkpoint& checkpoint) override {
    auto bytes = checkpoint.blob(kServiceBlob);
    // A checkpoint of the synchronous loop: nothing was under way, and data goes on at the cursor.
    if (!bytes && bytes.error().code == ErrorCode::kNotFound) return;
    const runtime::AlignedBytes held = value_or_throw(std::move(bytes));
    state_.assign(held.bytes().begin(), held.bytes().end());
    const std::string text = value_or_throw(checkpoint.state(kIssueState));
    issue_ = value_or_throw(DataCursor::from_json(text));
  }

  task<void> start() override {
    service_ = value_or_throw(Service::open(
        cast_, options_.service, [this] { return next_prompts(); }, state_));
    state_.clear();
    co_await service_->start();
  }

  task<std::optional<StepReport>> step(std::int64_t step) override {
    auto running = runtime::as_result(run(step));
    result<std::optional<StepReport>> outcome = co_await std::move(running);
    if (!outcome && outcome.error().code == ErrorCode::kCancelled && service_->told_to_stop()) {
      service_->abandon_step();
      interrupted_ = true;
      co_return std::nullopt;
    }
    std::optional<StepReport> report = value_or_throw(std::move(outcome));
    // What was trained counts, in the data's order, whatever rollout has begun.
    if (report) cursor_ = value_or_throw(prompts_.next(cursor_)).next;
    co_return report;
  }

  bool interrupted() const override { return interrupted_; }

  task<void> drain() override { co_await service_->pause(); }

  task<void> save(runtime::CheckpointWriter& writer) override {
    const std::vector<std::byte> bytes = value_or_throw(service_->save());
    value_or_throw(writer.add_blob(kServiceBlob, bytes));
    value_or_throw(writer.add_state(kIssueState, issue_.to_json()));
    co_return;
  }

  task<void> stop() override {
    if (service_) co_await service_->stop();
  }

  const DataCursor& cursor() const override { return cursor_; }

 private:
  task<std::optional<StepReport>> run(std::int64_t step) {
    switch (options_.mode) {
      case LoopMode::kOneStepOff:
        return actors::one_step_off_step(cast_, *service_, step);
      case LoopMode::kPipelined:
        return actors::pipelined_step(cast_, *service_, step,
                                      {.groups_per_part = options_.groups_per_part});
      default:
        return actors::asynchronous_step(cast_, *service_, step);
    }
  }

  /// The next batch of prompts to begin; empty behind the last epoch.
  result<std::optional<runtime::Batch>> next_prompts() {
    TROUPE_TRY(actors::PromptLoader::Step next, prompts_.next(issue_));
    // The loader steps over the rest of an epoch that is too short for a batch.
    if (options_.epochs && issue_.epoch >= *options_.epochs) return std::optional<runtime::Batch>();
    issue_ = next.next;
    return std::optional(std::move(next.batch));
  }

  actors::Cast<GroupWorld>& cast_;
  const actors::PromptLoader& prompts_;
  StreamingLoopOptions options_;
  DataCursor cursor_;  ///< behind what was trained
  DataCursor issue_;   ///< behind what the service has got
  std::vector<std::byte> state_;
  std::unique_ptr<Service> service_;
  bool interrupted_ = false;
};

}  // namespace

std::unique_ptr<TrainLoop> make_streaming_loop(actors::Cast<GroupWorld>& cast,
                                               const actors::PromptLoader& prompts,
                                               StreamingLoopOptions options) {
  return std::make_unique<StreamingLoop>(cast, prompts, std::move(options));
}

}  // namespace troupe::apps
