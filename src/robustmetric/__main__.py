"""`python -m robustmetric` is the `robustmetric` command."""

from robustmetric.cli import main

main()
