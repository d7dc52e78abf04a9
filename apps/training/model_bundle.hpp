#pragma once

// A model folder, opened: configuration, weights, tokenizer, chat template and stop ids.
//
// **Ownership:** owns all of it; the chat template points at the tokenizer beside it, so a bundle
// stays where it was made.
// **Threads:** immutable after `open`.

#include "actors/model/hf_folder.hpp"
#include "actors/model/model_config.hpp"
#include "actors/text/chat_template.hpp"
#include "actors/text/tokenizer.hpp"

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace troupe::apps {

struct ModelOptions {
  bool random_weights = false;  ///< make new weights from config.json instead of reading them
  std::uint64_t seed = 0;       ///< of random weights
  std::map<std::string, std::string> config_overrides;  ///< config.json fields, as YAML text
  std::string chat_template = "auto";                   ///< auto, llama3, qwen, plain
  actors::ChatOptions chat = {};                        ///< of that template
  std::filesystem::path tokenizer_folder;               ///< empty: the model's
};

class ModelBundle {
 public:
  /// Reads a Hugging Face folder. Errors name the file and what is wrong with it; a tokenizer with
  /// ids beyond the embedding is kConflict naming both sizes.
  static result<std::unique_ptr<ModelBundle>> open(const std::filesystem::path& folder,
                                                   const ModelOptions& options = {});
  ModelBundle(const ModelBundle&) = delete;
  ModelBundle& operator=(const ModelBundle&) = delete;

  const actors::ModelConfig& config() const { return config_; }
  const actors::WeightSet& weights() const { return weights_; }
  const actors::Tokenizer& tokenizer() const { return tokenizer_; }
  const actors::ChatTemplate& chat() const { return *chat_; }
  const std::filesystem::path& folder() const { return folder_; }
  const std::filesystem::path& tokenizer_folder() const { return tokenizer_folder_; }
  /// End of turn, and every stop id of the folder's configuration.
  const std::vector<std::int32_t>& stop_ids() const { return stop_ids_; }

  /// A conversation as ids, generation prompt included.
  result<std::vector<std::int32_t>> encode_prompt(std::span<const actors::Message> messages) const;
  /// A response as ids, ended by the first stop id: what supervised fine-tuning learns.
  std::vector<std::int32_t> encode_response(std::string_view text) const;

 private:
  ModelBundle(std::filesystem::path folder, std::filesystem::path tokenizer_folder,
              actors::ModelConfig config, actors::WeightSet weights, actors::Tokenizer tokenizer);

  std::filesystem::path folder_;
  std::filesystem::path tokenizer_folder_;
  actors::ModelConfig config_;
  actors::WeightSet weights_;
  actors::Tokenizer tokenizer_;
  std::unique_ptr<actors::ChatTemplate> chat_;
  std::vector<std::int32_t> stop_ids_;
};

}  // namespace troupe::apps
