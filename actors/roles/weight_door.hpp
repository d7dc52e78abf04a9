#pragma once

// A rank's way to the weights of the other side: its port, and the plan that all ranks share.
//
// **Ownership:** owns the port unless it was given one; outlives the source or target that uses it.
// **Threads:** the engine thread of its rank.
// **Invariants:** the port opens once; every later setup makes a new plan over it.

#include "actors/roles/publication_wire.hpp"
#include "reshard/execution/publication_plan.hpp"
#include "reshard/execution/weight_port.hpp"

#include <memory>
#include <string>

namespace troupe::actors {

/// Where a rank sits, for exchanging weights.
struct WeightSeat {
  reshard::WeightPort* port =
      nullptr;               ///< shared by all ranks of this process; null: one is opened
  std::string host = {};     ///< see WeightLayout
  std::string address = {};  ///< of this host towards the others, for its port
};

class WeightDoor {
 public:
  /// `name`: of this rank in messages, e.g. `policy rank 3`.
  WeightDoor(WeightSeat seat, std::string name) : seat_(std::move(seat)), name_(std::move(name)) {}

  const std::string& host() const { return seat_.host; }
  const std::string& name() const { return name_; }
  /// Opens the port, if there is none yet, and makes the plan. Errors of either.
  result<std::shared_ptr<const reshard::PublicationPlan>> open(const PublicationSetup& setup);
  /// CHECKs that it is open.
  reshard::WeightPort& port() const;

 private:
  WeightSeat seat_;
  std::string name_;
  std::unique_ptr<reshard::WeightPort> own_;
};

/// Weights that nobody has agreed to publish yet.
tl::unexpected<Error> no_publication(const WeightDoor& door);

}  // namespace troupe::actors
