"""Diagnose: what numbers alone do not show, as named verdicts with their evidence."""
