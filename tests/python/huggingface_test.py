"""Hugging Face's Trainer learns the same with the callback as without, and its activations move."""

import re
import unittest

import harness
import ravenstore
import torch
import xml_main
from huggingface_harness import WITHOUT, Tokens, losses_of, trainer_of

if not WITHOUT:
    import transformers

VARIANTS = (
    {},
    {"gradient_accumulation_steps": 2},
    {"gradient_checkpointing": True},
    {"bf16": True},
)


@unittest.skipIf(WITHOUT, WITHOUT)
class CallbackTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Before the store's allocator is in place: without a scope its budget would not do.
        cls.plain = [cls().train(**arguments) for arguments in VARIANTS]
        socket = cls.enterClassContext(harness.daemon(device_total="128MiB"))
        cls.options = {"device_budget": "64MiB", "socket": socket, "report": False, "timeout": 10}

    def trainer(self, *callbacks, **arguments):
        torch.manual_seed(0)
        config = transformers.GPT2Config(
            vocab_size=512,
            n_positions=256,
            n_embd=128,
            n_layer=4,
            n_head=4,
            bos_token_id=0,
            eos_token_id=0,
        )
        model = transformers.GPT2LMHeadModel(config)
        return trainer_of(self, model, Tokens(512, 256), callbacks, arguments)

    def train(self, *callbacks, **arguments):
        """The losses of the steps, and the parameters after them."""
        trainer = self.trainer(*callbacks, **arguments)
        trainer.train()
        return losses_of(trainer), [
            parameter.detach().clone() for parameter in trainer.model.parameters()
        ]

    def assertSame(self, ours, plain):
        self.assertEqual(ours[0], plain[0])
        for mine, its in zip(ours[1], plain[1], strict=True):
            self.assertTrue(torch.equal(mine, its))

    def callback(self, **options):
        from ravenstore.huggingface import RavenstoreCallback

        return RavenstoreCallback(**{**self.options, **options})

    def test_learns_the_same_while_activations_move(self):
        for arguments, plain in zip(VARIANTS, self.plain, strict=True):
            with self.subTest(**arguments):
                callback = self.callback()
                self.assertSame(self.train(callback, **arguments), plain)
                self.assertGreater(callback.explanation.taken.tensors, 0)
        self.assertTrue(callback.explanation.moved)

    def test_nothing_stays_open_after_the_training(self):
        callback = self.callback()
        self.train(callback)
        before = ravenstore.explain().saved
        self.save_something()
        self.assertEqual(ravenstore.explain().saved, before)

    def test_a_failed_training_is_closed_by_hand_or_by_the_next(self):
        callback = self.callback()
        for close in (callback.close, lambda: self.train(callback)):
            trainer = self.trainer(callback)
            trainer.compute_loss = lambda *_, **__: 1 / 0
            with self.assertRaises(ZeroDivisionError):
                trainer.train()
            close()
            before = ravenstore.explain().saved
            self.save_something()
            self.assertEqual(ravenstore.explain().saved, before)

    def test_states_of_the_optimizer_move_as_well(self):
        self.require_optimizer()
        callback = self.callback(offload_optimizer=True)
        self.assertSame(self.train(callback), self.plain[0])

    def test_an_optimizer_that_cannot_move_is_refused_in_words(self):
        self.require_optimizer()
        with self.assertRaisesRegex(TypeError, "offload_optimizer takes"):
            self.train(self.callback(offload_optimizer=True), optim="adagrad")
        before = ravenstore.explain().saved
        self.save_something()
        self.assertEqual(ravenstore.explain().saved, before)

    def test_wrong_options_are_errors_before_any_training(self):
        with self.assertRaisesRegex(ravenstore.InvalidArgument, "no size"):
            self.callback(device_budget="much")
        with self.assertRaises(TypeError):
            self.callback(budget=1)

    def test_the_pages_example_runs(self):
        page = (harness.ROOT / "docs/pytorch-huggingface.md").read_text()
        (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        made = self.trainer()
        names = {
            "transformers": transformers,
            "model": made.model,
            "arguments": made.args,
            "data": made.train_dataset,
        }
        # This process's daemon is no default one.
        code = code.replace('"64MiB"', '"64MiB", socket=socket')
        exec(compile(code, "page", "exec"), {**names, "socket": self.options["socket"]})
        self.assertGreater(ravenstore.explain().taken.tensors, 0)

    def save_something(self):
        weight = torch.ones(1 << 20, requires_grad=True)
        (weight * weight).sum().backward()

    def require_optimizer(self):
        try:
            import ravenstore.optimizer  # noqa: F401
        except ImportError as error:
            self.skipTest(f"this package has no offload_optimizer: {error}")


if __name__ == "__main__":
    xml_main.main()
