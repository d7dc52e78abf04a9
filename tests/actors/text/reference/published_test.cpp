// Proves with published tokenizers (Qwen2, Llama 3) and chat templates (Qwen2.5, Qwen3, SmolLM2,
// Llama 3 to 3.2) that ids are those of the Hugging Face tokenizers library, on all of GSM8K and on
// texts in many scripts, and that conversations come out as transformers' Jinja writes them.
//
// They belong to others and are not here: scripts/fetch_reference_text says how to get them. Name
// the folder in TROUPE_REFERENCE_TEXT, or these tests are skipped.

#include "tests/actors/text/reference/golden_text.hpp"

#include <cstdlib>

namespace troupe::actors {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

class PublishedText : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("TROUPE_REFERENCE_TEXT");
    if (folder == nullptr)
      GTEST_SKIP() << "TROUPE_REFERENCE_TEXT does not name what scripts/fetch_reference_text made";
    folder_ = folder;
  }
  fs::path folder_;
};

TEST_F(PublishedText, HasTheIdsOfTheHuggingFaceLibrary) {
  const json golden = golden_text("texts.json");
  for (const std::string name : {"qwen2", "llama3"}) {
    SCOPED_TRACE(name);
    const auto tokenizer = Tokenizer::load(folder_ / "tokenizers" / name);
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    const json& facts = golden.at("tokenizers").at("published " + name);
    expect_texts(*tokenizer, facts, golden.at("texts"));
    EXPECT_TRUE(expect_gsm8k(*tokenizer, facts)) << "GSM8K is not there";
  }
}

TEST_F(PublishedText, OfChatTemplatesIsUnderstood) {
  std::size_t compared = 0;
  for (const json& item : golden_text("chats.json")) {
    const fs::path path =
        folder_ / "templates" / (item.at("template").get<std::string>() + ".jinja");
    // SmolLM2's comes from another package and may be left out.
    if (!fs::exists(path) && item.at("template") == "smollm2") continue;
    expect_chat(item, troupe::testing::read_file(path));
    ++compared;
  }
  EXPECT_GT(compared, 80U);
}

}  // namespace
}  // namespace troupe::actors
