"""Attacks: whom to target, what to climb, how to score."""
