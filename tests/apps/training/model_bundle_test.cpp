// Proves that the configuration's words about prompts reach them: the system message of a template
// is there unless `data.default_system` says another or none, and thinking can be switched off
// where the template has a switch.

#include "apps/training/model_bundle.hpp"

#include "apps/training/train_settings.hpp"
#include "runtime/config/config.hpp"
#include "tests/support/test_files.hpp"
#include "tests/support/tiny_model.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace troupe::apps {
namespace {

using ::testing::HasSubstr;

const std::string kThinkSwitch =
    "{% if enable_thinking is defined and enable_thinking is false %}"
    "{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}";

std::string template_with(const std::string& after_header) {
  return "{% if none %}{{ '<|im_start|>system\\nOwn.<|im_end|>\\n' }}{% endif %}"
         "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}" +
         after_header + "{% endif %}";
}

/// The prompt of one question, or the error, as text.
std::string prompt_text(const std::string& jinja, const std::vector<std::string>& words) {
  const testing::TemporaryFolder folder;
  testing::make_tiny_model(folder / "model", {});
  testing::write_file(folder / "model/chat_template.jinja", jinja);
  const auto config = runtime::Config::load(schema_for({}), "", words);
  if (!config) return config.error().to_string();
  const auto model = ModelBundle::open(folder / "model", model_options(*config));
  if (!model) return model.error().to_string();
  const auto ids = (*model)->encode_prompt(std::vector<actors::Message>{{"user", "hi"}});
  if (!ids) return ids.error().to_string();
  return (*model)->tokenizer().decode(*ids);
}

TEST(ModelBundle, PutsTheSystemMessageThatTheConfigurationOrTheTemplateHas) {
  const std::string rest = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
  const std::string jinja = template_with("");
  EXPECT_EQ(prompt_text(jinja, {}), "<|im_start|>system\nOwn.<|im_end|>\n" + rest);
  EXPECT_EQ(prompt_text(jinja, {"data.default_system=Mine."}),
            "<|im_start|>system\nMine.<|im_end|>\n" + rest);
  EXPECT_EQ(prompt_text(jinja, {"data.default_system=\"\""}), rest);
}

TEST(ModelBundle, SwitchesThinkingOffWhereTheTemplateHasASwitch) {
  const std::vector<std::string> off = {"data.apply_chat_template_kwargs.enable_thinking=false"};
  EXPECT_THAT(prompt_text(template_with(kThinkSwitch), off),
              ::testing::EndsWith("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
  EXPECT_THAT(prompt_text(template_with(kThinkSwitch), {}),
              ::testing::EndsWith("<|im_start|>assistant\n"));
  EXPECT_THAT(prompt_text(template_with(""), off), HasSubstr("enable_thinking"));
}

}  // namespace
}  // namespace troupe::apps
