"""The command line: each word is a job; errors are one line and exit code 2."""

from robustmetric.cli import data, jobs, results
from robustmetric.cli.app import app, main

__all__ = ["app", "data", "jobs", "main", "results"]
