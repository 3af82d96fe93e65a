"""Wire formats: bytes to core types and back, versioned and checked once; no I/O."""
