// No text crashes the config.json reader; what it accepts is valid and is read back from what it
// writes.

#include "actors/model/model_config.hpp"
#include "actors/model/rope.hpp"

#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace troupe::actors;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  (void)parse_generation_stop_ids(text, "fuzz");
  const auto config = ModelConfig::from_json(text, "fuzz");
  if (!config) {
    if (!config.error().message.starts_with("fuzz: ")) std::abort();
    return 0;
  }
  if (!config->validate()) std::abort();
  const auto again = ModelConfig::from_json(config->to_json());
  if (!again || *again != *config) std::abort();
  if (config->parameter_count() <= 0) std::abort();
  if (config->head_dim < 1 << 16) (void)rope_inverse_frequencies(*config);
  return 0;
}
