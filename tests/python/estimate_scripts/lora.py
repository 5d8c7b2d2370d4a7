"""Low-rank adapters on a frozen model in bfloat16, as fine-tunings have them."""

import math

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM


class LoraLinear(nn.Module):
    def __init__(self, base, rank=8, alpha=16, dropout=0.05):
        super().__init__()
        self.base, self.scaling = base, alpha / rank
        self.dropout = nn.Dropout(dropout)
        self.lora_A = nn.Parameter(torch.zeros(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x):
        low = self.dropout(x).to(self.lora_A.dtype) @ self.lora_A.T @ self.lora_B.T
        return self.base(x) + low.to(x.dtype) * self.scaling


def add_adapters(model, names=("q_proj", "v_proj")):
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in names and isinstance(child, nn.Linear):
                setattr(module, name, LoraLinear(child).to(child.weight.device))


torch.set_default_dtype(torch.float32)
config = LlamaConfig(
    vocab_size=8000,
    hidden_size=512,
    intermediate_size=1376,
    num_hidden_layers=6,
    num_attention_heads=8,
    num_key_value_heads=4,
    max_position_embeddings=512,
)
model = LlamaForCausalLM(config).to(torch.bfloat16).cuda()
model.requires_grad_(False)
add_adapters(model)
model.gradient_checkpointing_enable()
model.enable_input_require_grads()
trainable = [p for p in model.parameters() if p.requires_grad]
total = sum(p.numel() for p in model.parameters())
print(f"trainable: {sum(p.numel() for p in trainable)} of {total}")
optimizer = torch.optim.AdamW(trainable, lr=2e-4)
for step in range(20):
    ids = torch.randint(0, config.vocab_size, (4, 256)).cuda()
    mask = torch.ones_like(ids)
    mask[:, -16:] = 0
    labels = ids.masked_fill(mask == 0, -100)
    loss = model(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(trainable, 0.3)
    optimizer.step()
    optimizer.zero_grad()
    if torch.isnan(loss):
        break
    print(step, loss.detach().float().cpu().numpy(), torch.cuda.memory_allocated() >> 20)
