"""The one training loop and what it needs: the step, its arithmetic, its length, its batches."""
