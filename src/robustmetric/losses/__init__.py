"""Metric losses and the miners that feed them."""
