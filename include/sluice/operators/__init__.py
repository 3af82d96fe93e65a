"""Built-in stateful operators: pure functions of (groups of an epoch, keyed state, watermarks)."""
