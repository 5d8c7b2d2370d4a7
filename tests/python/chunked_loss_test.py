"""chunk_loss: a causal language model's loss and gradients as plain ones, without its logits."""

import copy
import io
import types
import unittest
import unittest.mock

import harness  # noqa: F401 - the package on sys.path
import ravenstore
import torch
import xml_main
from ravenstore.chunked_loss import ChunkedHead, LazyLogits, chunk_loss
from torch.utils._python_dispatch import TorchDispatchMode

try:
    import transformers

    WITHOUT = ""
except ImportError as error:
    WITHOUT = f"needs transformers: {error}"

WORDS = 1000
ROWS, LENGTH = 4, 64


def llama(**options):
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": WORDS}
    config = transformers.LlamaConfig(**{**shape, **heads, "use_cache": False, **options})
    return transformers.LlamaForCausalLM(config).train()


def gpt2():
    torch.manual_seed(0)
    still = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    shape = {"n_embd": 64, "n_layer": 2, "n_head": 4, "bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(vocab_size=WORDS, use_cache=False, **shape, **still)
    return transformers.GPT2LMHeadModel(config).train()


def gemma2():
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": WORDS}
    config = transformers.Gemma2Config(**shape, **heads, use_cache=False)
    return transformers.Gemma2ForCausalLM(config).train()


def tokens():
    ids = torch.randint(0, WORDS, (ROWS, LENGTH), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[:, :5] = -100
    return {"input_ids": ids, "labels": labels}


def error_of(model, exact):
    """The largest error of a gradient, of that gradient's largest element."""
    pairs = zip(model.parameters(), exact.parameters(), strict=True)
    return max(((p.grad - q.grad).abs().max() / q.grad.abs().max()).item() for p, q in pairs)


class Largest(TorchDispatchMode):
    """The most elements of a tensor that an operation made."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, _types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return made


@unittest.skipIf(WITHOUT, WITHOUT)
@unittest.skipUnless(
    hasattr(torch.nn, "LinearCrossEntropyOptions"), "this PyTorch has no loss in chunks"
)
class ChunkedLossTest(unittest.TestCase):
    def pair(self, make, dtype=torch.float32):
        """Equal models: plain, and with its loss in chunks."""
        plain = make().to(dtype)
        chunked = copy.deepcopy(plain)
        return plain, chunked, chunk_loss(chunked)

    def test_losses_and_gradients_are_the_plain_ones(self):
        variants = ({}, {"num_items_in_batch": torch.tensor(77)}, {"num_items_in_batch": 77})
        tied = lambda: llama(tie_word_embeddings=True)  # noqa: E731
        for make in (llama, tied, gpt2):
            for more in variants:
                with self.subTest(make=make.__name__, more=more):
                    plain, chunked, _ = self.pair(make)
                    a, b = (model(**tokens(), **more).loss for model in (plain, chunked))
                    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
                    (a * 3).backward()
                    (b * 3).backward()
                    self.assertLess(error_of(chunked, plain), 1e-5)

    def test_with_16_bits_the_error_is_no_larger_than_the_plain_ones(self):
        exact = llama().double()
        exact_loss = exact(**tokens()).loss
        exact_loss.backward()
        plain, chunked, _ = self.pair(llama, torch.bfloat16)
        errors = []
        for model in (plain, chunked):
            loss = model(**tokens()).loss
            self.assertEqual(loss.dtype, torch.float32)
            torch.testing.assert_close(loss.double(), exact_loss.double(), rtol=1e-3, atol=0)
            loss.backward()
            errors.append(error_of(model.double(), exact))
        self.assertLess(errors[1], 1.5 * errors[0] + 0.01)

    def test_under_autocast(self):
        plain, chunked, _ = self.pair(llama)
        losses = []
        for model in (plain, chunked):
            with torch.autocast("cpu", torch.bfloat16):
                out = model(**tokens())
            self.assertEqual(out.logits.dtype, torch.bfloat16)
            losses.append(out.loss)
            out.loss.backward()
        torch.testing.assert_close(*losses, rtol=1e-3, atol=0)
        self.assertEqual(chunked.lm_head.weight.grad.dtype, torch.float32)
        self.assertLess(error_of(chunked, plain), 0.05)

    def test_no_tensor_is_as_large_as_the_logits(self):
        largest = []
        for model in self.pair(llama)[:2]:
            with Largest() as seen:
                model(**tokens()).loss.backward()
            largest.append(seen.elements)
        self.assertGreaterEqual(largest[0], ROWS * LENGTH * WORDS)
        self.assertLessEqual(largest[1], ROWS * LENGTH * WORDS // 4)

    def test_logits_that_are_used_are_the_plain_ones_with_their_graph(self):
        plain, chunked, _ = self.pair(llama)
        grads = []
        for model in (plain, chunked):
            out = model(**tokens())
            (out.loss + out.logits[:, -1].square().mean()).backward()
            grads.append(model)
        self.assertIsInstance(out.logits, LazyLogits)
        self.assertTrue(torch.equal(out.logits.detach(), plain(**tokens()).logits))
        self.assertTrue(torch.equal(out.logits.float().argmax(-1), out.logits.argmax(-1)))
        self.assertIn("tensor", repr(out.logits))
        self.assertLess(error_of(chunked, plain), 1e-5)

    def test_shape_and_type_are_known_without_them(self):
        _, chunked, _ = self.pair(llama)
        logits = chunked(**tokens()).logits
        self.assertEqual(logits.shape, (ROWS, LENGTH, WORDS))
        self.assertTrue(logits.requires_grad and logits.is_floating_point())
        for other in (logits.float(), logits.to(torch.bfloat16)):
            self.assertIsInstance(other, LazyLogits)
            self.assertIsNone(other._made)
        self.assertEqual(other.dtype, torch.bfloat16)
        self.assertEqual(other.sum().dtype, torch.bfloat16)
        self.assertIsNone(logits._made)

    def test_a_way_past_python_is_an_error_in_words_and_loses_no_gradient(self):
        class Doubled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, grad):
                return grad * 2

        plain, chunked, _ = self.pair(llama)
        with self.assertRaisesRegex(RuntimeError, "goes past Python"):
            Doubled.apply(chunked(**tokens()).logits).sum().backward()
        for model in (plain, chunked):
            Doubled.apply(model(**tokens()).logits.clone()).square().mean().backward()
        self.assertEqual(error_of(chunked, plain), 0)

    def test_evaluation_and_generation_compute_logits_as_before(self):
        plain, chunked, _ = self.pair(llama)
        with torch.no_grad():
            self.assertIs(type(chunked(**tokens()).logits), torch.Tensor)
        for model in (plain, chunked):
            model.eval()
        a, b = plain(**tokens()), chunked(**tokens())
        self.assertIs(type(b.logits), torch.Tensor)
        self.assertTrue(torch.equal(a.loss, b.loss))
        options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
        prompt = tokens()["input_ids"][:, :8]
        self.assertTrue(
            torch.equal(plain.generate(prompt, **options), chunked.generate(prompt, **options))
        )

    def test_a_model_that_changes_its_logits_gets_the_plain_loss(self):
        plain, chunked, _ = self.pair(gemma2)
        a, b = plain(**tokens()), chunked(**tokens())
        self.assertTrue(torch.equal(a.loss, b.loss))
        a.loss.backward()
        b.loss.backward()
        self.assertEqual(error_of(chunked, plain), 0)

    def test_logits_that_are_changed_in_place_get_the_plain_loss(self):
        class Masked(transformers.LlamaForCausalLM):
            """Whose vocabulary is padded."""

            def forward(self, input_ids, labels):
                logits = self.lm_head(self.model(input_ids).last_hidden_state)
                logits[..., 400:] = -1e4
                loss = self.loss_function(logits=logits, labels=labels, vocab_size=WORDS)
                return types.SimpleNamespace(loss=loss, logits=logits)

        plain, chunked, _ = self.pair(lambda: Masked(llama().config).train())
        a, b = plain(**tokens()), chunked(**tokens())
        self.assertTrue(torch.equal(a.loss, b.loss))
        a.loss.backward()
        b.loss.backward()
        self.assertEqual(error_of(chunked, plain), 0)

    def test_logits_of_weights_that_are_gone_are_refused(self):
        _, chunked, _ = self.pair(llama)
        opt = torch.optim.SGD(chunked.parameters(), lr=0.1)
        out = chunked(**tokens())
        out.loss.backward()
        out.logits.argmax(-1)
        other = chunked(**tokens())
        opt.step()
        out.logits.argmax(-1)  # computed before
        with self.assertRaisesRegex(RuntimeError, r"use them before optimizer\.step\(\)"):
            other.logits.argmax(-1)

    def test_gradients_of_logits_and_second_derivatives_are_refused(self):
        _, chunked, _ = self.pair(llama)
        out = chunked(**tokens())
        for use in (out.logits.retain_grad, lambda: out.logits.register_hook(print)):
            with self.assertRaisesRegex(RuntimeError, "have no gradient: pass loss_chunks=False"):
                use()
        with self.assertRaisesRegex(RuntimeError, "create_graph=True of a loss in chunks"):
            torch.autograd.grad(out.loss, list(chunked.parameters()), create_graph=True)

    def test_labels_that_are_shifted_and_all_ignored(self):
        plain, chunked, _ = self.pair(llama)
        inputs = tokens()
        shifted = torch.nn.functional.pad(inputs["labels"], (0, 1), value=-100)[:, 1:].contiguous()
        a, b = (model(**inputs, shift_labels=shifted).loss for model in (plain, chunked))
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
        inputs["labels"] = torch.full_like(inputs["labels"], -100)
        for dtype in (torch.float32, torch.bfloat16):
            self.assertTrue(chunked.to(dtype)(**inputs).loss.isnan())

    def test_it_can_be_removed_copied_and_saved(self):
        plain, chunked, loss = self.pair(llama)
        self.assertEqual(list(plain.state_dict()), list(chunked.state_dict()))
        self.assertIn("by PyTorch", repr(loss))
        buffer = io.BytesIO()
        torch.save(chunked, buffer)
        buffer.seek(0)
        for other in (copy.deepcopy(chunked), torch.load(buffer, weights_only=False)):
            self.assertIsInstance(other(**tokens()).logits, LazyLogits)
        loss.remove()
        loss.remove()
        self.assertIs(type(chunked.lm_head), torch.nn.Linear)
        self.assertTrue(torch.equal(chunked(**tokens()).loss, plain(**tokens()).loss))
        chunk_loss(chunked)

    def test_within_wrappers(self):
        class Wrapper(torch.nn.Module):
            def __init__(self, model):
                super().__init__()
                self.model = model

        class Shows(Wrapper):
            """What it wraps, as PEFT does."""

            def __getattr__(self, name):
                try:
                    return super().__getattr__(name)
                except AttributeError:
                    return getattr(self.model, name)

        for wrapper in (Wrapper, Shows, lambda model: Shows(Shows(model))):
            model = llama()
            loss = chunk_loss(wrapper(model))
            self.assertIsInstance(model.lm_head, ChunkedHead)
            self.assertIsInstance(model(**tokens()).logits, LazyLogits)
            loss.remove()
            self.assertIs(type(model.lm_head), torch.nn.Linear)

    def refused(self, model, words):
        with self.assertRaisesRegex(ravenstore.Unsupported, words):
            chunk_loss(model)

    def test_what_is_in_the_way_is_said(self):
        self.refused(torch.nn.Linear(2, 2), "has no model of transformers")
        self.refused(torch.nn.ModuleList([llama(), llama()]), "has several models")
        model = llama()
        model.lm_head = torch.nn.Sequential(model.lm_head)
        self.refused(model, "the head .* is a Sequential: only a plain Linear")
        model = llama()
        model.loss_function = lambda logits, labels, **_: logits.sum()
        self.refused(model, "the loss .* is <lambda>: only transformers' ForCausalLMLoss")
        model = llama()
        chunk_loss(model)
        self.refused(model, "in chunks already")
        with unittest.mock.patch.object(torch.nn, "LinearCrossEntropyOptions", create=True) as stub:
            del stub
            del torch.nn.LinearCrossEntropyOptions
            self.refused(llama(), "has no loss in chunks .* the model is on cpu")


if __name__ == "__main__":
    xml_main.main()
