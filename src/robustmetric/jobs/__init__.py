"""Jobs: train, evaluate, export, demo. Each reads top to bottom."""
