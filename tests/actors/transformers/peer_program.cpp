// Troupe's side of scripts/check_transformers: saves checkpoints, and tells the logits of a folder.
//
//   transformers_peer save OUT           every checkpoint of tests/fixtures/transformers as Troupe
//                                        saves it, whole in OUT/NAME and cut in OUT/NAME.shards
//   transformers_peer logits FOLDER FILE ID…   logits [T, V] of these tokens, as safetensors

#include "tests/actors/transformers/runner_logits.hpp"
#include "tests/support/transformers_case.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::actors {
namespace {

result<void> save_all(const std::filesystem::path& out) {
  for (const std::string& name : troupe::testing::transformers_cases()) {
    const auto golden = troupe::testing::load_transformers_case(name);
    HfSaveOptions options{.stored_type = golden.config.stored_type};
    TROUPE_TRY_VOID(save_hf_folder(out / name, golden.config, golden.weights.tensors(), options));
    options.max_shard_bytes = 8000;
    TROUPE_TRY_VOID(
        save_hf_folder(out / (name + ".shards"), golden.config, golden.weights.tensors(), options));
  }
  return {};
}

result<void> write_logits(const std::filesystem::path& folder, const std::filesystem::path& file,
                          const std::vector<std::int32_t>& ids) {
  TROUPE_TRY(const ModelConfig config, ModelConfig::load(folder));
  TROUPE_TRY(const WeightSet weights, load_hf_weights(folder, config));
  TROUPE_TRY(const std::vector<float> logits,
             runner_logits(config, weights.tensors(), ids, ids.size()));
  const TensorView view{.name = "logits",
                        .type = TensorType::kF32,
                        .shape = {static_cast<std::int64_t>(ids.size()), config.vocab_size},
                        .bytes = std::as_bytes(std::span(logits))};
  return write_safetensors(file, {&view, 1});
}

result<void> run(const std::vector<std::string>& words) {
  if (words.size() == 2 && words[0] == "save") return save_all(words[1]);
  if (words.size() > 3 && words[0] == "logits") {
    std::vector<std::int32_t> ids;
    for (std::size_t i = 3; i < words.size(); ++i)
      ids.push_back(static_cast<std::int32_t>(std::strtol(words[i].c_str(), nullptr, 10)));
    return write_logits(words[1], words[2], ids);
  }
  return fail(ErrorCode::kInvalidArgument,
              "transformers_peer: wanted save OUT, or logits FOLDER FILE ID…");
}

}  // namespace
}  // namespace troupe::actors

int main(int count, char** words) {
  const auto done = troupe::actors::run({words + 1, words + count});
  if (done) return 0;
  fmt::print(stderr, "{}\n", done.error().to_string());
  return 1;
}
