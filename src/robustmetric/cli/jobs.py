"""Commands that compute: train, sweep, evaluate, certify, demo."""

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from robustmetric import recipe as recipes
from robustmetric.cli.app import app, going_on, starting
from robustmetric.cli.options import Accelerator, Devices, Hurried, Nodes, Precision, Skip, Strategy
from robustmetric.errors import InputError, nearest
from robustmetric.records import Record

Target = Annotated[
    str, typer.Argument(metavar="RUN|RECIPE|MODEL", help="A run folder, a recipe, or my_lab.file.model.")
]
Provable = Annotated[
    str, typer.Argument(metavar="RECIPE|RUN|MODEL", help="A recipe with a learner, a trained run, or an encoder.")
]
OtherData = Annotated[str | None, typer.Option(help="Other data: class folders, a zip, a CSV manifest, or a name.")]
View = Annotated[
    str | None,
    typer.Option(
        help="Before a model of your own: centre_crop (of images squashed to 256 x 256; the default for folders), "
        "aspect_centre_crop (shorter side to 256, nothing squashed) or identity."
    ),
]
Surrogate = Annotated[
    str | None,
    typer.Option(metavar="RUN", help="The attacker's own model, a run or FILE.FUNCTION, for attacks that transfer."),
]

Radius = Annotated[str | None, typer.Option(help="One radius for every attack: 8/255.")]
Queries = Annotated[int | None, typer.Option(help="Use this many queries, drawn with the seed.")]
Radii = Annotated[list[float] | None, typer.Option(help="State the result at this radius; may be repeated.")]
Together = Annotated[int, typer.Option(help="Images attacked at a time.")]
Search = Annotated[
    str, typer.Option(help="fp32; on a GPU also tf32 or fp16, or bf16 of clustering: faster, and judged in fp32.")
]


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A recipe by short name (digits/est) or file.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes: defence.attack.steps=4 model.members.0.dim=64 seed=1")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The run folder; default runs/<recipe>-seed<n>.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the run folder stopped.")] = False,
    skip_unreadable: Skip = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also log to TensorBoard (extra).")] = False,
    fast: Hurried = False,
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
    recipes.locate(recipe)  # before anything slow is imported
    with starting():
        from robustmetric.jobs import assemble
        from robustmetric.jobs import train as job
        from robustmetric.jobs.hurry import hurry
        from robustmetric.jobs.origin import differing
        from robustmetric.jobs.own import skipping
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
def sweep(
    recipe: Annotated[str, typer.Argument(help="A recipe by short name (digits/est) or file.")],
    settings: Annotated[
        list[str], typer.Argument(metavar="KEY=A,B,C ...", help="Settings with their values: seed=0,1 epochs=5")
    ],
    suite: Annotated[
        str | None, typer.Option("--evaluate", metavar="SUITE", help="Also attack each run by this suite.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the runs; default runs/sweep-<recipe>.")
    ] = None,
    fast: Hurried = False,
    radius: Radius = None,
    queries: Queries = None,
    batch: Together = 128,
    search: Search = "fp32",
    accelerator: Accelerator = "auto",
    precision: Precision = "32-true",
) -> None:
    """Train every combination of values, one after another; finished ones are skipped, the scores go to a table.

    Example: [bold]robustmetric sweep digits/est seed=0,1,2 defence.attack.steps=2,8 --evaluate demo[/bold]
    """
    recipes.locate(recipe)
    if suite:
        recipes.locate(suite, "suites")
    with starting():
        from robustmetric.jobs.hurry import hurry
        from robustmetric.jobs.sweep import sweep as job
        from robustmetric.jobs.workers import Hardware

    changes, hardware = list(settings), Hardware(accelerator, precision=precision)
    if fast:
        changes, hardware = hurry(changes, hardware)
    with going_on():
        made = job(
            recipe, changes, out, suite=suite,
            radius=_number(radius), queries=queries, batch_size=batch, search=search, hardware=hardware,
        )  # fmt: skip
        typer.echo(made)


@app.command()
def evaluate(
    target: Target,
    suite: Annotated[str | None, typer.Argument(help="Attacks by suite name or file; default: the recipe's.")] = None,
    data: OtherData = None,
    view: View = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Where results go; default: the run folder.")] = None,
    radius: Radius = None,
    mode: Annotated[list[str] | None, typer.Option(help="fixed, compat; default: as the suite says.")] = None,
    queries: Queries = None,
    seed: Annotated[int, typer.Option(help="Seed of the attacks' targets and starts.")] = 0,
    batch: Together = 128,
    fast: Annotated[bool, typer.Option("--fast", help="bfloat16 on a GPU: for a quick look, scores differ.")] = False,
    search: Search = "fp32",
    skip_unreadable: Skip = False,
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
    if suite:
        recipes.locate(suite, "suites")
    with starting():
        from robustmetric.jobs.target import evaluate as job
        from robustmetric.jobs.workers import Hardware, leads

    with going_on():
        found = job(
            target, suite, data=data, out=out,
            radius=_number(radius), modes=mode, queries=queries, seed=seed, batch_size=batch, fast=fast, search=search,
            skip_unreadable=skip_unreadable, view=view, surrogate=surrogate, kmeans=kmeans,
            hardware=Hardware(accelerator, devices, nodes),
        )  # fmt: skip
    if as_json and leads():
        _echo(found)


@app.command()
def certify(
    target: Provable,
    overrides: Annotated[list[str] | None, typer.Argument(help="Changes of a recipe: learner.max_iter=100")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Where results go; default: runs/<recipe>.")] = None,
    points: Annotated[int | None, typer.Option(help="Test points (1000) or queries (500) to certify.")] = None,
    radius: Radii = None,
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
    data: Annotated[
        str | None, typer.Option(help="Other data: of a learner a table, .csv or .npz; of an encoder as in evaluate.")
    ] = None,
    view: View = None,
    seed: Annotated[int | None, typer.Option(help="Of an encoder: seed of queries and noise (0).")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print the records as JSON lines.")] = False,
) -> None:
    """Prove radii within which no perturbation changes the answer; stopped, the same command goes on.

    Of k-NN under a learned metric, of small networks, and, by smoothing, of any encoder's retrieval.

    Examples: [bold]robustmetric certify tabular/digits-arml --data mine.csv data.label=COLUMN data.scale=true[/bold]
    [bold]robustmetric certify runs/digits-est-seed0 --method smoothing --sigma 0.1 --points 100[/bold]
    """
    with starting():
        from robustmetric.jobs.certify import certify as of_table
        from robustmetric.jobs.certify import recipe_of
        from robustmetric.jobs.certify_retrieval import certify_retrieval as of_encoder

    learner = recipe_of(target, out)
    of_encoders = {"sigma": sigma, "samples": samples, "search": search, "view": view, "seed": seed}
    given = {key: value for key, value in of_encoders.items() if value is not None}
    with going_on():
        if learner is not None:
            _refuse_of_encoders(target, given)
            changes = [*(overrides or []), *([f"radii={radius}"] if radius else [])]
            found = of_table(*learner, changes, device=device, points=points, method=method, attack=attack, data=data)
        else:
            _refuse_of_learners(target, overrides, method, attack)
            found = of_encoder(target, data=data, out=out, queries=points, radii=radius, device=device, **given)  # type: ignore[arg-type]  # by name
    if as_json:
        _echo(found)


def _refuse_of_encoders(target: str, given: Mapping[str, object]) -> None:
    """What a recipe with a learner has no use for."""
    if given:
        raise InputError(
            f"--{next(iter(given))} is for encoders; {target!r} has a learner: change its recipe, key=value"
        )


def _refuse_of_learners(target: str, overrides: list[str] | None, method: str | None, attack: str | None) -> None:
    """What an encoder's certificate has no use for."""
    from robustmetric.jobs.target import refuse_unknown_target

    refuse_unknown_target(target)
    if overrides:
        raise InputError(f"{overrides[0]!r} changes a recipe with a learner, which {target!r} is not")
    if method not in (None, "smoothing"):
        raise InputError(
            f"--method {method} is for a recipe with a learner, which {target!r} is not{nearest(method, ['smoothing'])}"
        )
    if attack is not None:
        raise InputError(f"--attack {attack} is on k-NN, which {target!r} is not; attack it by `robustmetric evaluate`")


@app.command()
def demo(out: Annotated[Path, typer.Option("--out", "-o", help="Folder for runs and page.")] = Path("demo")) -> None:
    """Train a plain and a hardened model on real digits, attack both, and make a page: a few minutes on a laptop.

    Example: [bold]robustmetric demo -o demo[/bold]
    """
    with starting():
        from robustmetric.jobs.demo import demo as job

    with going_on():
        job(out)


def _echo(found: Iterable[Record]) -> None:
    """Records as JSON lines."""
    for record in found:
        typer.echo(json.dumps(asdict(record)))


def _number(text: str | None) -> float | None:
    """A radius as typed: 8/255, 0.03."""
    from robustmetric.recipe import parse

    if text is None:
        return None
    value = parse(text)
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
        raise InputError(f"radius {text!r} is not a distance; expected a number >= 0, such as 8/255")
    return float(value)
