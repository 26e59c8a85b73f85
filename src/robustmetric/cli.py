"""The command line: each word is a job; errors are one line and exit code 2."""

import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from robustmetric.errors import InputError, nearest

app = typer.Typer(
    help="Train, attack, certify and compare metric-learning models under adversarial perturbation.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

Target = Annotated[
    str, typer.Argument(metavar="RUN|RECIPE|MODEL", help="A run folder, a recipe, or my_lab.file.model.")
]
OtherData = Annotated[str | None, typer.Option(help="Other data: class folders, a zip, a CSV manifest, or a name.")]
Surrogate = Annotated[
    str | None, typer.Option(metavar="RUN", help="The attacker's own model, for attacks that are transferred.")
]
Devices = Annotated[str, typer.Option(help="How many devices, or which: 2, or 0,3, or auto.")]
Accelerator = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Nodes = Annotated[int, typer.Option(help="Machines (under torchrun or SLURM).")]
Precision = Annotated[str, typer.Option(help="32-true, bf16-mixed, 16-mixed, ...")]
Strategy = Annotated[str, typer.Option(help="auto, ddp, or another Lightning Fabric strategy.")]


@app.callback()
def _global(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Options of every command."""


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A recipe by short name (digits/est) or file.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Changes: defence.attack.steps=4 seed=1")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The run folder; default runs/<recipe>-seed<n>.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the run folder stopped.")] = False,
    skip_unreadable: Annotated[bool, typer.Option(help="Leave unreadable images out, and count them.")] = False,
    tensorboard: Annotated[bool, typer.Option(help="Also log to TensorBoard (extra).")] = False,
    fast: Annotated[bool, typer.Option("--fast", help="On a GPU: bfloat16, compiled attacks and updates.")] = False,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Do not stop when the model collapses.")] = False,
    devices: Devices = "1",
    accelerator: Accelerator = "auto",
    nodes: Nodes = 1,
    precision: Precision = "32-true",
    strategy: Strategy = "auto",
) -> None:
    """Train a recipe.

    Example: [bold]robustmetric train digits/est seed=1 defence.attack.steps=4[/bold]
    """
    from robustmetric.jobs import assemble
    from robustmetric.jobs import train as job
    from robustmetric.jobs.hurry import hurry
    from robustmetric.jobs.origin import differing
    from robustmetric.jobs.target import skipping
    from robustmetric.jobs.workers import Hardware, leads

    if skip_unreadable:
        skipping(assemble.resolve(recipe, overrides or [])[0], recipe)
    changes = [*(overrides or []), *(["data.skip_unreadable=true"] if skip_unreadable else [])]
    changes += ["on_collapse=continue"] if keep_going else []
    hardware = Hardware(accelerator, devices, nodes, precision, strategy)
    if fast:
        changes, hardware = hurry(changes, hardware)
    try:
        folder = job.train(recipe, changes, out, resume=resume, hardware=hardware, tensorboard=tensorboard)
    except job.Interrupted as stopped:
        if leads():
            words = [recipe, *changes, "--out", str(stopped), *differing(hardware), "--resume"]
            typer.echo(f"stopped; the state is saved. Go on with: robustmetric train {shlex.join(words)}", err=True)
        raise typer.Exit(130) from None
    if leads():
        typer.echo(folder)


@app.command()
def evaluate(
    target: Target,
    suite: Annotated[str | None, typer.Argument(help="Attacks by suite name or file; default: the recipe's.")] = None,
    data: OtherData = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Where results go; default: the run folder.")] = None,
    radius: Annotated[str | None, typer.Option(help="One radius for every attack: 8/255.")] = None,
    mode: Annotated[list[str] | None, typer.Option(help="fixed, compat; default: as the suite says.")] = None,
    queries: Annotated[int | None, typer.Option(help="Use this many queries, drawn with the seed.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the attacks' targets and starts.")] = 0,
    batch: Annotated[int, typer.Option(help="Images attacked at a time.")] = 128,
    fast: Annotated[bool, typer.Option("--fast", help="bfloat16 on a GPU: for a quick look, scores differ.")] = False,
    skip_unreadable: Annotated[bool, typer.Option(help="Leave unreadable images out, and count them.")] = False,
    surrogate: Surrogate = None,
    kmeans: Annotated[str | None, typer.Option(help="Of clustering suites: torch or faiss (extra).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the records as JSON lines.")] = False,
    devices: Devices = "1",
    accelerator: Accelerator = "auto",
    nodes: Nodes = 1,
) -> None:
    """Attack a model and score it; finished attacks are not run again.

    Example: [bold]robustmetric evaluate runs/digits-est-seed0 demo[/bold]
    """
    from dataclasses import asdict

    from robustmetric.jobs.target import evaluate as job
    from robustmetric.jobs.workers import Hardware, leads

    with _going_on():
        found = job(
            target,
            suite,
            data=data,
            out=out,
            radius=_number(radius),
            modes=mode,
            queries=queries,
            seed=seed,
            batch_size=batch,
            fast=fast,
            skip_unreadable=skip_unreadable,
            surrogate=surrogate,
            kmeans=kmeans,
            hardware=Hardware(accelerator, devices, nodes),
        )
    if as_json and leads():
        for record in found:
            typer.echo(json.dumps(asdict(record)))


@app.command()
def certify(
    target: Annotated[
        str, typer.Argument(metavar="RECIPE|RUN|MODEL", help="A recipe with a learner, a trained run, or an encoder.")
    ],
    overrides: Annotated[list[str] | None, typer.Argument(help="Changes of a recipe: learner.max_iter=100")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Where results go; default: runs/<recipe>.")] = None,
    points: Annotated[int | None, typer.Option(help="Test points (1000) or queries (500) to certify.")] = None,
    radius: Annotated[
        list[float] | None, typer.Option(help="State the result at this radius; may be repeated.")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="Of k-NN: exact or bound, instead of both; of an encoder: smoothing.")
    ] = None,
    attack: Annotated[
        str | None, typer.Option(help="Of k-NN: also attack it, by greedy, substitute or boundary; dashed curves.")
    ] = None,
    sigma: Annotated[float | None, typer.Option(help="Of an encoder: deviation of the noise (0.1 of a pixel).")] = None,
    samples: Annotated[int | None, typer.Option(help="Of an encoder: noisy copies of each query (10,000).")] = None,
    search: Annotated[
        str | None, typer.Option(help="Of an encoder: by the mean embedding (mean), or by vote of the copies (vote).")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Of an encoder: other data, as in evaluate.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of an encoder: seed of queries and noise (0).")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print the records as JSON lines.")] = False,
) -> None:
    """Prove radii within which no perturbation changes the answer; stopped, the same command goes on.

    Of k-NN under a learned metric, of small networks, and, by smoothing, of any encoder's retrieval.

    Examples: [bold]robustmetric certify tabular/digits-arml[/bold]
    [bold]robustmetric certify runs/digits-est-seed0 --method smoothing --sigma 0.1 --points 100[/bold]
    """
    from dataclasses import asdict

    from robustmetric.jobs.certify import certify as of_table
    from robustmetric.jobs.certify import recipe_of
    from robustmetric.jobs.certify_retrieval import certify_retrieval as of_encoder

    learner = recipe_of(target, out)
    of_encoders = {"sigma": sigma, "samples": samples, "search": search, "data": data, "seed": seed}
    given = {key: value for key, value in of_encoders.items() if value is not None}
    if learner is None and overrides:
        raise InputError(f"{overrides[0]!r} changes a recipe with a learner, which {target!r} is not")
    if learner is None and method not in (None, "smoothing"):
        raise InputError(
            f"--method {method} is for a recipe with a learner, which {target!r} is not{nearest(method, ['smoothing'])}"
        )
    if learner is None and attack is not None:
        raise InputError(f"--attack {attack} is on k-NN, which {target!r} is not; attack it by `robustmetric evaluate`")
    if learner is not None and given:
        raise InputError(
            f"--{next(iter(given))} is for encoders; {target!r} has a learner: change its recipe, key=value"
        )
    with _going_on():
        if learner is not None:
            changes = [*(overrides or []), *([f"radii={radius}"] if radius else [])]
            found = of_table(*learner, changes, device=device, points=points, method=method, attack=attack)
        else:
            found = of_encoder(target, out=out, queries=points, radii=radius, device=device, **given)  # type: ignore[arg-type]  # by name
    if as_json:
        for record in found:
            typer.echo(json.dumps(asdict(record)))


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders to compare.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the page.")] = Path("report"),
) -> None:
    """Make one self-contained HTML page of one or more runs.

    Example: [bold]robustmetric report runs/digits-plain-seed0 runs/digits-est-seed0 -o report[/bold]
    """
    from robustmetric.report.page import write_page

    typer.echo(write_page(runs, out))


@app.command()
def ledger(
    runs: Annotated[list[Path] | None, typer.Argument(help="Evaluated run folders.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for the rows: results/cub.")] = None,
    table: Annotated[
        Path | None, typer.Option(help="Print results/<data> beside what is published, as Markdown.")
    ] = None,
) -> None:
    """Turn evaluated runs into rows of the ledger, one JSON file each, or print a table of them.

    Example: [bold]robustmetric ledger runs/cub-mobilenet_v2-act-seed0 -o results/cub[/bold]
    """
    if table is not None and not runs and out is None:
        from robustmetric.report.certified import certified_table
        from robustmetric.report.comparison import comparison

        typer.echo(certified_table(table) if table.resolve().name == "tabular" else comparison(table))
        return
    if not runs or out is None or table is not None:
        raise InputError("expected run folders and -o results/<data>, or --table results/<data> alone")
    from robustmetric.jobs.ledger import write_rows

    for path in write_rows(runs, out):
        typer.echo(path)


@app.command()
def compare(
    first: Annotated[Path, typer.Argument(help="An evaluated run folder.")],
    second: Annotated[Path, typer.Argument(help="Another, evaluated on the same queries.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Say in which scores two runs differ, with 95 % intervals of the difference over queries.

    Example: [bold]robustmetric compare runs/digits-plain-seed0 runs/digits-est-seed0[/bold]
    """
    from dataclasses import asdict

    from robustmetric.jobs.compare import compare as job

    found = job(first, second)
    if as_json:
        for one in found:
            typer.echo(json.dumps({**asdict(one), "is_clear": one.is_clear}))
        return
    width = max(len(one.title) for one in found) + 2
    typer.echo(f"{'':<{width}}{'first':>9}{'second':>9}{'difference':>12}   95 % of {found[0].count} queries, paired")
    for one in found:
        low, high = one.interval
        shown = f"{one.title:<{width}}{one.first:>9.4g}{one.second:>9.4g}{one.second - one.first:>+12.4g}"
        typer.echo(f"{shown}   {low:+.4g} to {high:+.4g}{'' if one.is_clear else '   not clear'}")


@app.command()
def demo(out: Annotated[Path, typer.Option("--out", "-o", help="Folder for runs and page.")] = Path("demo")) -> None:
    """Train a plain and a hardened model on real digits, attack both, and make a page: a few minutes on a laptop.

    Example: [bold]robustmetric demo -o demo[/bold]
    """
    from robustmetric.jobs.demo import demo as job

    with _going_on():
        job(out)


@app.command(name="list")
def list_(
    kind: Annotated[
        str | None, typer.Argument(help="data, models, losses, attacks, defences, suites, recipes, ...")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List what recipes can name.

    Example: [bold]robustmetric list defences[/bold]
    """
    from robustmetric import recipe
    from robustmetric.catalogue import CATALOGUE

    shelves: dict[str, list[str]] = {name: sorted(members) for name, members in CATALOGUE.items()}
    shelves |= {"suites": recipe.listing("suites"), "recipes": recipe.listing()}
    if kind is not None and kind not in shelves:
        raise InputError(f"{kind!r} is not a kind of thing we list{nearest(kind, shelves)}")
    chosen = shelves if kind is None else {kind: shelves[kind]}
    if as_json:
        typer.echo(json.dumps(chosen, indent=2))
        return
    for name, members in chosen.items():
        typer.echo(f"{name}: {', '.join(members)}" if kind is None else "\n".join(members))


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for weights and recipe.")] = None,
    onnx: Annotated[Path | None, typer.Option(help="An ONNX file to write.")] = None,
) -> None:
    """Write a run's weights and recipe, and an ONNX graph (pixels in, embeddings out).

    Example: [bold]robustmetric export runs/digits-est-seed0 --onnx encoder.onnx[/bold]
    """
    from robustmetric.jobs.export import export as job

    if out is None and onnx is None:
        raise InputError("nothing to export was named; give --out FOLDER for weights and recipe, --onnx FILE, or both")
    for path in job(run, out, onnx):
        typer.echo(path)


def _number(text: str | None) -> float | None:
    """A radius as typed: 8/255, 0.03."""
    from robustmetric.recipe import parse

    if text is None:
        return None
    value = parse(text)
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
        raise InputError(f"radius {text!r} is not a distance; expected a number >= 0, such as 8/255")
    return float(value)


@contextmanager
def _going_on() -> Iterator[None]:
    """Ctrl-C in a job that skips what it has finished: say that nothing is lost."""
    from robustmetric.jobs.train import Interrupted

    try:
        yield
    except (KeyboardInterrupt, Interrupted):
        typer.echo("interrupted; what was finished is kept, the same command goes on from there", err=True)
        raise typer.Exit(130) from None


def main() -> None:
    """Run a command; what the user got wrong, or a disk refused, is one line on standard error."""
    try:
        # A console script has its own folder on the path, not the one where my_lab/encoders.py lies.
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        app()
    except (InputError, OSError) as error:
        if "--debug" in sys.argv:
            raise
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
