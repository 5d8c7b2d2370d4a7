"""Descriptions of models, compared with what is counted by hand."""

import unittest

import harness  # noqa: F401
import torch
from ravenstore.estimate import _describe
from torch import nn
from torch.nn import functional

KIB = 1 << 10


def described(model, batch, loss=None, **more):
    """Of a model on the meta device, which is called with the batch and summed."""
    forward = loss or (lambda: model(batch).sum())
    return _describe.describe(model, forward, batch=batch, **more)


class Describe(unittest.TestCase):
    def setUp(self):
        torch.set_default_device("meta")
        self.addCleanup(torch.set_default_device, None)

    def test_parameters_and_the_batch_count_their_bytes(self):
        model = nn.Sequential(nn.Linear(256, 1024, bias=False), nn.BatchNorm1d(1024))
        model[0].weight.requires_grad_(False)
        description = described(model, torch.randn(8, 256))
        buffers = 2 * 1024 * 4 + 8  # the running means and variances, and how often
        self.assertEqual(description.parameters, 256 * 1024 * 4 + 2 * 1024 * 4 + buffers)
        self.assertEqual(description.trainable, 2 * 1024 * 4)
        self.assertEqual(description.tensors, 3)
        self.assertEqual(description.batch, 8 * 256 * 4)

    def test_a_weight_that_two_layers_share_counts_once(self):
        first, second = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)
        second.weight = first.weight
        description = described(nn.Sequential(first, second), torch.randn(2, 64))
        self.assertEqual((description.parameters, description.tensors), (64 * 64 * 4, 1))

    def test_what_two_operations_keep_counts_for_the_first(self):
        model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
        description = described(model, torch.randn(32, 256))
        # The first layer keeps the batch; the activation its output, which is the second's input.
        self.assertEqual(description.kept, {"linear": 32 * 256 * 4, "activation": 32 * 512 * 4})

    def test_an_activation_in_place_keeps_no_second_copy(self):
        plain, inplace = (
            described(nn.Sequential(nn.Linear(64, 64), nn.ReLU(inplace=each)), torch.randn(4, 64))
            for each in (False, True)
        )
        self.assertEqual(plain.kept, inplace.kept)

    def test_dropout_keeps_a_byte_an_element(self):
        description = described(
            nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.1)), torch.randn(128, 64)
        )
        self.assertEqual(description.kept["dropout"], 128 * 64)

    def test_attention_keeps_no_matrix_of_scores(self):
        def forward():
            parts = [torch.randn(2, 4, 512, 64).requires_grad_() for _ in range(3)]
            return functional.scaled_dot_product_attention(*parts, is_causal=True).sum()

        description = described(nn.Linear(1, 1), torch.randn(1), forward)
        # Three that are given and one that comes back, and a sum for each row.
        self.assertEqual(
            description.kept["attention"], 4 * (2 * 4 * 512 * 64 * 4) + 2 * 4 * 512 * 4
        )

    def test_attention_inside_of_torchs_own_layer_is_seen(self):
        layer = nn.MultiheadAttention(64, 4, batch_first=True)
        tokens = torch.randn(2, 512, 64)

        def forward():
            mixed, _ = layer(tokens, tokens, tokens, need_weights=False)
            return mixed.sum()

        scores = 2 * 4 * 512 * 512 * 4
        self.assertLess(described(layer, tokens, forward).kept["attention"], scores)

    def test_fewer_heads_of_keys_are_written_out_in_single_precision_alone(self):
        def kept(dtype):
            def forward():
                query = torch.randn(1, 8, 256, 32, dtype=dtype).requires_grad_()
                pair = [torch.randn(1, 2, 256, 32, dtype=dtype) for _ in range(2)]
                return functional.scaled_dot_product_attention(query, *pair, enable_gqa=True).sum()

            return described(nn.Linear(1, 1), torch.randn(1), forward).kept["attention"]

        scores = 8 * 256 * 256 * 4
        self.assertGreater(kept(torch.float32), scores)
        self.assertLess(kept(torch.bfloat16), scores)

    def test_a_recurrent_layer_counts_what_each_of_its_layers_gives(self):
        model = nn.LSTM(64, 128, num_layers=3, bidirectional=True, batch_first=True)
        batch = torch.randn(4, 32, 64)

        def forward():
            out, _ = model(batch)
            return out.sum()

        description = described(model, batch, forward)
        self.assertEqual(description.kept["rnn"], 3 * 4 * 32 * 256 * 4)
        self.assertEqual(description.kept["recurred"], 4 * 32 * (64 + 256) * 4)

    def test_what_lives_at_one_time_without_gradients(self):
        model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(10)])
        description = described(model, torch.randn(KIB, 256))
        self.assertEqual(description.live, 2 * KIB * 256 * 4)

    def test_backward_has_what_is_kept_the_gradients_of_a_call_and_those_of_parameters(self):
        model = nn.Sequential(nn.Linear(256, 256, bias=False), nn.Tanh())
        description = described(model, torch.randn(KIB, 256))
        tensor, weight = KIB * 256 * 4, 256 * 256 * 4
        # At the activation: the batch and the output are kept, two gradients are there. At the
        # layer, whose batch needs none: one gradient, and the weight's.
        self.assertEqual(description.backward, max(4 * tensor, 2 * tensor + tensor + weight))

    def test_the_blocks_that_checkpointing_would_wrap(self):
        blocks = [nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4)]
        description = described(
            nn.Sequential(nn.Linear(64, 64), nn.Sequential(*blocks)), torch.randn(8, 64)
        )
        tensor = 8 * 64 * 4
        # Each keeps what it gives; the first what it is given as well.
        self.assertEqual((description.blocks, description.block), (5 * tensor, 2 * tensor))
        self.assertEqual(description.between, 4 * tensor)

    def test_a_question_about_values_has_an_answer(self):
        layer = nn.Linear(4, 4)

        def forward():
            out = layer(torch.randn(2, 4))
            return out.sum() * (out.max().item() if (out > 0).all() else 2)

        self.assertGreater(described(layer, torch.randn(2, 4), forward).backward, 0)

    def test_what_the_model_raises_comes_through_and_nothing_stays(self):
        layer = nn.Linear(4, 4)
        with self.assertRaises(RuntimeError):
            described(layer, torch.randn(2, 5))
        self.assertFalse(layer._forward_hooks)
        self.assertIsNot(functional.scaled_dot_product_attention, _describe._traced_attention)


if __name__ == "__main__":
    unittest.main()
