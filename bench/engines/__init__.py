"""The engines that are measured: one module each, see ``bench.protocol.Engine``."""
