"""The inputs of an epoch: the parent's state, streams, event time, and pinned tables."""
