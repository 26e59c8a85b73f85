"""Numerics: distances and top-k, k-means."""
