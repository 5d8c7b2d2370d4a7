"""PrepareCallback: Hugging Face's Trainer and an 8B-shaped model, small, learn as without it."""

import os
import tempfile
import unittest

import harness
import ravenstore
import torch
import xml_main

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", WANDB_DISABLED="true")

try:
    import accelerate  # noqa: F401 - the Trainer needs it
    import transformers

    WITHOUT = ""
except ImportError as error:
    WITHOUT = f"needs transformers and accelerate: {error}"

STEPS = 3


class Tokens(torch.utils.data.Dataset):
    """Random rows, always the same."""

    def __init__(self):
        generator = torch.Generator().manual_seed(7)
        self.rows = torch.randint(0, 2000, (16, 64), generator=generator)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


@unittest.skipIf(WITHOUT, WITHOUT)
class PrepareCallbackTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        socket = cls.enterClassContext(harness.daemon(device_total="128MiB"))
        cls.options = {"device_budget": "40MiB", "socket": socket, "report": False}

    def train(self, callbacks=(), **arguments):
        """The losses of the steps, and the model after them."""
        torch.manual_seed(0)
        shape = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 2000}
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, **heads))
        folder = self.enterClassContext(tempfile.TemporaryDirectory(prefix="raven-", dir="/tmp"))
        told = transformers.TrainingArguments(
            folder,
            **{"max_steps": STEPS, "per_device_train_batch_size": 4, **arguments},
            use_cpu=True,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        trainer = transformers.Trainer(
            model, told, train_dataset=Tokens(), callbacks=list(callbacks)
        )
        trainer.train()
        losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
        return losses, model

    def compare(self, **arguments):
        """A plain training beside a prepared one, whose loss is whole; the callback."""
        from ravenstore.huggingface import PrepareCallback

        plain, model = self.train(**arguments)
        callback = PrepareCallback(loss_chunks=False, **self.options)
        losses, mine = self.train([callback], **arguments)
        self.assertEqual(losses, plain)
        for p, q in zip(model.parameters(), mine.parameters(), strict=True):
            self.assertTrue(torch.equal(p, q))
        states = next(part for part in callback.plan.parts if part.name == "optimizer states")
        self.assertEqual(states.where, "host")
        return callback

    def test_the_trainers_default_clips_and_updates_after_the_pass(self):
        words = self.compare().explanation
        self.assertIn("updates after the backward pass: asked for", words)

    def test_without_clipping_the_first_step_shows_what_the_trainer_does(self):
        words = self.compare(max_grad_norm=0.0).explanation
        # transformers 5 logs the norm of all gradients in every step.
        self.assertRegex(
            words, "updates (after|in) the backward pass: (gradients are|nothing) used"
        )

    def test_bf16_accumulated_and_checkpointed_with_the_loss_in_chunks(self):
        from ravenstore.huggingface import PrepareCallback

        arguments = {
            "bf16": True,
            "gradient_accumulation_steps": 2,
            "gradient_checkpointing": True,
        }
        plain, _ = self.train(**arguments)
        if not hasattr(torch.nn, "LinearCrossEntropyOptions"):
            self.skipTest("this PyTorch has no loss in chunks")
        callback = PrepareCallback(**self.options)
        losses, model = self.train([callback], **arguments)
        self.assertIsNone(callback.plan.loss)  # given back
        self.assertIn("in chunks", str(callback.plan))
        self.assertIs(type(model.lm_head), torch.nn.Linear)
        for a, b in zip(losses, plain, strict=True):
            self.assertAlmostEqual(a, b, delta=0.01)

    def test_a_failed_training_is_closed_by_hand(self):
        from ravenstore.huggingface import PrepareCallback

        callback = PrepareCallback(**self.options)

        class Fails(transformers.TrainerCallback):
            def on_step_begin(self, *_, **__):
                raise ZeroDivisionError

        with self.assertRaises(ZeroDivisionError):
            self.train([callback, Fails()])
        callback.close()
        before = ravenstore.explain().saved
        weight = torch.ones(1 << 20, requires_grad=True)
        (weight * weight).sum().backward()
        self.assertEqual(ravenstore.explain().saved, before)

    def test_a_budget_that_is_too_small_is_told_when_the_training_begins(self):
        from ravenstore.huggingface import PrepareCallback

        options = {**self.options, "device_budget": "8MiB", "saved": False}
        with self.assertRaisesRegex(ravenstore.OutOfMemory, "does not fit"):
            self.train([PrepareCallback(**options)])


if __name__ == "__main__":
    xml_main.main()
