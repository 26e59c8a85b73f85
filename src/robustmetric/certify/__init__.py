"""Certificates: radii within which a prediction provably stays."""
