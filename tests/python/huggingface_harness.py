"""What the tests of Hugging Face's Trainer share."""

import os
import tempfile

import torch

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", WANDB_DISABLED="true")

try:
    import accelerate  # noqa: F401 - the Trainer needs it
    import transformers

    WITHOUT = ""
except ImportError as error:
    WITHOUT = f"needs transformers and accelerate: {error}"


class Tokens(torch.utils.data.Dataset):
    """Random rows, always the same."""

    def __init__(self, words, length):
        generator = torch.Generator().manual_seed(7)
        self.rows = torch.randint(0, words, (16, length), generator=generator)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def trainer_of(case, model, data, callbacks, arguments):
    """A Trainer of three steps on the CPU. Its folder is removed after the test class of `case`."""
    folder = case.enterClassContext(tempfile.TemporaryDirectory(prefix="raven-", dir="/tmp"))
    options = transformers.TrainingArguments(
        folder,
        **{"max_steps": 3, "per_device_train_batch_size": 4, **arguments},
        use_cpu=True,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    return transformers.Trainer(model, options, train_dataset=data, callbacks=list(callbacks))


def losses_of(trainer):
    """The losses of the steps of a training that has ended."""
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]
