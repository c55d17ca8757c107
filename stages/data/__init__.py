"""From text to batches: sources, splits by document, tokenizer, flat token files, and batches as pure functions of (seed, epoch, index)."""
