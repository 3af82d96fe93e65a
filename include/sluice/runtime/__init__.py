"""What runs inside a subtask: keyed state, operators, and the passage between Arrow and them."""
