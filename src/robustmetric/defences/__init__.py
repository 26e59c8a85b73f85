"""Defences: a batch to named loss terms."""
