// The libtorch example of docs/api.md, as it stands there.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/client/torch/api_example.h"

TEST(ApiExampleTest, TrainsWithinTheScope) {
  const torch::nn::Sequential model(torch::nn::Linear(64, 64), torch::nn::GELU());
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  const torch::Tensor before = model->parameters()[0].detach().clone();
  Train(model, optimizer, {torch::ones({8, 64}), torch::ones({8, 64})});
  EXPECT_FALSE(torch::equal(before, model->parameters()[0]));
}
