"""Where records come from and go to: replayable sources addressed by offset, two-phase sinks."""
