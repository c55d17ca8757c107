"""Networks: built by size or from pretrained weights, their heads without full logits, and how they are stored."""
