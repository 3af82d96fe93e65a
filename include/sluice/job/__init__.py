"""One pipeline's job in one root: what its bucket holds, and where its sources and sinks are."""
