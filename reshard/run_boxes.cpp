#include "reshard/run_boxes.hpp"

#include <algorithm>

namespace troupe::reshard {

std::array<Box, 3> run_boxes(const Box& box, std::int64_t first, std::int64_t count) {
  std::array<Box, 3> boxes{};
  const std::int64_t cols = box.cols();
  if (count <= 0) return boxes;
  std::int64_t row = box.row_begin + first / cols;
  const std::int64_t col = first % cols;
  if (col > 0) {
    const std::int64_t head = std::min(count, cols - col);
    boxes[0] = {row, row + 1, box.col_begin + col, box.col_begin + col + head};
    count -= head;
    ++row;
  }
  const std::int64_t rows = count / cols;
  if (rows > 0) boxes[1] = {row, row + rows, box.col_begin, box.col_end};
  if (const std::int64_t tail = count % cols; tail > 0)
    boxes[2] = {row + rows, row + rows + 1, box.col_begin, box.col_begin + tail};
  return boxes;
}

}  // namespace troupe::reshard
