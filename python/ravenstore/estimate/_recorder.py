"""The order in which a job allocates and frees memory of its GPU."""

from __future__ import annotations

import dataclasses

from ravenstore.estimate._cache import Event


@dataclasses.dataclass
class Recorder:
    """Events as ravenstore.estimate._cache replays them, and what stands between them."""

    events: list[Event] = dataclasses.field(default_factory=list)
    marks: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    """(how many events came before, what began there)."""
    notes: dict[str, None] = dataclasses.field(default_factory=dict)
    """Sentences on what the recording lacks or took otherwise, in the order of their coming."""
    sort: str = "other"
    """Of the model, by which captures err alike: "convolutional" or "recurrent" if it has such
    layers."""
    closed: bool = False
    """What happens from here on is not recorded."""
    used: int = 0
    used_peak: int = 0
    _count: int = 0
    _sizes: dict[int, int] = dataclasses.field(default_factory=dict)

    def allocate(self, size: int) -> int:
        """Notes an allocation of `size` bytes; its id. An empty one takes nothing."""
        self._count += 1
        if size > 0 and not self.closed:
            self.events.append((size, self._count))
            self._sizes[self._count] = size
            self.used += size
            self.used_peak = max(self.used_peak, self.used)
        return self._count

    def free(self, number: int) -> None:
        size = self._sizes.pop(number, 0)
        if size > 0 and not self.closed:
            self.events.append((-size, number))
            self.used -= size

    def use(self, size: int) -> None:
        """An allocation that is freed immediately: an operator's workspace."""
        if size > 0:
            self.free(self.allocate(size))

    def mark(self, what: str) -> None:
        self.marks.append((len(self.events), what))

    def note(self, sentence: str) -> None:
        self.notes[sentence] = None
