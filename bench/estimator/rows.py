"""The measured jobs of the tree, and what their models say of themselves.

bench/estimator/rows.py MEASURED... FILE   describes what measure.py wrote, and packs it for here
"""

from __future__ import annotations

import dataclasses
import json
import lzma
import multiprocessing
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import figures  # noqa: E402

figures.use_package()

import jobs  # noqa: E402
import models  # noqa: E402
import torch  # noqa: E402
from ravenstore.estimate import _describe, _formula  # noqa: E402

DATA = pathlib.Path(__file__).resolve().parent / "data"
_FIELDS = [field.name for field in dataclasses.fields(jobs.Job)]


@dataclasses.dataclass(frozen=True)
class Row:
    """A job, what it took in bytes, and its model's description."""

    job: jobs.Job
    used: int
    reserved: int
    step_s: float
    description: _describe.Description

    @property
    def way(self) -> _formula.Way:
        job = self.job
        return _formula.Way(job.optimizer, job.precision, job.checkpointed, job.compiled)


def describe(job: jobs.Job) -> _describe.Description:
    """The job's model and batch, as they say of themselves."""
    dtype = torch.bfloat16 if job.precision == "bf16" else torch.float32

    with torch.device("meta"):
        model = models.FAMILIES[job.family](**job.architecture).to("meta", dtype)
        model.train(job.optimizer != "none")
        batch = model.batch(job.batch, dtype)
        blocks = model.blocks() if hasattr(model, "blocks") else None
        return _describe.describe(model, lambda: model.loss(*batch), batch=batch, blocks=blocks)


def packed(line: str) -> dict | None:
    """A line of measure.py with its description; None for a job that failed."""
    row = json.loads(line)
    if "error" in row:
        return None
    job = jobs.Job(**{name: row[name] for name in _FIELDS})
    fields = dataclasses.asdict(describe(job))
    fields["layers"] = [list(part.values()) for part in fields["layers"]]
    kept = ("used", "reserved", "step_s")
    return job.asdict() | {name: row[name] for name in kept} | {"description": fields}


def read(name: str) -> list[Row]:
    """The rows of a file of the tree, in its order."""
    rows = []
    with lzma.open(DATA / name, "rt") as file:
        for line in file:
            row = json.loads(line)
            fields = row["description"]
            fields["layers"] = tuple(_describe.Layer(*part) for part in fields["layers"])
            description = _describe.Description(**fields)
            job = jobs.Job(**{name: row[name] for name in _FIELDS})
            rows.append(Row(job, row["used"], row["reserved"], row["step_s"], description))
    return rows


def read_again() -> list[dict]:
    """Of jobs that were measured twice: `key`, and `reserved` as `before` and `again`."""
    with lzma.open(DATA / "h100-again.jsonl.xz", "rt") as file:
        return [json.loads(line) for line in file]


def main() -> None:
    *measured, into = sys.argv[1:]
    lines = [line for path in measured for line in pathlib.Path(path).read_text().splitlines()]
    with multiprocessing.Pool() as pool, lzma.open(into, "wt", preset=9) as file:
        for row in pool.imap(packed, lines, chunksize=8):
            if row:
                print(json.dumps(row, separators=(",", ":")), file=file)


if __name__ == "__main__":
    main()
