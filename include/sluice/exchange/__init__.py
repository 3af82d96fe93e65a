"""A subtask's pass: rows to key groups, through an operator, to files and an ack."""
