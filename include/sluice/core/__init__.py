"""The pure core: facts in, decisions out; no clock, no I/O, no logging."""
