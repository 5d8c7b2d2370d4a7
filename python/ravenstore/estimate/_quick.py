"""The estimate by the formula: in a fraction of a second, from what a model says of itself."""

from __future__ import annotations

import time
from typing import Any

from ravenstore.estimate import _formula, _models
from ravenstore.estimate._estimate import CaptureRefused, Estimate, memory_of, with_context


def estimate(
    model: Any, training: _models.Training, *, gpu: str, gpu_memory: int | str | None
) -> Estimate:
    """Documented in the package, as estimate_model; `training`: on the meta device."""
    begin = time.perf_counter()
    optimizer = "none" if training.inference else training.optimizer
    if optimizer not in _formula.STATES:
        known = ", ".join(name for name in _formula.STATES if name != "none")
        raise CaptureRefused(f"the formula knows no {optimizer}: give one of {known}, or a capture")
    way = _formula.Way(optimizer, training.precision, training.checkpointing)
    subject = _models.subject_of(model, training)
    description = _models.described(subject, training)
    said = _formula.predict(description, way)
    in_group = training.ranks > 1 and not training.inference
    exchanged = description.trainable if in_group else 0
    fitted = _formula.fitted()["gpu"]
    notes = () if gpu == fitted else (f"the formula is fitted to jobs on a {fitted}",)
    return with_context(
        Estimate(
            used=said.used + exchanged,
            reserved=said.reserved + exchanged,
            context=0,
            margin=said.margin,
            source="formula",
            notes=notes,
            seconds=time.perf_counter() - begin,
        ),
        gpu=gpu,
        total_memory=memory_of(gpu, gpu_memory),
        in_group=in_group,
    )
