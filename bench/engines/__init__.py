"""The measured engines: one module each, see ``bench.protocol.Engine``."""
