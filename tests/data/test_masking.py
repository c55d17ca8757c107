"""Masks follow BERT's recipe, depend only on (seed, epoch, sample), and never leave a block without a prediction."""

import numpy as np

from stages.data.masking import mask

FIXED = {"mask_token": 2, "vocab_size": 1000, "ignored": -100}


def test_shares_are_those_of_the_recipe():
    tokens = np.full(200_000, 7)
    inputs, labels = mask(tokens, seed=1, epoch=0, sample=0, share=0.15, **FIXED)
    chosen = labels != -100
    assert abs(chosen.mean() - 0.15) < 0.005
    assert (labels[chosen] == 7).all() and (inputs[~chosen] == 7).all()
    masked, kept = (inputs[chosen] == 2).mean(), (inputs[chosen] == 7).mean()
    assert abs(masked - 0.8) < 0.01 and abs(kept - 0.1) < 0.01
    random = inputs[chosen & (inputs != 2) & (inputs != 7)]
    assert random.min() >= 0 and random.max() < 1000 and len(np.unique(random)) > 900


def test_a_function_of_its_keys_alone():
    tokens = np.arange(64)
    keys = [(seed, epoch, sample) for seed in (0, 2**63 - 1) for epoch in (0, 1) for sample in (0, 1, 10**12)]
    drawn = {}
    for seed, epoch, sample in keys:
        first, second = (mask(tokens, seed=seed, epoch=epoch, sample=sample, share=0.3, **FIXED) for _ in range(2))
        assert (first[0] == second[0]).all() and (first[1] == second[1]).all()
        drawn[tuple(first[1].tolist())] = (seed, epoch, sample)
    assert len(drawn) == len(keys) == 12


def test_every_block_predicts_something_even_at_a_tiny_share():
    for sample in range(200):
        _, labels = mask(np.arange(8), seed=0, epoch=0, sample=sample, share=1e-6, **FIXED)
        assert (labels != -100).sum() == 1
    _, labels = mask(np.array([5]), seed=0, epoch=0, sample=0, share=1e-6, **FIXED)
    assert labels.tolist() == [5]


def test_the_global_generator_is_left_alone():
    np.random.seed(3)
    before = np.random.get_state()[1].tolist()
    mask(np.arange(8), seed=0, epoch=0, sample=0, share=0.5, **FIXED)
    assert np.random.get_state()[1].tolist() == before
