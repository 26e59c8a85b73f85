"""Perturbations: balls and the engines that climb inside them."""
