#pragma once

// Places bundles of one shape by counting how many fit where, level by level.
//
// Bundles of one shape differ in nothing, and the tree of racks, domains, nodes, sockets and
// devices is laminar; so a place exists exactly when the counts, cut to what a domain may hold,
// reach the number wanted. Which of the places is taken is a matter of cost: a few candidates (each
// smallest container that has room, filled largest part first, the rest where it fits best) are
// compared.
// **Ownership:** keeps references to problem, sites and state.
// **Threads:** belongs to one owner. For the .cpp files of this folder.
// **Cost:** linear in the sites, with a sort of the parts that are filled.

#include "placement/problem.hpp"
#include "placement/search_state.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace troupe::placement {

struct SiteCount {
  std::size_t site = 0;
  std::int32_t count = 0;
};

/// Root, a rack, a domain, a node or a site, by its index in that depth.
struct Container {
  int depth = 0;
  std::size_t index = 0;
};

inline constexpr int kRootDepth = 0;
inline constexpr int kRackDepth = 1;
inline constexpr int kDomainDepth = 2;
inline constexpr int kNodeDepth = 3;
inline constexpr int kSiteDepth = 4;

/// What bundles placed before mean for the next shape.
struct Occupied {
  std::vector<std::int32_t> counts;  ///< per domain of the level
  std::int32_t total = 0;
  std::vector<std::uint8_t> racks, domains, nodes;

  explicit Occupied(const Problem& problem);
  void add(const Problem& problem, const Site& site, std::int32_t count);
};

class CountFill {
 public:
  /// `now` is the state of View::kFree when the problem's view is another, else null.
  CountFill(const Problem& problem, const SiteList& sites, SearchState& state, SearchState* now);

  /// Counts in ascending order of sites for `wanted` bundles of the shape inside the container;
  /// empty: no place there. `only` ≥ 0 allows one domain of the level. With a per-domain number
  /// that must be met exactly, `wanted` must be all that is missing.
  std::optional<std::vector<SiteCount>> fill(const Shape& shape, std::int32_t wanted,
                                             const Container& container, const Occupied& occupied,
                                             std::int32_t only);

  /// How many of the shape fit, at most `limit`, after a call of `fill` or `measure`.
  std::int32_t room(const Container& container) const {
    return caps_[static_cast<std::size_t>(container.depth)][container.index];
  }
  /// Counts without filling.
  void measure(const Shape& shape, std::int32_t limit, const Container& container,
               const Occupied& occupied, std::int32_t only);
  std::size_t count_at(int depth) const;
  /// The run of parts at `depth` inside a container.
  std::pair<std::size_t, std::size_t> parts(const Container& container, int depth) const;

 private:
  using Caps = std::vector<std::int32_t>;
  using Counts = std::vector<SiteCount>;
  using Amounts = std::vector<std::pair<std::size_t, std::int32_t>>;  ///< (part, how many)
  /// (shortage now, new domains of the level, racks, domains, nodes, room left over)
  using Cost = std::tuple<std::int64_t, int, int, int, int, std::int64_t>;
  struct Part {
    std::size_t index = 0;
    std::int32_t cap = 0;
    std::int32_t now = 0;
    std::int64_t hole = 0;
    bool used = false;
  };
  struct Floor {
    int level = 0;
    int nodes = 0;
  };
  struct Best {
    std::optional<Counts> counts;
    Cost cost = {};
  };

  void sum_up(const Container& container, Caps (&caps)[5], int from_depth,
              std::int32_t chunk = 1) const;
  void limit_to_rules(const Container& container, const Occupied& occupied, std::int32_t only);
  std::vector<Part> parts_of(const Container& container, int depth, const Caps& caps,
                             const Occupied& occupied) const;
  void pick(std::vector<Part>& parts, std::int32_t wanted, Amounts& out) const;
  void descend(const Container& container, std::int32_t wanted, int stop, const Caps (&caps)[5],
               const Occupied& occupied, Amounts& out) const;
  Counts inside(const Amounts& domains, const Occupied& occupied) const;
  Cost cost(const Counts& counts, const Occupied& occupied, std::int64_t leftover) const;
  void consider(Best& best, Counts counts, const Occupied& occupied, std::int64_t leftover) const;
  std::optional<Counts> choose(const Container& container, std::int32_t wanted, std::int32_t chunk,
                               const Amounts& forced, const Occupied& occupied) const;
  void choose_in_one_domain(Best& best, const Container& container, std::int32_t wanted,
                            const Occupied& occupied, const Floor& floor) const;
  std::int64_t fill_to_height(const Container& container, std::int32_t height,
                              const Occupied& occupied, Amounts* out) const;
  std::optional<Counts> choose_exact(const Container& container, std::int32_t wanted,
                                     const Occupied& occupied);
  std::optional<Counts> choose_spread(const Container& container, std::int32_t wanted,
                                      const Occupied& occupied);
  std::optional<Counts> smallest_site(const Container& container, std::int32_t wanted,
                                      const Occupied& occupied) const;
  Floor floor_of(const Container& container, std::int32_t wanted) const;
  static bool is_good_enough(const Best& best, const Floor& floor);
  bool is_used(const Occupied& occupied, int depth, std::size_t index) const;
  std::int64_t hole(int depth, std::size_t index) const;

  const Problem& problem_;
  const SiteList& sites_;
  SearchState& state_;
  SearchState* now_;
  int leaf_depth_;
  int level_depth_;
  const Shape* shape_ = nullptr;
  Caps now_caps_[5];  ///< as caps_ of what is free now, when now_ is given
  Caps caps_[5];      ///< bundles per part; the rules cut the level's parts and those above
  Caps node_room_;    ///< at levels below the node: what its parts may take together
  Caps units_[5];     ///< units per part, from the level upwards
};

}  // namespace troupe::placement
