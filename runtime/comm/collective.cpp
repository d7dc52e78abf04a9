#include "runtime/comm/collective.hpp"

namespace troupe::runtime {

std::string_view reduce_op_name(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kProduct:
      return "product";
  }
  return "?";
}

std::string_view element_type_name(ElementType type) {
  switch (type) {
    case ElementType::kF32:
      return "f32";
    case ElementType::kF64:
      return "f64";
    case ElementType::kI64:
      return "i64";
    case ElementType::kByte:
      return "byte";
  }
  return "?";
}

std::size_t element_bytes(ElementType type) {
  switch (type) {
    case ElementType::kF32:
      return 4;
    case ElementType::kF64:
    case ElementType::kI64:
      return 8;
    case ElementType::kByte:
      return 1;
  }
  return 1;
}

ConstBuffer Buffer::as_const() const {
  ConstBuffer view;
  view.data = data;
  view.count = count;
  view.type = type;
  return view;
}

}  // namespace troupe::runtime
