#include "runtime/group/dispatch_traits.hpp"

#include <string>

namespace troupe::runtime {

result<Batch> DispatchTraits<Batch>::strip(const Batch& whole, const Padding& padding) {
  if (whole.rows() != padding.padded_rows) {
    if (whole.has(kValidColumn)) return whole.strip_padding();
    return fail(ErrorCode::kConflict,
                "{} result rows for {} padded rows and no column {}; which are padding cannot be "
                "told",
                whole.rows(), padding.padded_rows, kValidColumn);
  }
  TROUPE_TRY(Batch kept, whole.slice(0, padding.rows));
  if (!padding.flagged && kept.has(kValidColumn)) {
    TROUPE_TRY(kept, kept.drop({std::string(kValidColumn)}));
  }
  // A slice drops metrics; these describe the whole result, and stay.
  kept.metrics() = whole.metrics();
  return kept;
}

}  // namespace troupe::runtime
