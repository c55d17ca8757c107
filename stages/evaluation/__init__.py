"""How good a model is on text it has not seen: likelihood, baselines on the same bytes, samples, and a gate."""
