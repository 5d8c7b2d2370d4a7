"""BERT from its configuration, filling masked random tokens, with its activations in the store.

    python3 examples/python/bert.py --budget 8GiB                        # a GPU, the node's daemon
    python3 examples/python/bert.py --embedded --budget 96MiB --layers 4 --width 128 --heads 4 \\
        --length 256 --batch 8 --vocabulary 512 --steps 3                # a CPU, seconds
"""

import common
import torch

MASKED_SHARE = 0.15
NOT_ASKED = -100  # what cross_entropy ignores


def main():
    sizes = {"layers": 12, "width": 768, "heads": 12, "length": 512, "batch": 32}
    options = common.parse(__doc__, {**sizes, "vocabulary": 30522})
    transformers = common.need("transformers")
    config = transformers.BertConfig(
        vocab_size=options.vocabulary,
        max_position_embeddings=options.length,
        hidden_size=options.width,
        intermediate_size=4 * options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
    )

    def make_batch(generator):
        size = (options.batch, options.length)
        tokens = torch.randint(1, options.vocabulary, size, generator=generator)
        masked = torch.rand(size, generator=generator) < MASKED_SHARE
        return {
            "input_ids": tokens.masked_fill(masked, 0),
            "labels": tokens.masked_fill(~masked, NOT_ASKED),
        }

    common.train(options, lambda: transformers.BertForMaskedLM(config), make_batch)


if __name__ == "__main__":
    main()
