"""Metrics: pure functions of embeddings, ranks and labels."""
