"""Commands about what was computed: report, ledger, leaderboard, compare, verify, list, export."""

import json
from pathlib import Path
from typing import Annotated

import typer

from robustmetric.cli.app import app
from robustmetric.errors import InputError, nearest


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders to compare.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the page, or the pictures.")] = Path("report"),
    pictures: Annotated[
        bool,
        typer.Option(
            "--pictures",
            help="In place of the page: the embeddings, clean and attacked, as embeddings.svg and .png; of runs "
            "evaluated by clustering. t-SNE with the extra tsne, else PCA.",
        ),
    ] = False,
) -> None:
    """Make one self-contained HTML page of one or more runs.

    Example: [bold]robustmetric report runs/digits-plain-seed0 runs/digits-est-seed0 -o report[/bold]
    [bold]robustmetric report runs/digits-eat-seed0 --pictures -o figures[/bold]
    """
    if pictures:
        from robustmetric.report.figures import save_figures
        from robustmetric.report.projections import panorama
        from robustmetric.report.runs import read_runs

        for path in save_figures({"embeddings": panorama(read_runs(runs))}, out):
            typer.echo(path)
        return
    from robustmetric.report.page import write_page

    typer.echo(write_page(runs, out))


@app.command()
def ledger(
    runs: Annotated[list[Path] | None, typer.Argument(help="Evaluated run folders.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for the rows: results/cub.")] = None,
    table: Annotated[
        Path | None,
        typer.Option(
            help="Print results/<data> beside what is published, as Markdown; a name alone, sop, what is published."
        ),
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(
            help="Draw results/<data> into --out: robustness by steps of training and by smoothing; by epoch hardness, "
            "and embeddings that fall together; clustering by steps and radius of the attack."
        ),
    ] = None,
) -> None:
    """Turn evaluated runs into rows of the ledger, one JSON file each, or print a table or draw a figure of them.

    Example: [bold]robustmetric ledger runs/cub-mobilenet_v2-act-seed0 -o results/cub[/bold]
    [bold]robustmetric ledger --figure results/cub -o figures[/bold]
    """
    if figure is not None and not runs and table is None and out is not None:
        from robustmetric.report.figures import draw_figures

        for path in draw_figures(figure, out):
            typer.echo(path)
        return
    if table is not None and figure is None and not runs and out is None:
        from robustmetric.report.certified import certified_table
        from robustmetric.report.comparison import comparison

        typer.echo(certified_table(table) if table.resolve().name == "tabular" else comparison(table))
        return
    if not runs or out is None or table is not None or figure is not None:
        raise InputError(
            "expected run folders and -o results/<data>, or --table results/<data> alone, "
            "or --figure results/<data> -o FOLDER"
        )
    from robustmetric.jobs.ledger import write_rows

    for path in write_rows(runs, out):
        typer.echo(path)


@app.command()
def leaderboard(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FOLDER ...]", help="Rows of your own, as `robustmetric ledger` writes them."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the page.")] = Path("leaderboard"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the entries as JSON lines, and make no page.")] = False,
) -> None:
    """Make one page of every row of the ledger, and yours beside them: who withstands the strongest attack.

    Example: [bold]robustmetric leaderboard mine/cub -o leaderboard[/bold]
    """
    from robustmetric.report.leaderboard import as_lines, write_leaderboard

    if as_json:
        typer.echo("\n".join(as_lines(folders or [])))
        return
    typer.echo(write_leaderboard(folders or [], out))


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

    from robustmetric.jobs.compare import ALIKE, masked
    from robustmetric.jobs.compare import compare as job
    from robustmetric.report.masking_flag import MARK
    from robustmetric.report.runs import read_run
    from robustmetric.report.turns import CAPTION
    from robustmetric.report.warned import warned

    found, flags = job(first, second), masked(first, second)
    runs = {run: read_run(run) for run in (first, second)}
    told = {run: [words for _, words in warned([read])] for run, read in runs.items()}
    fallen = {run: read.fallen for run, read in runs.items() if read.collapse}
    if as_json:
        beside = {
            "masked": {str(run): words for run, words in flags.items()},
            "collapsed": {str(run): words for run, words in fallen.items()},
            "warnings": {str(run): words for run, words in told.items() if words},
        }
        for one in found:
            typer.echo(json.dumps({**asdict(one), "is_clear": one.is_clear, "verdict": one.verdict, **beside}))
        return
    typer.echo(f"first: {first}   second: {second}   better, worse: the second")
    width = max(len(one.title) for one in found) + 2
    counts = " to ".join(map(str, sorted({min(one.count for one in found), max(one.count for one in found)})))
    typer.echo(f"{'':<{width}}{'first':>9}{'second':>9}{'difference':>12}   95 % of {counts} queries, paired")
    for one in found:
        low, high = one.interval
        shown = f"{one.title:<{width}}{one.first:>9.4g}{one.second:>9.4g}{one.second - one.first:>+12.4g}"
        typer.echo(f"{shown}   {low:+.4g} to {high:+.4g}   {one.verdict}".rstrip())
    if any(one.is_alike for one in found):
        typer.echo(ALIKE)
    if any(one.is_after for one in found):
        typer.echo(CAPTION)
    for run, words in flags.items():
        typer.echo(f"{MARK} {run} is {words}")
    for run, words in fallen.items():
        typer.echo(f"{MARK} {run} {words}")
    for run, warnings in told.items():
        for words in warnings:
            typer.echo(f"warning, {run}: {words}")


@app.command()
def verify(
    rows: Annotated[list[Path], typer.Argument(metavar="RESULTS/.../ID.json ...", help="Rows of the ledger.")],
    model: Annotated[
        Path | None, typer.Option(metavar="FILE|RUN", help="The row's weights; default: zoo/<id>.safetensors.")
    ] = None,
    queries: Annotated[
        int | None, typer.Option(help="A sample of the row's queries (or test points); default: all of them.")
    ] = None,
    attack: Annotated[
        list[str] | None,
        typer.Option(
            help="An attack of the row's suites, a group of them (AutoRank, AutoAttack, worst case), a suite on "
            "clustering, or masking; may be repeated. Default: ES, GTM, CA+, FGSM, PGD-20, APGD-CE, AutoRank, "
            "clustering, masking."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
) -> None:
    """Measure rows of the ledger again, from their weights, and say which numbers agree; exit code 1 if one does not.

    A number agrees if it lies within 0.5 points of the one found, or 2 (k-means; attacks on a copy in half precision).

    Of a sample: within its 99.9 % interval over queries, binomial or by bootstrap. A verdict agrees if the word does.

    Clustering and masking need all queries; rows of certify are fitted, certified and attacked anew.

    What was not measured is listed.

    Example: [bold]robustmetric verify results/cub/cub-mobilenet_v2-act-eta8-short-seed0.json --queries 32[/bold]
    """
    from dataclasses import asdict

    from robustmetric.jobs.verify import check as look_up
    from robustmetric.jobs.verify import verify as job

    if model is not None and len(rows) > 1:
        raise InputError(f"--model {model} has the weights of one row, {len(rows)} are given; verify them one by one")
    look_up(rows, attack or [])
    is_true = True
    for path in rows:
        found = job(path, model=model, queries=queries, attacks=attack, device=device)
        is_true &= not found.differing
        if not as_json:
            typer.echo("\n".join(found.lines()))
            continue
        for check in found.checks:
            typer.echo(json.dumps({"id": found.id, **asdict(check), "agrees": check.agrees}))
    if not is_true:
        raise typer.Exit(1)


@app.command()
def unpack(
    row: Annotated[Path, typer.Argument(metavar="RESULTS/.../ID.json", help="A row of the ledger.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The run folder; default runs/<id>.")] = None,
    model: Annotated[
        Path | None, typer.Option(metavar="FILE|RUN", help="The row's weights; default: zoo/<id>.safetensors.")
    ] = None,
) -> None:
    """Make a run folder of a row and its weights: to evaluate by other suites, compare, export or attack from.

    Example: [bold]robustmetric unpack results/cub/cub-mobilenet_v2-act-eta8-short-seed0.json -o runs/act[/bold]
    """
    from robustmetric.jobs.unpack import unpack as job

    typer.echo(job(row, out, model))


@app.command(name="list")
def list_(
    kind: Annotated[
        str | None, typer.Argument(help="data, models, losses, attacks, defences, suites, recipes, ...")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List what recipes can name: the kinds there are or, of one kind, every name with a sentence.

    Example: [bold]robustmetric list defences[/bold]
    """
    from robustmetric.cli.shelves import described, shelves, summary

    names = shelves()
    if kind is not None and kind not in names:
        raise InputError(f"{kind!r} is not a kind of thing we list{nearest(kind, names)}")
    chosen = names if kind is None else {kind: names[kind]}
    if as_json:
        typer.echo(json.dumps(chosen, indent=2))
        return
    typer.echo("\n".join(summary(names) if kind is None else described(kind, names[kind])))


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder for weights and recipe.")] = None,
    onnx: Annotated[Path | None, typer.Option(help="An ONNX file to write.")] = None,
    zoo: Annotated[
        Path | None, typer.Option(help="Folder for a copy in half precision, under the id of the run's row.")
    ] = None,
) -> None:
    """Write a run's weights and recipe, an ONNX graph (pixels in, embeddings out), or a copy to verify its row by.

    Example: [bold]robustmetric export runs/digits-est-seed0 --onnx encoder.onnx[/bold]
    """
    from robustmetric.jobs.export import export as job
    from robustmetric.jobs.zoo import keep

    if out is None and onnx is None and zoo is None:
        raise InputError(
            "nothing to export was named; expected --out FOLDER (weights and recipe), --onnx FILE or --zoo FOLDER"
        )
    for path in [*job(run, out, onnx), *([] if zoo is None else [keep(run, zoo)])]:
        typer.echo(path)
