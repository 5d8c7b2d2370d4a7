"""Whisper-small from its configuration, on random spectra, with its activations in the store.

    python3 examples/python/whisper_small.py --budget 12GiB              # a GPU, the node's daemon
    python3 examples/python/whisper_small.py --embedded --budget 96MiB --layers 2 --width 128 \\
        --heads 4 --frames 256 --length 64 --batch 8 --vocabulary 512 --steps 3
"""

import common
import torch

MELS = 80


def main():
    sizes = {"layers": 12, "width": 768, "heads": 12, "frames": 1500, "length": 448, "batch": 16}
    options = common.parse(__doc__, {**sizes, "vocabulary": 51865})
    transformers = common.need("transformers")
    config = transformers.WhisperConfig(
        vocab_size=options.vocabulary,
        num_mel_bins=MELS,
        d_model=options.width,
        encoder_layers=options.layers,
        decoder_layers=options.layers,
        encoder_attention_heads=options.heads,
        decoder_attention_heads=options.heads,
        encoder_ffn_dim=4 * options.width,
        decoder_ffn_dim=4 * options.width,
        max_source_positions=options.frames,
        max_target_positions=options.length,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )

    def make_batch(generator):
        # Two spectra make a frame: the encoder's second convolution has a stride of two.
        heard = (options.batch, MELS, 2 * options.frames)
        said = (options.batch, options.length)
        return {
            "input_features": torch.randn(heard, generator=generator),
            "labels": torch.randint(3, options.vocabulary, said, generator=generator),
        }

    common.train(options, lambda: transformers.WhisperForConditionalGeneration(config), make_batch)


if __name__ == "__main__":
    main()
