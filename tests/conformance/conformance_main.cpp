// Prints `docs/conformance.md`: published figures against what the simulator says.
//
//   conformance [FILE]     FILE: the published figures, else those of the source tree

#include "runtime/base/log.hpp"
#include "tests/conformance/compare.hpp"

#include <cstdio>

int main(int argc, char** argv) {
  using namespace troupe::conformance;
  troupe::log::set_up(troupe::log::Level::kWarn);  // the page alone goes to standard output
  const std::string file =
      argc > 1 ? argv[1] : TROUPE_SOURCE_DIR "/tests/conformance/published.yaml";
  const auto published = read_published(file);
  if (!published) {
    std::fprintf(stderr, "%s\n", published.error().to_string().c_str());
    return 1;
  }
  const auto results = compare(*published);
  if (!results) {
    std::fprintf(stderr, "%s\n", results.error().to_string().c_str());
    return 1;
  }
  std::fputs(page_of(*published, *results).c_str(), stdout);
  return 0;
}
