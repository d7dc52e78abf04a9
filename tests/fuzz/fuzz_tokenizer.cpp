// No text crashes the tokenizer.json reader, and no tokenizer it accepts crashes or breaks its
// laws: ids are known, decoded text is UTF-8, untrusted text gives no special id out of merges, and
// the input itself encodes like any other text.

#include "actors/text/tokenizer.hpp"
#include "runtime/base/utf8.hpp"
#include "runtime/base/check.hpp"

#include <cstdlib>
#include <string>

namespace {

using namespace troupe::actors;

void must(bool held) {
  if (!held) std::abort();
}

void use(const Tokenizer& tokenizer, std::string_view text) {
  for (const bool trusted : {false, true}) {
    const auto ids = tokenizer.encode(text, {.trusted = trusted, .add_special = trusted});
    for (const std::int32_t id : ids) must(id >= 0 && id < tokenizer.vocab_size());
    const std::string decoded = tokenizer.decode(ids);
    must(troupe::is_valid_utf8(decoded));
    StreamDecoder stream(tokenizer);
    std::string joined;
    for (const std::int32_t id : ids) joined += stream.push(id);
    must(joined + stream.finish() == decoded);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = Tokenizer::from_json(text, {}, "fuzz");
  if (!tokenizer) {
    must(tokenizer.error().message.starts_with("fuzz"));
    return 0;
  }
  try {
    for (const char* sample : {"", "a b", "It's 12,5\n\n  \t<s></s><|end|>", "\xff\xc3 é 世 😀 ▁"})
      use(*tokenizer, sample);
    use(*tokenizer, text.substr(0, 64));
  } catch (const troupe::CheckFailure&) {
    // A pattern of the file needs unreasonable work: reported, as promised.
  }
  return 0;
}
