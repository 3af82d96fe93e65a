"""Each connector beside its own library, doing the same."""
