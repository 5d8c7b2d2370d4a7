"""GPT-2 from its configuration, on random tokens, with its activations in the store.

    python3 examples/python/gpt2.py --budget 12GiB                       # a GPU, the node's daemon
    python3 examples/python/gpt2.py --embedded --budget 96MiB --layers 4 --width 128 --heads 4 \\
        --length 256 --batch 8 --vocabulary 512 --steps 3                # a CPU, seconds
"""

import common
import torch


def main():
    sizes = {"layers": 12, "width": 768, "heads": 12, "length": 1024, "batch": 16}
    options = common.parse(__doc__, {**sizes, "vocabulary": 50257})
    transformers = common.need("transformers")
    config = transformers.GPT2Config(
        vocab_size=options.vocabulary,
        n_positions=options.length,
        n_embd=options.width,
        n_layer=options.layers,
        n_head=options.heads,
        bos_token_id=0,
        eos_token_id=0,
    )

    def make_batch(generator):
        size = (options.batch, options.length)
        tokens = torch.randint(options.vocabulary, size, generator=generator)
        return {"input_ids": tokens, "labels": tokens}

    common.train(options, lambda: transformers.GPT2LMHeadModel(config), make_batch)


if __name__ == "__main__":
    main()
