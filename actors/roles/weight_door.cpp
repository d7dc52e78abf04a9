#include "actors/roles/weight_door.hpp"

#include "runtime/base/check.hpp"
#include "runtime/comm/lane_interfaces.hpp"

#include <algorithm>
#include <utility>

namespace troupe::actors {

result<std::shared_ptr<const reshard::PublicationPlan>> WeightDoor::open(
    const PublicationSetup& setup) {
  if (seat_.port == nullptr) {
    reshard::WeightPortOptions options;
    options.transport.name = name_ + " weights";
    options.transport.interfaces = runtime::lane_interfaces(seat_.address);
    options.transport.pack_bytes_max = 2 * setup.bucket.value;
    if (setup.key.size() != options.transport.key.size())
      return fail(ErrorCode::kInvalidArgument, "{}: a key of {} bytes for its port, wanted {}",
                  name_, setup.key.size(), options.transport.key.size());
    std::transform(setup.key.begin(), setup.key.end(), options.transport.key.begin(),
                   [](std::uint8_t byte) { return std::byte{byte}; });
    TROUPE_TRY(own_, reshard::WeightPort::open(std::move(options)));
    seat_.port = own_.get();
  }
  return reshard::PublicationPlan::make(setup.source, setup.target);
}

reshard::WeightPort& WeightDoor::port() const {
  TROUPE_CHECK(seat_.port != nullptr, "{}: its weight port is not open", name_);
  return *seat_.port;
}

tl::unexpected<Error> no_publication(const WeightDoor& door) {
  return fail(ErrorCode::kConflict, "{}: publication before its layouts were exchanged",
              door.name());
}

}  // namespace troupe::actors
