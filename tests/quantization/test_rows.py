"""Int8 rows: every weight within half a level of what it was, and nothing broken is mended."""

import numpy as np
import pytest

from stages.quantization.rows import quantize_rows


@pytest.mark.parametrize("magnitude", [1e-6, 1.0, 1e6])
def test_every_weight_is_within_half_a_level(magnitude: float) -> None:
    weight = (np.random.default_rng(0).standard_normal((5, 33)) * magnitude).astype(np.float32)
    rows = quantize_rows(weight)
    assert rows.values.shape == (5, 33) and rows.values.dtype == np.int8
    assert (np.abs(rows.dequantized() - weight) <= rows.scales[:, None] * 0.5001).all()


def test_the_largest_weight_of_each_row_takes_the_last_level() -> None:
    weight = np.array([[0.5, -2.0], [3.0, 1.0]], np.float32)
    assert np.abs(quantize_rows(weight).values).max(axis=1).tolist() == [127, 127]


def test_a_row_of_zeros_stays_zero() -> None:
    rows = quantize_rows(np.zeros((2, 4), np.float32))
    assert (rows.dequantized() == 0).all()


def test_an_outlier_costs_only_its_own_row() -> None:
    weight = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    planted = weight.copy()
    planted[1, 2] *= 1000
    assert np.array_equal(quantize_rows(planted).dequantized()[[0, 2]], quantize_rows(weight).dequantized()[[0, 2]])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_not_finite_stays_visible(bad: float) -> None:
    weight = np.ones((2, 3), np.float32)
    weight[0, 1] = bad
    dequantized = quantize_rows(weight).dequantized()
    assert np.isnan(dequantized[0]).all() and np.isfinite(dequantized[1]).all()
