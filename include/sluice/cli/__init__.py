"""The command line: ``sluice``."""
