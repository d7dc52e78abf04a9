#include "actors/model/gguf_model.hpp"
#include "actors/model/hf_folder.hpp"
#include "actors/text/tokenizer.hpp"
#include "runtime/base/file.hpp"

#include <algorithm>

namespace troupe::actors {

result<GgufConverted> convert_gguf(const std::filesystem::path& source,
                                   const std::filesystem::path& folder,
                                   GgufConvertOptions options) {
  TROUPE_TRY(const GgufFile file, GgufFile::open(source));
  TROUPE_TRY(const ModelConfig config, gguf_config(file));
  TROUPE_TRY(const TokenizerFiles files, gguf_tokenizer(file));
  TROUPE_TRY(const Tokenizer tokenizer,
             Tokenizer::from_json(files.tokenizer_json, files.config_json,
                                  source.string() + ": tokenizer.ggml"));
  if (tokenizer.vocab_size() > config.vocab_size)
    return fail(ErrorCode::kConflict, "{}: {} tokens, but token_embd.weight has {} rows",
                source.string(), tokenizer.vocab_size(), config.vocab_size);
  TROUPE_TRY(const WeightSet weights, gguf_weights(file, config));
  TROUPE_TRY_VOID(save_hf_folder(folder, config, weights.tensors(),
                                 {.stored_type = options.stored_type, .tokenizer_folder = {}}));
  TROUPE_TRY_VOID(write_text_file(folder / "tokenizer.json", files.tokenizer_json));
  TROUPE_TRY_VOID(write_text_file(folder / "tokenizer_config.json", files.config_json));
  GgufConverted done{.config = config, .tensors = file.tensors().size()};
  done.quantised =
      static_cast<std::size_t>(std::ranges::count_if(file.tensors(), [](const GgufTensor& tensor) {
        return ggml_block_elements(tensor.type) > 1;
      }));
  return done;
}

}  // namespace troupe::actors
