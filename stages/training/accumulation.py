"""How many micro-batches make a step, and the grouping that never crosses the end of an epoch."""

from collections.abc import Callable, Iterator

from stages.data.batches import Batch


class Groups:
    """Consecutive micro-batches of one epoch, `accumulation` of them; the last group of an epoch holds what is left.

    `accumulation` is asked anew before every group. A micro-batch of the next epoch is looked at only when a group is not yet full, so an
    accumulation of 1 never reads ahead.
    """

    def __init__(self, batches: Iterator[Batch], accumulation: int | Callable[[], int]) -> None:
        self._batches = iter(batches)
        self._accumulation = accumulation
        self._held: Batch | None = None

    def next(self) -> list[Batch]:
        """The next group; empty once the batches have come to an end."""
        size = self._accumulation() if callable(self._accumulation) else self._accumulation
        if size < 1:
            raise ValueError(f"train.accumulation_steps is {size}; it must be 1 or more")
        group: list[Batch] = []
        while len(group) < size:
            batch = self._held or next(self._batches, None)
            self._held = None
            if batch is None:
                break
            if group and batch.epoch != group[0].epoch:
                self._held = batch
                break
            group.append(batch)
        return group


class DynamicAccumulation:
    """Accumulation that doubles when the validation loss stalls and halves when it rises, between `start` and `max_steps` micro-batches.

    A stall is `patience` validations in a row, none of which lies `min_improvement` nats below the last counted improvement. A rise is a
    validation more than `min_improvement` nats above the one before it. Call `observe` after every validation; call the object for its value.
    """

    def __init__(self, start: int, *, max_steps: int, patience: int, min_improvement: float) -> None:
        self._start, self._max, self._patience, self._min_improvement = start, max_steps, patience, min_improvement
        self._steps = start
        self._stalled = 0
        self._reference: float | None = None  # the loss at the last counted improvement
        self._previous: float | None = None

    def __call__(self) -> int:
        return self._steps

    def observe(self, validation_loss: float) -> None:
        """Take one validation loss (nats) into account."""
        if self._previous is not None and validation_loss > self._previous + self._min_improvement:
            self._steps, self._stalled = max(self._start, self._steps // 2), 0
        elif self._reference is None or validation_loss < self._reference - self._min_improvement:
            self._reference, self._stalled = validation_loss, 0
        else:
            self._stall()
        self._previous = validation_loss

    def _stall(self) -> None:
        self._stalled += 1
        if self._stalled >= self._patience:
            self._steps, self._stalled = min(self._max, self._steps * 2), 0
