"""Where a step's time goes, and how near the machine's limit it comes."""
