#include "actors/loops/validation.hpp"

#include <algorithm>

namespace troupe::actors {

using runtime::Batch;
using runtime::Column;
using runtime::Metrics;
using runtime::Reduction;

result<void> ValidationTally::add(const Batch& batch) {
  TROUPE_TRY(const Batch needed,
             batch.select({std::string(column::kDataSource), std::string(column::kGroup),
                           std::string(column::kScores), std::string(column::kAccuracy)}));
  TROUPE_TRY(const Batch local, needed.resolve());
  TROUPE_TRY(const Column responses, batch.require(column::kResponses));
  struct Best {
    Source* source;
    double accuracy;
  };
  std::map<std::int64_t, Best> groups;
  for (std::int64_t row = 0; row < local.rows(); ++row) {
    Source& source = sources_[std::string(local.column(column::kDataSource).text(row))];
    const double accuracy = local.column(column::kAccuracy).scalar<float>(row);
    source.samples += 1;
    source.accuracy += accuracy;
    source.reward += local.column(column::kScores).scalar<float>(row);
    source.tokens += static_cast<double>(responses.row_length(row));
    const auto group = local.column(column::kGroup).scalar<std::int64_t>(row);
    const auto [found, is_new] = groups.try_emplace(group, Best{&source, accuracy});
    if (!is_new) found->second.accuracy = std::max(found->second.accuracy, accuracy);
  }
  for (const auto& [group, best] : groups) {
    best.source->prompts += 1;
    best.source->best += best.accuracy;
  }
  return {};
}

Metrics ValidationTally::metrics() const {
  Metrics metrics;
  const std::string at = "@" + std::to_string(samples_);
  for (const auto& [name, source] : sources_) {
    if (source.samples == 0) continue;
    metrics.add("val-core/" + name + "/acc/mean" + at, source.accuracy / source.samples,
                Reduction::kMean, source.samples);
    if (samples_ > 1)
      metrics.add("val-core/" + name + "/acc/best" + at, source.best / source.prompts,
                  Reduction::kMean, source.prompts);
    metrics.add("val-aux/" + name + "/reward/mean" + at, source.reward / source.samples,
                Reduction::kMean, source.samples);
    metrics.add("val-aux/" + name + "/response_length/mean", source.tokens / source.samples,
                Reduction::kMean, source.samples);
  }
  return metrics;
}

}  // namespace troupe::actors
