"""Full fine-tuning of a LLaMA-shaped model on one device: all weights, AdamW, random tokens.

    python3 examples/python/finetune.py --budget 40GiB              # 8B in bfloat16 on a GPU
    python3 examples/python/finetune.py --size 3b --budget 20GiB --clip
    python3 examples/python/finetune.py --plain                     # the same without the one call
    python3 examples/python/finetune.py --size tiny --budget 40MiB --tokens 256 --sequence 64 \\
        --device cpu --host-budget 1GiB                             # a CPU, seconds

--config takes any LLaMA configuration of transformers instead of --size. Every step prints a line,
the end a line of JSON: seconds a step (median of the last half), tokens a second, the peak of
PyTorch's memory and what the device has in use in all.
"""

import argparse
import contextlib
import copy
import json
import os
import statistics
import sys
import time

# Read when PyTorch starts. Without it up to a fifth of PyTorch's memory is lost to fragmentation.
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")

import common
import ravenstore
import torch

LLAMA = {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256}
SIZES = {
    "tiny": {
        **{"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 2000},
    },
    "1b": {
        **{"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16},
        **{**LLAMA, "tie_word_embeddings": True},
    },
    "3b": {
        **{"hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28},
        **{**LLAMA, "num_attention_heads": 24, "tie_word_embeddings": True},
    },
    "8b": {
        **{"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32},
        **LLAMA,
    },
    "14b": {
        **{"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 48},
        **{"num_attention_heads": 40, "num_key_value_heads": 8, "vocab_size": 152064},
    },
    "24b": {
        **{"hidden_size": 5120, "intermediate_size": 32768, "num_hidden_layers": 40},
        **{**LLAMA, "vocab_size": 131072, "head_dim": 128},
    },
}


def parse(words=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, default="8b")
    parser.add_argument("--config", help="a JSON file with a LLaMA configuration")
    parser.add_argument("--budget", default="auto", help="of the device (default: what is free)")
    parser.add_argument("--host-budget", help="host memory for what leaves")
    parser.add_argument("--plain", action="store_true", help="without ravenstore.prepare()")
    parser.add_argument("--whole-loss", action="store_true", help="the loss not in chunks")
    parser.add_argument("--in-backward", choices=("auto", "yes", "no"), default="auto")
    parser.add_argument("--states", choices=("auto", "away", "stay"), default="auto")
    parser.add_argument("--keep-saved", action="store_true", help="what autograd saves stays")
    parser.add_argument("--tokens", type=int, default=8192, help="of one pass")
    parser.add_argument("--sequence", type=int, default=2048)
    parser.add_argument("--accumulate", type=int, default=1, help="passes a step")
    parser.add_argument("--clip", action="store_true", help="clip the gradients' norm to 1")
    parser.add_argument("--full", action="store_true", help="float32 weights under autocast")
    parser.add_argument("--float32-states", action="store_true", help="of bfloat16 weights")
    parser.add_argument("--master-weights", action="store_true", help="float32, of bfloat16 ones")
    parser.add_argument("--lora", type=int, help="learn adapters of this rank alone (needs peft)")
    parser.add_argument("--save", help="at the end, save the optimizer's states into this file")
    parser.add_argument("--sgd", action="store_true", help="without states: a bound, with --plain")
    parser.add_argument("--deterministic", action="store_true", help="PyTorch's algorithms")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args(words)


def make_model(options, transformers):
    shape = SIZES[options.size]
    if options.config:
        with open(options.config, encoding="utf-8") as file:
            shape = json.load(file)
    more = {"max_position_embeddings": options.sequence, "attn_implementation": "sdpa"}
    config = transformers.LlamaConfig(**{**shape, **more, "use_cache": False})
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float32 if options.full else torch.bfloat16)
    with torch.device(options.device):
        model = transformers.LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    if options.lora:
        peft = common.need("peft")
        names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        model = peft.get_peft_model(model, peft.LoraConfig(r=options.lora, target_modules=names))
        model.enable_input_require_grads()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def update_in_backward(learned):
    """SGD without momentum, in the backward pass, which frees each gradient after its update. It
    keeps and moves nothing, so its time is a lower bound."""

    @torch.no_grad()
    def update(p):
        p.add_(p.grad, alpha=-1e-5)
        p.grad = None

    for p in learned:
        p.register_post_accumulate_grad_hook(update)
    return torch.optim.SGD(learned, lr=1e-5)


def prepare(model, optimizer, options):
    """The one call of this package."""
    return ravenstore.prepare(
        model,
        optimizer,
        device_budget=options.budget,
        host_budget=options.host_budget,
        in_backward={"auto": "auto", "yes": True, "no": False}[options.in_backward],
        states=options.states,
        loss_chunks=not options.whole_loss,
        saved=False if options.keep_saved else "auto",
        tokens=options.tokens,
        float32_states=options.float32_states,
        master_weights=options.master_weights,
    )


def train(model, optimizer, options, backward=torch.Tensor.backward):
    """The losses and the seconds of the steps."""
    size = (options.tokens // options.sequence, options.sequence)
    generator = torch.Generator().manual_seed(1)
    losses, seconds = [], []
    for step in range(options.steps):
        begin = time.perf_counter()
        for _ in range(options.accumulate):
            ids = torch.randint(0, model.config.vocab_size, size, generator=generator)
            ids = ids.to(options.device)
            with torch.autocast(options.device, torch.bfloat16, enabled=options.full):
                loss = model(input_ids=ids, labels=ids).loss
            backward(loss / options.accumulate)
        if options.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
        print(f"step {step + 1}: loss {losses[-1]:.4f}, {seconds[-1]:.3f} s", flush=True)
    return losses, seconds


def read(optimizer):
    """Seconds that reading the states alone takes, one tensor at a time."""
    begin = time.perf_counter()
    for state in optimizer.state_dict()["state"].values():
        for value in state.values():
            copy.deepcopy(value)
    return time.perf_counter() - begin


def save(optimizer, path):
    """How fast torch.save writes the states, of a plain write of as many bytes, and how much the
    process's memory grew for it. Both reach the disk, and are deleted. And of reading alone."""

    def memory(name):
        with open("/proc/self/status", encoding="ascii") as lines:
            return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))

    # PyTorch makes the checksums of its archives on one core, which takes longer than the write.
    torch.serialization.set_crc32_options(False)
    with open("/proc/self/clear_refs", "w", encoding="ascii") as reset:
        reset.write("5")  # resets the peak
    before = memory("VmRSS")
    begin = time.perf_counter()
    with open(path, "wb") as file:
        torch.save(optimizer.state_dict(), file)
        file.flush()
        os.fsync(file.fileno())
    seconds = time.perf_counter() - begin
    peak, size = memory("VmHWM"), os.path.getsize(path)
    os.unlink(path)
    block = os.urandom(16 << 20)
    begin = time.perf_counter()
    with open(path, "wb") as file:
        for _ in range(size // len(block) + 1):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    plain = time.perf_counter() - begin
    os.unlink(path)
    written = (size // len(block) + 1) * len(block)
    reading = read(optimizer)
    return {
        "save_s": round(seconds, 2),
        "save_gb_s": round(size / seconds / 1e9, 3),
        "write_s": round(plain, 2),
        "write_gb_s": round(written / plain / 1e9, 3),
        "read_s": round(reading, 2),
        "read_gb_s": round(size / reading / 1e9, 3),
        "save_memory_gib": round(max(0, peak - before) / 2**30, 3),
    }


def summary(model, options, loss_by, losses, seconds):
    """The figures that every way of training has. `tflops`: the model's operations in 10^12 a
    second, without recomputation."""
    median = statistics.median(seconds[len(seconds) // 2 :])
    operations = 6 * sum(p.numel() for p in model.parameters()) * options.tokens
    made = {
        "tflops": round(operations * options.accumulate / median / 1e12, 1),
        "size": options.size,
        "loss_by": loss_by,
        "first_s": round(seconds[0], 2),
        "step_s": round(median, 3),
        "tokens_s": round(options.tokens * options.accumulate / median),
        "losses": losses,
    }
    if options.device == "cuda":
        free, total = torch.cuda.mem_get_info()
        made["device_name"] = torch.cuda.get_device_name()
        made["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
        made["device_gib"] = round((total - free) / 2**30, 1)
    return made


def checksum(model):
    """Of all bits of the weights: equal weights have equal ones."""
    total = 0
    for p in model.parameters():
        kind = torch.int16 if p.itemsize == 2 else torch.int32
        # In runs of 4M elements: the products of a run need up to 16 times its memory.
        for run in p.detach().view(kind).flatten().split(1 << 22):
            places = torch.arange(len(run), device=p.device) % 8191 + 1
            total = (total * 31 + int((run.to(torch.int64) * places).sum())) & ((1 << 64) - 1)
    return f"{total:016x}"


def saved_out_gib():
    """What autograd saved and left the device, in all steps."""
    with contextlib.suppress(ravenstore.WrongState):  # offload() was never entered
        return round(ravenstore.explain().bytes_out / 2**30, 3)
    return 0.0


def main():
    options = parse()
    transformers = common.need("transformers")
    if options.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    begin = time.perf_counter()
    model = make_model(options, transformers)
    learned = [p for p in model.parameters() if p.requires_grad]
    if options.sgd:
        optimizer = update_in_backward(learned)
    else:
        optimizer = torch.optim.AdamW(learned, lr=1e-5, fused=True)
    loss_by, plan = "whole", None
    if options.plain:
        if not options.whole_loss:
            loss_by = ravenstore.chunk_loss(model).how
    else:
        plan = prepare(model, optimizer, options)
        loss_by = plan.loss.how if plan.loss else "whole"
    ready = time.perf_counter() - begin
    losses, seconds = train(model, optimizer, options)
    if plan is not None:
        print(plan.explain(), file=sys.stderr)
    made = summary(model, options, loss_by, losses, seconds) | {
        "way": "plain" if options.plain else "prepare",
        "ready_s": round(ready, 1),
        "transfer_s": round(plan.transfer_seconds if plan is not None else 0.0, 3),
        "saved_out_gib": saved_out_gib(),
        "weights": checksum(model),
    }
    if options.save:
        made |= save(optimizer, options.save)
    print(json.dumps(made))


if __name__ == "__main__":
    main()
