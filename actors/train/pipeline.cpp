// The walk of micro-batches through the stages of a pipeline: 1F1B with gradients, forward alone
// without. Which step comes when is pipeline_schedule.hpp's; this is what a step does.
#include "actors/train/allocation_meter.hpp"
#include "actors/train/pipeline_schedule.hpp"
#include "actors/train/train_engine_impl.hpp"
#include "runtime/base/check.hpp"
#include "runtime/task/failure.hpp"

#include <torch/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

namespace troupe::actors {
namespace {

std::span<float> floats_of(const at::Tensor& tensor) {
  return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

/// What a stage sends to the stages of the runs before and after its own. Messages of one boundary
/// and direction arrive in the order of micro-batches.
class StageLinks {
 public:
  StageLinks(const TrainGroups& groups, const PipelineShape& shape, std::int64_t width)
      : groups_(groups), shape_(shape), width_(width) {}

  void send_activation(int run, const at::Tensor& x) const { send(*groups_.pp(), x, run + 1, run); }
  at::Tensor receive_activation(int run, std::int64_t rows) const {
    return receive(*groups_.pp(), rows, run - 1, run - 1);
  }
  void send_gradient(int run, const at::Tensor& gradient) const {
    send(*groups_.pp_back(), gradient, run - 1, run);
  }
  at::Tensor receive_gradient(int run, std::int64_t rows) const {
    return receive(*groups_.pp_back(), rows, run + 1, run + 1);
  }

 private:
  /// The tag is the run that sends.
  void send(runtime::Collective& way, const at::Tensor& tensor, int run, int tag) const {
    const at::Tensor dense = tensor.detach().contiguous();
    runtime::value_or_throw(
        way.send(floats_of(dense), run % shape_.stages, tag, groups_.deadline()));
  }
  at::Tensor receive(runtime::Collective& way, std::int64_t rows, int run, int tag) const {
    const at::Tensor tensor = torch::empty({rows, width_}, torch::kFloat32);
    runtime::value_or_throw(
        way.recv(floats_of(tensor), run % shape_.stages, tag, groups_.deadline()));
    return tensor;
  }

  const TrainGroups& groups_;
  PipelineShape shape_;
  std::int64_t width_;
};

/// A micro-batch between its forward and its backward through one run.
struct Flight {
  at::Tensor input;   // leaf; undefined for the run that begins with the embedding
  at::Tensor output;  // undefined for the run that ends with the head
  ModelOutput model;
  OutputGradient gradient;
};

/// One stage's view of one pass.
class StageWalk {
 public:
  StageWalk(TrainEngine::Impl& impl, const Shard& shard, const SamplingTransform& transform)
      : impl_(impl),
        shard_(shard),
        transform_(transform),
        shape_{.stages = impl.options.parallel.pp,
               .virtual_stages = impl.options.parallel.virtual_stages},
        links_(*impl.groups, shape_, impl.decoder->config().hidden_size) {
    for (std::size_t b = 0; b < shard.batches.size(); ++b)
      if (!shard.batches[b].rows.empty()) work_.push_back(b);
  }

  std::vector<PipelineStep> steps(bool training) const {
    const auto count = static_cast<std::int64_t>(work_.size());
    const int stage = impl_.groups->place().pp;
    return training ? training_steps(shape_, stage, count) : forward_steps(shape_, stage, count);
  }
  std::size_t batch_index(const PipelineStep& step) const {
    return work_[static_cast<std::size_t>(step.micro_batch)];
  }
  bool ends_model(const PipelineStep& step) const { return step.run + 1 == shape_.runs(); }

  /// Takes the micro-batch from the run before, through this one; hands it on unless this is the
  /// last.
  Flight forward(const PipelineStep& step) const {
    const MicroBatch& batch = shard_.batches[batch_index(step)];
    Flight flight;
    if (step.run > 0) {
      flight.input =
          links_.receive_activation(step.run, static_cast<std::int64_t>(batch.tokens.size()));
      if (at::GradMode::is_enabled()) flight.input.set_requires_grad(true);
    }
    const auto local = static_cast<std::size_t>(step.run / shape_.stages);
    at::Tensor out = impl_.decoder->run(local, input_of(batch), flight.input);
    if (ends_model(step)) {
      flight.model = impl_.head(batch, out, transform_);
    } else {
      links_.send_activation(step.run, out);
      flight.output = std::move(out);
    }
    return flight;
  }

  void backward(const PipelineStep& step, Flight& flight) const {
    if (ends_model(step)) {
      actors::backward(flight.model, flight.gradient);
    } else {
      const at::Tensor gradient = links_.receive_gradient(step.run, flight.output.size(0));
      torch::autograd::backward({flight.output}, {gradient});
    }
    if (step.run == 0) return;
    TROUPE_CHECK(flight.input.grad().defined(), "pipeline: run {} gave no gradient to its input",
                 step.run);
    links_.send_gradient(step.run, flight.input.grad());
  }

 private:
  TrainEngine::Impl& impl_;
  const Shard& shard_;
  SamplingTransform transform_;
  PipelineShape shape_;
  StageLinks links_;
  std::vector<std::size_t> work_;  // micro-batches that predict something
};

std::int64_t tokens_of(const Shard& shard) {
  std::int64_t tokens = 0;
  for (const MicroBatch& batch : shard.batches)
    tokens += static_cast<std::int64_t>(batch.tokens.size());
  return tokens;
}

void append(std::vector<std::byte>& bytes, std::span<const std::byte> more) {
  bytes.insert(bytes.end(), more.begin(), more.end());
}

/// Per entry: length of the name, the name, sum, weight.
std::vector<std::byte> to_bytes(const WeightedSums& sums) {
  std::vector<std::byte> bytes;
  for (const auto& [name, entry] : sums.entries()) {
    const auto length = static_cast<std::int64_t>(name.size());
    append(bytes, std::as_bytes(std::span(&length, 1)));
    append(bytes, std::as_bytes(std::span(name)));
    append(bytes, std::as_bytes(std::span(&entry.sum, 1)));
    append(bytes, std::as_bytes(std::span(&entry.weight, 1)));
  }
  return bytes;
}

result<WeightedSums> from_bytes(std::span<const std::byte> bytes) {
  const auto short_of = [&bytes](std::size_t wanted) {
    return fail(ErrorCode::kCorrupt, "metrics of the last stage: {} bytes left, wanted {}",
                bytes.size(), wanted);
  };
  WeightedSums sums;
  while (!bytes.empty()) {
    std::int64_t length = 0;
    if (bytes.size() < sizeof(length)) return short_of(sizeof(length));
    std::memcpy(&length, bytes.data(), sizeof(length));
    bytes = bytes.subspan(sizeof(length));
    const std::size_t wanted = static_cast<std::size_t>(length) + 2 * sizeof(double);
    if (length < 0 || bytes.size() < wanted) return short_of(wanted);
    std::string name(static_cast<std::size_t>(length), '\0');
    std::memcpy(name.data(), bytes.data(), name.size());
    double numbers[2];
    std::memcpy(numbers, bytes.data() + name.size(), sizeof(numbers));
    sums.add(name, numbers[0], numbers[1]);
    bytes = bytes.subspan(wanted);
  }
  return sums;
}

}  // namespace

result<void> TrainEngine::Impl::accumulate_pipeline(const Shard& shard,
                                                    const SamplingTransform& transform,
                                                    const BatchLoss& loss) {
  const StageWalk walk(*this, shard, transform);
  std::optional<AllocationMeter> meter;
  if (tokens_of(shard) > metered_tokens) meter.emplace();
  std::map<std::pair<int, std::int64_t>, Flight> flights;
  std::optional<Error> error;
  for (const PipelineStep& step : walk.steps(true)) {
    const std::pair key(step.run, step.micro_batch);
    if (step.forward) {
      Flight& flight = flights[key] = walk.forward(step);
      micro_batches_peak = std::max(micro_batches_peak, static_cast<std::int64_t>(flights.size()));
      if (walk.ends_model(step))
        flight.gradient = loss_gradient(loss, walk.batch_index(step), flight.model, error);
      continue;
    }
    const auto flight = flights.find(key);
    TROUPE_CHECK(flight != flights.end(), "pipeline: backward of run {}, micro-batch {} too early",
                 step.run, step.micro_batch);
    walk.backward(step, flight->second);
    flights.erase(flight);
  }
  if (meter) {
    metered_tokens = tokens_of(shard);
    activations_peak = std::max(activations_peak, meter->peak_bytes());
  }
  if (error) return fail(*error);
  return {};
}

void TrainEngine::Impl::forward_pipeline(const Shard& shard, const SamplingTransform& transform,
                                         ShardOutput& out) {
  const StageWalk walk(*this, shard, transform);
  for (const PipelineStep& step : walk.steps(false)) {
    const Flight flight = walk.forward(step);
    if (walk.ends_model(step)) put_output(shard.batches[walk.batch_index(step)], flight.model, out);
  }
  const int last = groups->place().pp_size - 1;
  runtime::value_or_throw(groups->pp()->broadcast(out.primary, last, deadline()));
  if (!critic()) runtime::value_or_throw(groups->pp()->broadcast(out.entropy, last, deadline()));
}

result<void> TrainEngine::Impl::share_sums(WeightedSums& sums) {
  if (groups->pp() == nullptr) return {};
  const bool mine = groups->place().pp + 1 == groups->place().pp_size;
  TROUPE_TRY(const auto parts, groups->pp()->all_gather_bytes(
                                   mine ? to_bytes(sums) : std::vector<std::byte>{}, deadline()));
  TROUPE_TRY(sums, from_bytes(parts.back()));
  return {};
}

}  // namespace troupe::actors
