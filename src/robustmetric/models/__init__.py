"""Models: inputs in [0, 1] to embeddings, and nothing else."""
