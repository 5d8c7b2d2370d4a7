"""The job of bench/planner_jobs.py that generates: a language model whose keys and values grow.

Its step takes a store to keep them in, or None for PyTorch's memory. The weights stay PyTorch's.
"""

import math

import planner_job_models as models
import torch
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

LLAMA_1B = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
PROMPTS, PROMPT, TOKENS = 64, 512, 128
SMALL = (32, 512, 16)


class StoredLayer(DynamicLayer):
    """The keys and values of a layer, a tensor of the store that grows with each token.

    It is announced for the call that asks for it next: calls are counted over all layers.
    """

    def __init__(self, store, layer, layers):
        super().__init__()
        self.store, self.name = store, f"cache/{layer}"
        self.call, self.layers = layer, layers
        self.tensor, self.shape = None, None

    def get_seq_length(self):
        return self.shape[-2] if self.shape else 0

    def update(self, key_states, value_states, *_, **__):
        fresh = torch.stack([key_states, value_states])
        before, old = self.tensor, self.shape
        self.shape = (*fresh.shape[:3], self.get_seq_length() + fresh.shape[3], fresh.shape[4])
        self.tensor = self.store.create(
            math.prod(self.shape) * fresh.element_size(), name=self.name
        )
        grown = self.tensor.torch(fresh.dtype, self.shape)
        if before is None:
            grown.copy_(fresh)
        else:
            with before.get(read_only=True) as view:
                torch.cat([view.torch(fresh.dtype, old), fresh], dim=3, out=grown)
            before.free()
        self.call += self.layers
        self.tensor.put(order=self.call)  # takes effect when the last array of it is gone
        self.is_initialized = True
        return grown[0], grown[1]


def generate(device, small):
    """64 prompts of 512 tokens, 128 more for each, by a Llama of 1B."""
    shape = models.TINY if small else LLAMA_1B
    model = models.language_model("Llama", shape, device, False).eval()
    layers = shape["num_hidden_layers"]
    prompts, columns, tokens = SMALL if small else (PROMPTS, PROMPT, TOKENS)

    @torch.no_grad()
    def step(store):
        if store:
            store.step()
            cache = Cache(layers=[StoredLayer(store, i, layers) for i in range(layers)])
        else:
            cache = DynamicCache()
        ids = torch.randint(0, shape["vocab_size"], (prompts, columns), device=device)
        for _ in range(tokens):
            output = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            ids = output.logits[:, -1].argmax(dim=-1, keepdim=True)
        return ids

    return step
