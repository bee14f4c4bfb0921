"""The exact training step, its loop, checkpoints, metrics and events."""
