"""PrepareCallback: Hugging Face's Trainer and an 8B-shaped model, small, learn as without it."""

import re
import unittest

import harness
import ravenstore
import torch
import xml_main
from huggingface_harness import WITHOUT, Tokens, losses_of, trainer_of

if not WITHOUT:
    import transformers


@unittest.skipIf(WITHOUT, WITHOUT)
class PrepareCallbackTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        socket = cls.enterClassContext(harness.daemon(device_total="128MiB"))
        cls.options = {"device_budget": "40MiB", "socket": socket, "report": False}

    def trainer(self, callbacks=(), **arguments):
        """One that has not trained yet, and its model."""
        torch.manual_seed(0)
        shape = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 2000}
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, **heads))
        return trainer_of(self, model, Tokens(2000, 64), callbacks, arguments), model

    def train(self, callbacks=(), **arguments):
        """The losses of the steps, and the model after them."""
        trainer, model = self.trainer(callbacks, **arguments)
        trainer.train()
        return losses_of(trainer), model

    def compare(self, **arguments):
        """A plain training and a prepared one with the whole loss are equal; the callback."""
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

    def test_the_pages_example_trains(self):
        page = (harness.ROOT / "docs/finetune.md").read_text()
        (code,) = re.findall(r"^```py\n(.*?)^```", page, re.M | re.S)
        code = code.replace('device_budget="40GiB"', "**options")
        plain, model = self.trainer()
        names = {"transformers": transformers, "model": model, "options": self.options}
        names |= {"arguments": plain.args, "data": plain.train_dataset}
        exec(compile(code, "page", "exec"), names)
        names["trainer"].train()
        plain.train()
        self.assertEqual(len(losses_of(names["trainer"])), len(losses_of(plain)))

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

    def test_a_budget_that_is_too_small_is_an_error_when_the_training_begins(self):
        from ravenstore.huggingface import PrepareCallback

        options = {**self.options, "device_budget": "8MiB", "saved": False}
        with self.assertRaisesRegex(ravenstore.OutOfMemory, "does not fit"):
            self.train([PrepareCallback(**options)])


if __name__ == "__main__":
    xml_main.main()
