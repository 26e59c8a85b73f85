"""Commands about data: check."""

import json
from typing import Annotated

import typer

from robustmetric.cli.app import app, starting
from robustmetric.cli.options import Skip

data = typer.Typer(help="Look at data before anything is trained or attacked.", no_args_is_help=True)
app.add_typer(data, name="data")


@data.command()
def check(
    path: Annotated[
        str,
        typer.Argument(help="Class folders, a zip, a CSV manifest, a table (.csv, .npz), or a data set such as cub."),
    ],
    settings: Annotated[
        list[str] | None, typer.Argument(help="Of a table, as in certify: data.label=COLUMN data.scale=true")
    ] = None,
    skip_unreadable: Skip = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Say whether data will do: classes, unreadable files, copies, wrong labels; exit code 1 if one must be mended.

    Every image or row is looked at; nothing is written.

    Examples: [bold]robustmetric data check photos[/bold]
    [bold]robustmetric data check mine.csv data.label=COLUMN[/bold]
    """
    with starting():
        from robustmetric.jobs.data_check import check as job

    found = job(path, settings or [], skip_unreadable=skip_unreadable)
    typer.echo(json.dumps(found.as_json(), indent=2) if as_json else "\n".join(found.lines()))
    if not found.is_usable:
        raise typer.Exit(1)
