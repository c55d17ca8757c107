"""The keyed permutation is a bijection for every size, differs by seed and epoch, and is spread evenly."""

import numpy as np

from stages.data.permutation import keys, permute


def test_a_bijection_for_every_small_size():
    sizes = [*range(1, 300), 1000, 4096, 4097, 65537]
    for size in sizes:
        order = permute(np.arange(size, dtype=np.uint64), size, seed=7, epoch=3)
        assert sorted(order.tolist()) == list(range(size))
    assert len(sizes) == 303


def test_one_index_at_a_time_equals_all_at_once():
    whole = permute(np.arange(1001, dtype=np.uint64), 1001, 5, 2)
    assert [int(permute(np.array([i], np.uint64), 1001, 5, 2)[0]) for i in range(1001)] == whole.tolist()


def test_the_argument_is_left_alone_and_huge_sizes_work():
    index = np.array([0, 10**15 - 1], np.uint64)
    order = permute(index, 10**15, 0, 0)
    assert index.tolist() == [0, 10**15 - 1]
    assert len(set(order.tolist())) == 2 and order.max() < 10**15


def test_seeds_and_epochs_give_unlike_orders():
    index = np.arange(500, dtype=np.uint64)
    orders = {tuple(permute(index, 500, seed, epoch).tolist()) for seed in (0, 1, 2**62) for epoch in range(5)}
    assert len(orders) == 15


def test_places_are_spread_evenly():
    """Over many keys each index meets each place about equally often (chi-square far from its tails)."""
    size, draws = 10, 4000
    counts = np.zeros((size, size))
    for epoch in range(draws):
        order = permute(np.arange(size, dtype=np.uint64), size, 11, epoch)
        counts[np.arange(size), order.astype(int)] += 1
    chi_square = ((counts - draws / size) ** 2 / (draws / size)).sum()
    assert 40 < chi_square < 140  # 81 degrees of freedom: mean 81, standard deviation 13


def test_keys_depend_on_every_part():
    drawn = {int(keys(*parts, count=1)[0]) for parts in [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (2**64 - 1,)]}
    assert len(drawn) == 7
