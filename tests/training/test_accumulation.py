"""Grouping micro-batches into steps, and accumulation that follows the validation loss."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.training.accumulation import DynamicAccumulation, Groups
from tests.training.made import cut, whole


def batches(epochs: int, count: int):
    return [batch for epoch in range(epochs) for batch in cut(whole(2 * count, epoch=epoch), 2)]


def grouped(groups):
    found = []
    while group := groups.next():
        found.append([(batch.epoch, batch.start) for batch in group])
    return found


@pytest.mark.parametrize(("count", "accumulation", "sizes"), [(5, 4, [4, 1]), (3, 8, [3]), (4, 2, [2, 2]), (3, 1, [1, 1, 1])])
def test_groups_never_cross_an_epoch(count, accumulation, sizes):
    found = grouped(Groups(iter(batches(3, count)), accumulation))
    assert [len(group) for group in found] == sizes * 3
    assert [place for group in found for place in group] == [(batch.epoch, batch.start) for batch in batches(3, count)], "every micro-batch once, in order"
    assert all(len({epoch for epoch, _ in group}) == 1 for group in found)


def test_one_micro_batch_a_step_reads_nothing_ahead():
    source = iter(batches(1, 3))
    Groups(source, 1).next()
    assert len(list(source)) == 2


def test_accumulation_is_asked_before_every_group():
    sizes = iter([1, 3, 2, 5, 1])
    found = grouped(Groups(iter(batches(1, 8)), lambda: next(sizes)))
    assert [len(group) for group in found] == [1, 3, 2, 2]


@pytest.mark.parametrize("size", [0, -2])
def test_less_than_one_is_refused(size):
    with pytest.raises(ValueError, match=f"train.accumulation_steps is {size}"):
        Groups(iter(batches(1, 1)), lambda: size).next()


def follow(losses, **settings):
    accumulation = DynamicAccumulation(**{"start": 1, "max_steps": 8, "patience": 2, "min_improvement": 0.01, **settings})
    found = []
    for loss in losses:
        accumulation.observe(loss)
        found.append(accumulation())
    return found


def test_it_doubles_after_patience_validations_without_improvement_up_to_its_bound():
    assert follow([3.0] * 9) == [1, 1, 2, 2, 4, 4, 8, 8, 8]
    assert follow([3.0] * 7, start=3) == [3, 3, 6, 6, 8, 8, 8]


def test_it_stays_while_the_loss_improves():
    assert follow([3.0, 2.9, 2.8, 2.7]) == [1, 1, 1, 1]
    assert follow([3.0, 2.995, 2.985, 2.984, 2.97]) == [1, 1, 1, 1, 1], "small gains add up to one"


def test_it_halves_on_a_rise_down_to_where_it_began():
    assert follow([3.0, 3.0, 3.0, 3.0, 3.0, 3.2, 3.5, 3.9]) == [1, 1, 2, 2, 4, 2, 1, 1]
    assert follow([3.0, 3.0, 3.0, 3.2], start=3) == [3, 3, 6, 3]


@given(st.lists(st.floats(0, 10)), st.integers(1, 8), st.integers(8, 64), st.integers(1, 3))
def test_it_stays_within_its_bounds(losses, start, most, patience):
    assert all(start <= steps <= most for steps in follow(losses, start=start, max_steps=most, patience=patience))
