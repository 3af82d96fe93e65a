"""The figures of checkpoints, stages and subtasks that Flink has, too; pure functions."""
