"""What memory a run takes."""
