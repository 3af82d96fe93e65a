"""Views of a job for people and other programs: history, checkpoints, keyed state."""
