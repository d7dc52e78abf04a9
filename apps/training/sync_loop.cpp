// The synchronous program as a loop of the trainer.

#include "actors/loops/synchronous.hpp"
#include "apps/training/train_loop.hpp"

#include <utility>

namespace troupe::apps {
namespace {

using actors::GroupWorld;
using runtime::task;

class SyncLoop final : public TrainLoop {
 public:
  SyncLoop(actors::Cast<GroupWorld>& cast, const actors::PromptLoader& prompts)
      : cast_(cast), prompts_(prompts) {}

  void begin(const actors::DataCursor& cursor, std::int64_t /*steps_done*/) override {
    cursor_ = cursor;
  }
  void load(const runtime::Checkpoint& /*checkpoint*/) override {}
  task<void> start() override { co_return; }

  task<std::optional<actors::StepReport>> step(std::int64_t step) override {
    actors::PromptLoader::Step prompts = runtime::value_or_throw(prompts_.next(cursor_));
    actors::StepReport report = co_await actors::synchronous_step(cast_, prompts.batch, step);
    cursor_ = prompts.next;
    co_return report;
  }

  bool interrupted() const override { return false; }
  task<void> drain() override { co_return; }
  task<void> save(runtime::CheckpointWriter& /*writer*/) override { co_return; }
  task<void> stop() override { co_return; }
  const actors::DataCursor& cursor() const override { return cursor_; }

 private:
  actors::Cast<GroupWorld>& cast_;
  const actors::PromptLoader& prompts_;
  actors::DataCursor cursor_;
};

}  // namespace

std::unique_ptr<TrainLoop> make_sync_loop(actors::Cast<GroupWorld>& cast,
                                          const actors::PromptLoader& prompts) {
  return std::make_unique<SyncLoop>(cast, prompts);
}

}  // namespace troupe::apps
