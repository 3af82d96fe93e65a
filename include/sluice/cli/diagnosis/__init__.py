"""The checks of ``sluice doctor``: the machine, the project, the root; each yields findings."""
