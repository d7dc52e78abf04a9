#include "reshard/nccl/rounds.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace troupe::reshard::nccl {
namespace {

/// How full each round of one direction of one rank is.
struct Fill {
  std::vector<std::int64_t> used;
  std::size_t open = 0;  ///< rounds before it are full

  std::int64_t left(std::size_t round, std::int64_t bucket) const {
    return round < used.size() ? bucket - used[round] : bucket;
  }
  void take(std::size_t round, std::int64_t bytes, std::int64_t bucket, std::int64_t least) {
    if (round >= used.size()) used.resize(round + 1, 0);
    used[round] += bytes;
    while (open < used.size() && bucket - used[open] < least) ++open;
  }
};

/// Walks an operation's box: whole rows, unless one alone exceeds a bucket.
class Walk {
 public:
  Walk(const Box& box, std::int64_t element, std::int64_t bucket)
      : box_(box),
        element_(element),
        row_bytes_(box.cols() * element),
        wide_(row_bytes_ > bucket),
        row_(box.row_begin),
        col_(box.col_begin) {}
  bool over() const { return row_ == box_.row_end; }
  std::int64_t bytes_left() const {
    return (box_.row_end - row_) * row_bytes_ - (col_ - box_.col_begin) * element_;
  }
  /// The next rectangle of at most `space` bytes; empty when none fits.
  Box next(std::int64_t space) {
    Box cut{row_, row_, col_, box_.col_end};
    if (wide_) {
      const std::int64_t cols = std::min(box_.col_end - col_, space / element_);
      if (cols <= 0) return {};
      cut = {row_, row_ + 1, col_, col_ + cols};
      col_ += cols;
      if (col_ == box_.col_end) {
        ++row_;
        col_ = box_.col_begin;
      }
      return cut;
    }
    const std::int64_t rows = std::min(box_.row_end - row_, space / row_bytes_);
    if (rows <= 0) return {};
    cut.row_end = row_ + rows;
    row_ += rows;
    return cut;
  }

 private:
  Box box_;
  std::int64_t element_, row_bytes_;
  bool wide_;
  std::int64_t row_, col_;
};

class Dealer {
 public:
  Dealer(const PublicationPlan& plan, std::int32_t rank, std::int64_t bucket)
      : plan_(plan), rank_(rank), bucket_(bucket), least_(std::max<std::int64_t>(bucket / 8, 1)) {}

  std::vector<Round> deal() {
    const std::vector<Op>& ops = plan_.plan().ops;
    last_round_.assign(ops.size(), -1);
    for (std::size_t i = 0; i < ops.size(); ++i) deal_op(static_cast<std::int32_t>(i));
    std::vector<Round> rounds;
    for (auto& [index, round] : rounds_) rounds.push_back(std::move(round));
    return rounds;
  }

 private:
  void deal_op(std::int32_t index) {
    const Op& op = plan_.op(index);
    if (op.source_rank == op.target_rank) return;
    const std::int64_t element = element_bytes(plan_.tensor_of(op).dtype);
    Fill& out = sends_[op.source_rank];
    Fill& in = receives_[op.target_rank];
    std::int32_t& pair = pairs_[{op.source_rank, op.target_rank}];
    const std::int32_t fed = op.after < 0 ? -1 : last_round_[static_cast<std::size_t>(op.after)];
    std::size_t round = std::max({out.open, in.open, static_cast<std::size_t>(pair),
                                  fed < 0 ? std::size_t{0} : static_cast<std::size_t>(fed) + 2});
    Walk walk(op.box(), element, bucket_);
    while (!walk.over()) {
      const std::int64_t space = std::min(out.left(round, bucket_), in.left(round, bucket_));
      // Slivers cost a message each and save nothing.
      const bool worth = space >= std::min(walk.bytes_left(), std::max(least_, element));
      const Box cut = worth ? walk.next(space) : Box();
      if (cut.empty()) {
        ++round;
        continue;
      }
      const std::int64_t bytes = cut.elements() * element;
      out.take(round, bytes, bucket_, least_);
      in.take(round, bytes, bucket_, least_);
      keep(op, index, static_cast<std::int32_t>(round), cut, bytes, fed);
    }
    pair = static_cast<std::int32_t>(round);
    last_round_[static_cast<std::size_t>(index)] = pair;
  }

  void keep(const Op& op, std::int32_t index, std::int32_t number, const Box& cut,
            std::int64_t bytes, std::int32_t fed) {
    if (op.source_rank != rank_ && op.target_rank != rank_) return;
    Round& round = rounds_[number];
    round.index = number;
    const bool sends = op.source_rank == rank_;
    std::vector<Message>& messages = sends ? round.sends : round.receives;
    const auto peer = [sends](const Message& one) { return sends ? one.target : one.source; };
    const std::int32_t wanted = sends ? op.target_rank : op.source_rank;
    auto place = std::find_if(messages.begin(), messages.end(),
                              [&](const Message& one) { return peer(one) >= wanted; });
    if (place == messages.end() || peer(*place) != wanted)
      place = messages.insert(place, {op.source_rank, op.target_rank, {}, 0});
    place->cuts.push_back({index, cut});
    place->bytes += bytes;
    if (sends) round.hands_on = std::max(round.hands_on, fed);
  }

  const PublicationPlan& plan_;
  std::int32_t rank_;
  std::int64_t bucket_, least_;
  std::map<std::int32_t, Fill> sends_, receives_;
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> pairs_;
  std::vector<std::int32_t> last_round_;  ///< of each operation
  std::map<std::int32_t, Round> rounds_;
};

}  // namespace

result<std::vector<Round>> cut_rounds(const PublicationPlan& plan, std::int32_t rank,
                                      std::int64_t bucket_bytes) {
  constexpr std::int64_t kElementMost = 8;
  if (bucket_bytes < kElementMost)
    return fail(ErrorCode::kInvalidArgument, "rounds: buckets of {} bytes, wanted {} at least",
                bucket_bytes, kElementMost);
  return Dealer(plan, rank, bucket_bytes).deal();
}

}  // namespace troupe::reshard::nccl
