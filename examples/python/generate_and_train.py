"""One GPU generates with one copy of a model and trains another: what is not needed sleeps.

    python3 examples/python/generate_and_train.py                 # a GPU, the node's daemon
    python3 examples/python/generate_and_train.py --layers 2 --width 64 --heads 4 --inner 128 \\
        --vocabulary 64 --prompt 8 --answer 16                    # a CPU, a host daemon

A step is that of GRPO. The generator writes a group of answers to each prompt, which are rewarded.
It sleeps, and its cache goes without a copy. The trainer wakes and learns. Its weights are copied
into the generator's, which are where they were, and the trainer sleeps.

The model is a LLaMA of Hugging Face's from its configuration, with its `generate`. Where
transformers is missing a small recurrent one stands in for it.
"""

import argparse
import copy
import sys

import ravenstore
import torch
from torch import nn
from torch.nn import functional

try:
    import transformers
except ImportError:
    transformers = None

MIB = 1 << 20


class Llama(nn.Module):
    def __init__(self, options):
        super().__init__()
        config = transformers.LlamaConfig(
            vocab_size=options.vocabulary,
            hidden_size=options.width,
            intermediate_size=options.inner,
            num_hidden_layers=options.layers,
            num_attention_heads=options.heads,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=0,
        )
        self.model = transformers.LlamaForCausalLM(config)

    def forward(self, tokens):
        return self.model(input_ids=tokens).logits

    def new_cache(self, rows, length):
        config = self.model.config
        cache = transformers.StaticCache(config=config, max_cache_len=length)
        width = config.hidden_size // config.num_attention_heads
        where = {"dtype": self.model.dtype, "device": self.model.device}
        cache.early_initialization(rows, config.num_key_value_heads, width, **where)
        return cache

    def write(self, prompts, count, cache):
        cache.reset()
        return self.model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            past_key_values=cache,
            max_new_tokens=count,
            do_sample=True,
            disable_compile=True,
        )


class Recurrent(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.tokens = nn.Embedding(options.vocabulary, options.width)
        self.cells = nn.GRU(options.width, options.width, options.layers, batch_first=True)
        self.head = nn.Linear(options.width, options.vocabulary)

    def forward(self, tokens):
        return self.head(self.cells(self.tokens(tokens))[0])

    def new_cache(self, rows, _length):
        size = (self.cells.num_layers, rows, self.cells.hidden_size)
        return torch.zeros(size, device=self.head.weight.device)

    @torch.no_grad()
    def write(self, prompts, count, cache):
        cache.zero_()
        tokens = given = prompts
        for _ in range(count):
            hidden, state = self.cells(self.tokens(given), cache)
            cache.copy_(state)
            given = torch.multinomial(self.head(hidden[:, -1]).softmax(-1), 1)
            tokens = torch.cat((tokens, given), 1)
        return tokens


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sizes = {"layers": 8, "width": 1024, "heads": 16, "inner": 2816, "vocabulary": 32000}
    sizes |= {"prompts": 4, "group": 8, "prompt": 64, "answer": 128, "steps": 5}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def say(phase):
    """How much memory is held now."""
    tags = ravenstore.tags()
    awake = ", ".join(f"{tag} {of.bytes / MIB:.1f}" for tag, of in tags.items() if not of.asleep)
    line = f"  {phase}: {awake} MiB"
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        line += f"; of the GPU {(total - free) / MIB:.1f} MiB are in use"
    print(line, flush=True)


def learn(trainer, optimizer, tokens, rewards, options):
    """A step of policy gradient: how much better an answer is than its group."""
    groups = rewards.view(options.prompts, options.group)
    advantages = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
    logits = trainer(tokens)[:, options.prompt - 1 : -1]
    answers = tokens[:, options.prompt :]
    logs = -functional.cross_entropy(logits.transpose(1, 2), answers, reduction="none")
    (-(advantages.flatten() * logs.mean(1)).mean()).backward()
    with ravenstore.region("trainer"):  # the optimizer makes its states in the first step
        optimizer.step()
    optimizer.zero_grad()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # what PyTorch itself keeps is the generator's to use


def main():
    options = parse()
    torch.manual_seed(0)
    rows = options.prompts * options.group
    make = Recurrent if transformers is None else Llama
    with ravenstore.region("generator"):
        generator = make(options).to(options.device).requires_grad_(False)
    with ravenstore.region("cache"):
        cache = generator.new_cache(rows, options.prompt + options.answer)
    with ravenstore.region("trainer"):
        trainer = copy.deepcopy(generator).requires_grad_(True)
        optimizer = torch.optim.AdamW(trainer.parameters(), lr=options.rate)
    ravenstore.sleep("trainer")

    for step in range(options.steps):
        prompts = torch.randint(options.vocabulary, (options.prompts, options.prompt))
        prompts = prompts.repeat_interleave(options.group, 0).to(options.device)
        tokens = generator.write(prompts, options.answer, cache)
        rewards = (tokens[:, options.prompt :] % 2 == 0).float().mean(1)  # even ones are better
        print(f"step {step + 1}: reward {rewards.mean().item():.3f}")
        say("generating")
        with torch.no_grad():
            before = generator(tokens)
        ravenstore.sleep("cache", keep="nothing")
        ravenstore.sleep("generator")

        ravenstore.wake("trainer")
        learn(trainer, optimizer, tokens, rewards, options)
        say("training")

        ravenstore.wake("generator")
        with torch.no_grad():
            for mine, learned in zip(generator.parameters(), trainer.parameters(), strict=True):
                mine.copy_(learned)
            want = trainer(tokens)
        say("handing over")
        ravenstore.sleep("trainer")
        ravenstore.wake("cache")

        after = generator(tokens)
        if not torch.allclose(after, want) or torch.equal(after, before):
            sys.exit("the generator does not have the trainer's weights")
    print("the generator follows the trainer")


if __name__ == "__main__":
    main()
