"""Hugging Face's Trainer with its activations in the store.

    from ravenstore.huggingface import RavenstoreCallback

    trainer = Trainer(model, args, train_dataset=data,
                      callbacks=[RavenstoreCallback(device_budget="12GiB")])
    trainer.train()

It is `with ravenstore.offload(...):` around the training, plus ravenstore.step() after each step.
PrepareCallback is ravenstore.prepare() for a Trainer: states away, the loss in chunks.
"""

from __future__ import annotations

import sys
from typing import Any

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError(
        f"ravenstore.huggingface needs transformers, which did not import ({error}): "
        "pip install transformers accelerate"
    ) from error

from ravenstore._units import Size
from ravenstore.errors import InvalidArgument
from ravenstore.offload import Explanation, explain, offload, step
from ravenstore.plan import Plan, prepare
from ravenstore.store import Store


class RavenstoreCallback(TrainerCallback):
    """Turns the store on for a Trainer's training, in the thread that runs it.

    device_budget: as of ravenstore.offload().
    offload_optimizer: the optimizer's states live in the store as well, see
        ravenstore.offload_optimizer(). For the optimizers that it takes, such as the Trainer's
        default; else it raises TypeError when the training begins.
    report: print ravenstore.explain() when the training ends, on the world's first process.
    options: more of ravenstore.offload()'s: socket, embedded, host_budget, min_bytes, way, timeout.

    Errors: train() raises those of ravenstore.offload() when it begins. When train() itself fails,
    the Trainer does not tell its callbacks: close() then ends the offloading, if this process goes
    on; the next training with this callback does so itself. DataParallel's other threads are left
    alone: use one process for each GPU.
    """

    def __init__(
        self,
        device_budget: Size | None = None,
        *,
        offload_optimizer: bool = False,
        report: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        self.explanation: Explanation | None = None
        """What explain() said when the last training ended."""
        self._options = {"device_budget": device_budget, **options}
        offload(**self._options)  # wrong ones raise here
        self._offload_optimizer = offload_optimizer
        self._report = report
        self._scope: offload | None = None

    def close(self) -> None:
        """Ends the offloading that a failed training left on. In the thread that ran it. More calls
        do nothing."""
        scope, self._scope = self._scope, None
        if scope is not None:
            scope.__exit__(None, None, None)

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, optimizer: Any = None, **_: Any
    ) -> None:
        """Opens the scope, and moves the optimizer's states."""
        self.close()
        scope = offload(**self._options)
        scope.__enter__()
        self._scope = scope
        if self._offload_optimizer:
            try:
                self._move_states(optimizer)
            except BaseException:
                self.close()
                raise

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Says that a training step has ended."""
        if self._scope is not None:
            step()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Closes the scope."""
        self.close()
        self.explanation = explain()
        if self._report and state.is_world_process_zero:
            print(self.explanation, file=sys.stderr)

    def _move_states(self, optimizer: Any) -> None:
        from ravenstore._states import unwrapped
        from ravenstore.optimizer import offload_optimizer

        if optimizer is None:
            raise InvalidArgument(
                "offload_optimizer: the Trainer makes its optimizer after the training has begun "
                "(FSDP, DeepSpeed); give it one, or offload_optimizer=False"
            )
        plain = unwrapped(optimizer)
        if hasattr(plain, "_ravenstore"):
            return
        store = None
        if self._options.get("socket") is not None or self._options.get("embedded"):
            names = ("socket", "embedded", "timeout")
            chosen = {name: self._options[name] for name in names if name in self._options}
            store = Store.connect(name="optimizer states", **chosen)
        offload_optimizer(plain, store)


class PrepareCallback(TrainerCallback):
    """ravenstore.prepare() for a Trainer's training, in the thread that runs it.

    options: those of ravenstore.prepare(). Where `in_backward` is not among them the Trainer's
        arguments decide: updates are made after the backward pass if it clips (max_grad_norm, which
        is 1 by default), accumulates, scales (fp16) or runs several processes; else the first step
        does ("auto"). A Trainer that logs the gradients' norm, as transformers 5 does, uses them.

    Errors: train() raises those of ravenstore.prepare() when it begins. When train() itself fails
    call close(), if this process goes on.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.plan: Plan | None = None
        """The last training's."""
        self.explanation = ""
        """What Plan.explain() said when the last training ended."""
        self._options = options

    def close(self) -> None:
        """Ends what a failed training left on. In the thread that ran it. More calls do nothing."""
        if self.plan is not None:
            self.plan.close()

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,
        *,
        model: Any = None,
        optimizer: Any = None,
        **_: Any,
    ) -> None:
        """Prepares model and optimizer."""
        self.close()
        if optimizer is None:
            raise InvalidArgument(
                "PrepareCallback: the Trainer makes its optimizer after the training has begun "
                "(FSDP, DeepSpeed), whose own offloading moves states then"
            )
        where = "auto" if _uses_gradients(args) is None else False
        options: dict[str, Any] = {"in_backward": where, **self._options}
        options["report"] = options.get("report", True) and state.is_world_process_zero
        self.plan = prepare(model, optimizer, **options)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Says that a training step has ended."""
        if self.plan is not None:
            self.plan.step()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Prints what was measured, and ends the offloading."""
        if self.plan is None:
            return
        self.explanation = self.plan.explain()
        if self._options.get("report", True) and state.is_world_process_zero:
            print(self.explanation, file=sys.stderr)
        self.plan.close()


def _uses_gradients(args: Any) -> str | None:
    """Which of the Trainer's arguments has it use gradients between backward pass and step."""
    if args.max_grad_norm:
        return "max_grad_norm"
    if args.gradient_accumulation_steps > 1:
        return "gradient_accumulation_steps"
    if args.fp16:
        return "fp16"
    return "several processes" if args.world_size > 1 else None
