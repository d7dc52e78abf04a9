#include "reshard/nccl/nccl_library.hpp"

#include "reshard/nccl/shared_library.hpp"

namespace troupe::reshard::nccl {

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

result<std::shared_ptr<const NcclLibrary>> NcclLibrary::open(
    const std::vector<std::string>& names) {
  TROUPE_TRY(const SharedLibrary library, SharedLibrary::open("nccl", names));
  Calls calls;
  TROUPE_TRY_VOID(library.bind(calls.get_version, "ncclGetVersion"));
  TROUPE_TRY_VOID(library.bind(calls.get_unique_id, "ncclGetUniqueId"));
  TROUPE_TRY_VOID(library.bind(calls.comm_init_rank_config, "ncclCommInitRankConfig"));
  TROUPE_TRY_VOID(library.bind(calls.comm_get_async_error, "ncclCommGetAsyncError"));
  TROUPE_TRY_VOID(library.bind(calls.comm_abort, "ncclCommAbort"));
  TROUPE_TRY_VOID(library.bind(calls.get_error_string, "ncclGetErrorString"));
  TROUPE_TRY_VOID(library.bind(calls.get_last_error, "ncclGetLastError"));
  TROUPE_TRY_VOID(library.bind(calls.group_start, "ncclGroupStart"));
  TROUPE_TRY_VOID(library.bind(calls.group_end, "ncclGroupEnd"));
  TROUPE_TRY_VOID(library.bind(calls.send, "ncclSend"));
  TROUPE_TRY_VOID(library.bind(calls.receive, "ncclRecv"));
  return from(calls, library.name());
}

result<std::shared_ptr<const NcclLibrary>> NcclLibrary::from(const Calls& calls, std::string name) {
  int version = 0;
  if (const Code code = calls.get_version(&version); code != Code::kSuccess)
    return fail(ErrorCode::kUnsupported, "{}: does not tell its version: code {}", name,
                static_cast<int>(code));
  if (version < kVersionMin || version > kVersionMax)
    return fail(ErrorCode::kUnsupported, "{}: nccl {} where {} to {} are known", name,
                version_text(version), version_text(kVersionMin), version_text(kVersionMax));
  return std::shared_ptr<const NcclLibrary>(new NcclLibrary(calls, std::move(name), version));
}

result<UniqueId> NcclLibrary::unique_id() const {
  UniqueId id{};
  if (const Code code = calls_.get_unique_id(&id); code != Code::kSuccess)
    return fail(ErrorCode::kIo, "{}: cannot make a unique id: {}", name_, text_of(code));
  return id;
}

std::string NcclLibrary::text_of(Code code, Comm* comm) const {
  const char* said = calls_.get_error_string(code);
  std::string text =
      fmt::format("{} (nccl {})", said == nullptr ? "?" : said, static_cast<int>(code));
  const char* last = comm == nullptr ? nullptr : calls_.get_last_error(comm);
  if (last != nullptr && *last != '\0') text += fmt::format(": {}", last);
  return text;
}

}  // namespace troupe::reshard::nccl
