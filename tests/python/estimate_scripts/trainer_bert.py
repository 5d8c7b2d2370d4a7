"""BERT as a classifier, by Hugging Face's Trainer."""

import sys
import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
)


class Sentences(Dataset):
    def __init__(self, count, length):
        generator = np.random.default_rng(0)
        self.ids = generator.integers(1000, 20000, (count, length))
        self.labels = generator.integers(0, 2, count)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        ids = torch.tensor(self.ids[index])
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "labels": int(self.labels[index]),
        }


def compute_metrics(prediction):
    labels, predictions = prediction.label_ids, prediction.predictions.argmax(-1)
    return {"accuracy": float((labels == predictions).mean())}


if __name__ == "__main__":
    config = BertConfig(num_hidden_layers=4, hidden_size=256, num_attention_heads=4, num_labels=2)
    config.intermediate_size = 1024
    model = BertForSequenceClassification(config)
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(prefix="raven-"),
        per_device_train_batch_size=16,
        num_train_epochs=1,
        learning_rate=2e-5,
        warmup_steps=10,
        logging_steps=1,
        bf16="--bf16" in sys.argv,
        report_to="none",
        save_strategy="no",
    )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=Sentences(640, 128),
        eval_dataset=Sentences(64, 128),
        compute_metrics=compute_metrics,
    )
    trainer.train()
    print(trainer.evaluate())
