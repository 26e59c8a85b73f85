"""Figure i of the ARML reply: what is proved of 1-NN under a learned metric, and of networks by CROWN and by smoothing.

    python benchmarks/certified_figure.py runs/mnist-arml-seed0 runs/mnist-crown-seed0 -o docs/papers/mnist

The runs are folders of `robustmetric certify tabular/<name>`; OUT.svg has one curve per run: the first certificate of
each (of a metric the exact one). Networks prove other things than k-NN: see docs/papers/certified_retrieval.md.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from robustmetric import records
from robustmetric.report.certified import curves


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of certified runs")
    parser.add_argument("-o", "--out", type=Path, required=True, help="the file, without .svg")
    parser.add_argument("--radius", type=float, default=3.0, help="where the axis ends")
    options = parser.parse_args(words)
    found = {run.name.partition("-seed")[0]: records.read(run / "results.jsonl") for run in options.runs}
    figure = curves({name: [r for r in own if r.kind == "certified"][:1] for name, own in found.items()})
    if figure is None:
        parser.error("nothing was certified in these runs; run `robustmetric certify` first")
    figure.axes[0].set_xlim(0, options.radius)
    figure.savefig(options.out.with_suffix(".svg"), metadata={"Date": None})
    print(options.out.with_suffix(".svg"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
