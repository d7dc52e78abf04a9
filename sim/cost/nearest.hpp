#pragma once

// The nearest possible number, for refusals that say what would do.
//
// **Threads:** pure.

namespace troupe::sim {

/// Of the numbers that `fits`, the one nearest to `wanted` (≥ 1) and at most `reach` from it; of
/// two equally near the smaller; 1 when there is none.
template <class Number, class Fits>
Number nearest_that_fits(Number wanted, Number reach, Fits fits) {
  for (Number step = 1; step <= reach; ++step) {
    if (wanted > step && fits(wanted - step)) return wanted - step;
    if (fits(wanted + step)) return wanted + step;
  }
  return 1;
}

}  // namespace troupe::sim
