"""GPT-2 from its configuration, in a loop of one's own that accumulates gradients."""

import torch
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm
from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup, set_seed

set_seed(42)
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
print("using", device, torch.cuda.get_device_name(0))
config = GPT2Config(n_layer=4, n_embd=256, n_head=4, n_positions=256, vocab_size=8000)
model = GPT2LMHeadModel(config).to(device)
model.train()
accumulation = 4

no_decay = ["bias", "ln_1.weight", "ln_2.weight", "ln_f.weight"]
named = list(model.named_parameters())
groups = [
    {"params": [p for n, p in named if not any(d in n for d in no_decay)], "weight_decay": 0.1},
    {"params": [p for n, p in named if any(d in n for d in no_decay)], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=5e-4)
scheduler = get_cosine_schedule_with_warmup(optimizer, 10, 1000)
dataset = TensorDataset(torch.randint(0, config.vocab_size, (512, 256)))
loader = DataLoader(dataset, batch_size=8, shuffle=True)

global_step, running = 0, 0.0
for epoch in range(3):
    bar = tqdm(loader, desc=f"epoch {epoch}")
    for step, (input_ids,) in enumerate(bar):
        input_ids = input_ids.to(device)
        outputs = model(input_ids, labels=input_ids)
        loss = outputs.loss / accumulation
        loss.backward()
        running += loss.item()
        if (step + 1) % accumulation == 0:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            global_step += 1
            rate = scheduler.get_last_lr()[0]
            bar.set_postfix(loss=f"{running:.3f}", norm=f"{norm:.2f}", lr=f"{rate:.1e}")
            running = 0.0
