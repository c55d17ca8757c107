"""Underbudget's commands (the files here) and libraries (the folders)."""

import os

# Threads that wait for work sleep instead of spinning: as fast on an idle machine, several times faster beside anything else that computes
# (benchmarks/threads.py). Read by OpenMP when torch loads it, so it is set here, before any stage imports torch.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
