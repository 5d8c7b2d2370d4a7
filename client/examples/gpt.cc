#include "client/examples/gpt.h"

#include <cmath>
#include <limits>
#include <string>

#include <ATen/ATen.h>

namespace ravenstore::examples {
namespace {

constexpr int64_t kVocabulary = 256;

at::Tensor Normal(std::vector<int64_t> shape, double deviation) {
  return at::randn(shape).mul_(deviation);
}

}  // namespace

Block::Block(const GptConfig& config) : heads_(config.heads) {
  const int64_t width = config.width;
  // GPT-2's initialisation: layers that add to the residual stream start smaller.
  const double deviation = 0.02, residual = deviation / std::sqrt(2.0 * config.layers);
  norm1_weight_ = register_parameter("norm1_weight", at::ones({width}));
  norm1_bias_ = register_parameter("norm1_bias", at::zeros({width}));
  qkv_weight_ = register_parameter("qkv_weight", Normal({3 * width, width}, deviation));
  qkv_bias_ = register_parameter("qkv_bias", at::zeros({3 * width}));
  out_weight_ = register_parameter("out_weight", Normal({width, width}, residual));
  out_bias_ = register_parameter("out_bias", at::zeros({width}));
  norm2_weight_ = register_parameter("norm2_weight", at::ones({width}));
  norm2_bias_ = register_parameter("norm2_bias", at::zeros({width}));
  up_weight_ = register_parameter("up_weight", Normal({4 * width, width}, deviation));
  up_bias_ = register_parameter("up_bias", at::zeros({4 * width}));
  down_weight_ = register_parameter("down_weight", Normal({width, 4 * width}, residual));
  down_bias_ = register_parameter("down_bias", at::zeros({width}));
}

at::Tensor Block::Attention(const at::Tensor& x, const at::Tensor& mask) {
  const int64_t batch = x.size(0), tokens = x.size(1), width = x.size(2);
  const at::Tensor qkv = at::linear(x, qkv_weight_, qkv_bias_)
                             .view({batch, tokens, 3, heads_, width / heads_})
                             .permute({2, 0, 3, 1, 4});
  const at::Tensor q = qkv[0], k = qkv[1], v = qkv[2];
  at::Tensor mixed;
#ifdef RAVENSTORE_TORCH_CUDA
  if (x.is_cuda()) mixed = at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true);
#endif
  if (!mixed.defined()) {
    const int64_t head_width = width / heads_;
    const double scale = 1 / std::sqrt(static_cast<double>(head_width));
    const at::Tensor scores = at::matmul(q * scale, k.transpose(-1, -2));
    mixed = at::matmul(at::softmax(scores + mask, -1), v);
  }
  mixed = mixed.transpose(1, 2).reshape({batch, tokens, width});
  return at::linear(mixed, out_weight_, out_bias_);
}

at::Tensor Block::Forward(const at::Tensor& x, const at::Tensor& mask) {
  const int64_t width = x.size(2);
  const at::Tensor y = x + Attention(at::layer_norm(x, {width}, norm1_weight_, norm1_bias_), mask);
  const at::Tensor normed = at::layer_norm(y, {width}, norm2_weight_, norm2_bias_);
  const at::Tensor hidden = at::gelu(at::linear(normed, up_weight_, up_bias_));
  return y + at::linear(hidden, down_weight_, down_bias_);
}

Gpt::Gpt(const GptConfig& config) : config_(config) {
  tokens_ = register_parameter("tokens", Normal({kVocabulary, config.width}, 0.02));
  positions_ = register_parameter("positions", Normal({config.context, config.width}, 0.01));
  norm_weight_ = register_parameter("norm_weight", at::ones({config.width}));
  norm_bias_ = register_parameter("norm_bias", at::zeros({config.width}));
  for (int64_t i = 0; i < config.layers; ++i)
    blocks_.push_back(
        register_module("block" + std::to_string(i), std::make_shared<Block>(config)));
  mask_ = register_buffer(
      "mask",
      at::full({config.context, config.context}, -std::numeric_limits<float>::infinity()).triu(1));
}

at::Tensor Gpt::Loss(const at::Tensor& tokens) {
  const at::Tensor input = tokens.slice(1, 0, config_.context);
  const at::Tensor target = tokens.slice(1, 1, config_.context + 1);
  at::Tensor x = at::embedding(tokens_, input) + positions_;
  for (auto& block : blocks_) x = block->Forward(x, mask_);
  x = at::layer_norm(x, {config_.width}, norm_weight_, norm_bias_);
  const at::Tensor logits = at::linear(x, tokens_);
  return at::cross_entropy_loss(logits.reshape({-1, kVocabulary}), target.reshape({-1}));
}

}  // namespace ravenstore::examples
