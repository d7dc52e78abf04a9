#include "runtime/task/failure.hpp"

#include "runtime/base/check.hpp"

namespace troupe::runtime {

Error error_of_current_exception() {
  const auto internal = [](std::string text) {
    return Error{
        .code = ErrorCode::kInternal, .message = std::move(text), .origin = {}, .causes = {}};
  };
  try {
    throw;
  } catch (const Failure& failure) {
    return failure.error();
  } catch (const CheckFailure& failure) {
    return internal(failure.what());
  } catch (const std::exception& exception) {
    return internal(fmt::format("exception: {}", exception.what()));
  } catch (...) {
    return internal("exception of a type that is not std::exception");
  }
}

}  // namespace troupe::runtime
