// Speed of paged attention: decode (one query per sequence) and prefill (all queries), one layer,
// one thread. Prints microseconds, and for decode the rate at which the cache is read.
//
// `--check` fails when attending a prompt in one call is slower than position by position (by more
// than 10 %, for noise).

#include "actors/rollout/kv_cache.hpp"
#include "runtime/base/clock.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string_view>
#include <vector>

namespace {

using namespace troupe;
using namespace troupe::actors;

struct Shape {
  const char* name;
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t head_dim;
};

class Layer {
 public:
  Layer(Shape shape, std::int64_t sequences, std::int64_t tokens)
      : shape_(shape),
        sequences_(sequences),
        tokens_(tokens),
        blocks_(blocks_for_tokens(tokens)),
        cache_(config(shape), sequences * blocks_),
        query_(tokens * padded(shape.heads * shape.head_dim)),
        output_(tokens * padded(shape.heads * shape.head_dim)),
        scratch_(attention_scratch_floats(shape.heads / shape.kv_heads, shape.head_dim, tokens)) {
    const std::vector<float> row(static_cast<std::size_t>(shape.head_dim), 0.02f);
    for (std::int64_t block = 0; block < sequences * blocks_; ++block) {
      table_.push_back(static_cast<std::int32_t>(block));
      for (std::int64_t head = 0; head < shape.kv_heads; ++head)
        for (std::int64_t slot = 0; slot < kBlockTokens; ++slot)
          cache_.store(0, head, table_.back(), slot, row.data(), row.data());
    }
  }
  void attend(const KernelTable& kernels, std::int64_t sequence, std::int64_t first,
              std::int64_t queries) {
    const std::int64_t group = shape_.heads / shape_.kv_heads;
    const std::int64_t stride = padded(shape_.heads * shape_.head_dim);
    for (std::int64_t head = 0; head < shape_.kv_heads; ++head)
      kernels.attention(AttentionCall{.query = query_.data() + head * group * shape_.head_dim,
                                      .query_stride = stride,
                                      .output = output_.data() + head * group * shape_.head_dim,
                                      .output_stride = stride,
                                      .queries = queries,
                                      .heads = group,
                                      .head_dim = shape_.head_dim,
                                      .first_keys = first + 1,
                                      .cache = cache_.base(0, head),
                                      .values_offset = cache_.values_offset(),
                                      .block_stride = cache_.block_stride(),
                                      .blocks = table_.data() + sequence * blocks_,
                                      .scratch = scratch_.data()});
  }
  void decode(const KernelTable& kernels) {
    for (std::int64_t s = 0; s < sequences_; ++s) attend(kernels, s, tokens_ - 1, 1);
  }
  Bytes bytes() const { return cache_.bytes(); }

 private:
  static ModelConfig config(Shape shape) {
    ModelConfig config;
    config.layer_count = 1;
    config.head_count = shape.heads;
    config.kv_head_count = shape.kv_heads;
    config.head_dim = shape.head_dim;
    return config;
  }
  Shape shape_;
  std::int64_t sequences_;
  std::int64_t tokens_;
  std::int64_t blocks_;
  KvCache cache_;
  AlignedBuffer query_, output_, scratch_;
  std::vector<std::int32_t> table_;
};

template <class F>
double best_seconds(F&& f) {
  double best = 1e9;
  for (int i = 0; i < 15; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    f();
    best = std::min(best, seconds(std::chrono::steady_clock::now() - begin));
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const bool check = argc > 1 && std::string_view(argv[1]) == "--check";
  bool ok = true;
  for (const Shape shape : {Shape{"stories260K", 8, 4, 8}, Shape{"SmolLM2-135M", 9, 3, 64},
                            Shape{"Qwen2.5-0.5B", 14, 2, 64}, Shape{"Qwen3-0.6B", 16, 8, 128}}) {
    for (const KernelPath path : {KernelPath::kAvx512, KernelPath::kAvx2}) {
      if (!kernel_path_available(path)) continue;
      const KernelTable& kernels = kernel_table(path);
      Layer decode(shape, 8, 257);
      const double decode_s = best_seconds([&] { decode.decode(kernels); });
      Layer prefill(shape, 1, 512);
      const double whole = best_seconds([&] { prefill.attend(kernels, 0, 0, 512); });
      const double single = best_seconds([&] {
        for (std::int64_t t = 0; t < 512; ++t) prefill.attend(kernels, 0, t, 1);
      });
      const double flops = 4.0 * static_cast<double>(shape.heads * shape.head_dim) * 512 * 513 / 2;
      fmt::print(
          "{:<13} {:<7} decode 8 x 257: {:>7.1f} us ({:>5.1f} GB/s)   "
          "prefill 512: {:>8.1f} us, {:.1f} GFLOP/s, {:.2f}x one by one\n",
          shape.name, kernel_path_name(path), decode_s * 1e6,
          static_cast<double>(decode.bytes().value) / decode_s * 1e-9, whole * 1e6,
          flops / whole * 1e-9, single / whole);
      ok = ok && whole <= single * 1.1;
    }
  }
  fmt::print("a prompt in one call is not slower than position by position: {}\n",
             ok ? "yes" : "NO");
  return check && !ok ? 1 : 0;
}
