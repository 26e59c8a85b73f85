"""Data: datasets, the decoded-image cache, batched transforms and batch samplers."""
