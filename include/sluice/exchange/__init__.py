"""The code of a subtask: operators, keyed state, and their rows from and to Arrow."""
