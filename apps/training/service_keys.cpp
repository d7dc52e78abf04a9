#include "apps/training/service_keys.hpp"

#include "apps/training/async_keys.hpp"
#include "apps/training/config_seconds.hpp"
#include "apps/training/role_keys.hpp"
#include "apps/training/train_settings.hpp"

#include <algorithm>
#include <string>

namespace troupe::apps {

using runtime::Config;

actors::ServiceOptions service_options(const Config& config, std::int64_t steps,
                                       const actors::SamplingOptions& sampling) {
  const std::string at = "async.";
  actors::ServiceOptions service;
  service.rollout.ledger = ledger_options(config, steps);
  service.rollout.dispatch = dispatch_options(config, sampling);
  service.rollout.order = take_order(config);
  service.revives_max = config.get<std::int32_t>(at + "revives_max");
  service.lend = config.get<bool>(at + "lend_devices");
  service.score_within = std::min<Duration>(service.score_within, call_timeout(config));
  service.turn_within = std::min<Duration>(service.turn_within, call_timeout(config));
  service.advance_within = std::min<Duration>(service.advance_within, call_timeout(config));
  service.no_progress_within = seconds_of(config, at + "no_progress_s");
  return service;
}

std::int64_t groups_per_part(const Config& config) {
  return config.get<std::int64_t>("async.groups_per_part");
}

void set_world(const Config& config, actors::WorldOptions& options) {
  const std::string delay = "actor_rollout_ref.rollout.simulated_delay.";
  options.rollout_delay = {
      .median_s = config.get<double>(delay + "median_s"),
      .sigma = config.get<double>(delay + "sigma"),
      .seed = static_cast<std::uint64_t>(config.get<std::int64_t>("trainer.seed"))};
  if (!uses_service(config)) return;
  options.streaming = true;
  options.rollout_devices_own = rollout_devices(config);
  options.evaluation_devices = evaluation_devices(config);
  options.lend_trainer_devices = config.get<bool>("async.lend_devices");
  options.revives_max = config.get<int>("async.revives_max");
  options.advance_within = std::min<Duration>(options.advance_within, call_timeout(config));
  const auto update = config.get<std::string>("async.on_update");
  options.publication.update = update == "keep"    ? actors::WeightUpdate::kKeepKv
                               : update == "drain" ? actors::WeightUpdate::kDrain
                                                   : actors::WeightUpdate::kRecompute;
}

}  // namespace troupe::apps
