"""Options that several commands share: where they run, how fast, and what of broken images."""

from typing import Annotated

import typer

Devices = Annotated[str, typer.Option(help="How many devices, or which: 2, or 0,3, or auto.")]
Accelerator = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Nodes = Annotated[int, typer.Option(help="Machines (under torchrun or SLURM).")]
Precision = Annotated[str, typer.Option(help="32-true, bf16-mixed, 16-mixed, ...")]
Hurried = Annotated[
    bool, typer.Option("--fast", help="bfloat16 on a GPU and on a CPU with AMX; compiled attacks and updates on a GPU.")
]
Skip = Annotated[bool, typer.Option("--skip-unreadable", help="Leave unreadable images out, and count them.")]
Strategy = Annotated[str, typer.Option(help="auto, ddp, or another Lightning Fabric strategy.")]
