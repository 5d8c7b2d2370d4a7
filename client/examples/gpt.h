// A small GPT over bytes: learned positions, pre-norm blocks with causal attention and a GELU MLP,
// and the token embedding as its output layer. Nothing in it knows of the store.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <torch/nn/module.h>

namespace ravenstore::examples {

struct GptConfig {
  int64_t layers = 4;
  int64_t width = 128;
  int64_t heads = 4;
  int64_t context = 128;  // tokens of a sequence
};

class Block : public ::torch::nn::Module {
 public:
  explicit Block(const GptConfig& config);
  at::Tensor Forward(const at::Tensor& x, const at::Tensor& mask);

 private:
  at::Tensor Attention(const at::Tensor& x, const at::Tensor& mask);

  const int64_t heads_;
  at::Tensor norm1_weight_, norm1_bias_, qkv_weight_, qkv_bias_, out_weight_, out_bias_;
  at::Tensor norm2_weight_, norm2_bias_, up_weight_, up_bias_, down_weight_, down_bias_;
};
class Gpt : public ::torch::nn::Module {
 public:
  explicit Gpt(const GptConfig& config);

  // The mean loss of predicting each next byte of `tokens`, [sequences, context + 1] of int64.
  at::Tensor Loss(const at::Tensor& tokens);

 private:
  const GptConfig config_;
  at::Tensor tokens_, positions_, norm_weight_, norm_bias_, mask_;
  std::vector<std::shared_ptr<Block>> blocks_;
};

}  // namespace ravenstore::examples
