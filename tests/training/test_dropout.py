"""Seeds for dropout: one for each (seed, epoch, start), whatever was drawn before."""

import itertools

import torch

from stages.training.dropout import seed_generators

CPU = torch.device("cpu")


def drawn(*key):
    seed_generators(*key, CPU)
    return float(torch.rand(()))


def test_draws_depend_on_the_key_alone():
    first = drawn(1, 2, 3)
    torch.rand(100)
    assert drawn(1, 2, 3) == first


def test_every_key_draws_differently():
    keys = list(itertools.product((0, 1, 2**62), (0, 1, 7), (0, 1, 8, 10**12)))
    assert len({drawn(*key) for key in keys}) == len(keys) == 36
