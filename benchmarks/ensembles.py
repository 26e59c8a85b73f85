"""What an ensemble costs under each way to run its members, against the loop over them, in one run.

    python benchmarks/ensembles.py [--device cuda] [--members 5] [--batch 56] [--size 224] [--repeats 5]

Two passes: `attack`, forward and gradient of the input alone in eval mode, and `train`, forward and full backward in
train mode. Batch norm in train mode cannot be stacked, and streams are for a GPU; such cells are empty. C2F2 and
Mahalanobis work on 28 px and twice the batch whatever is asked for. `best` is the way with the least sum of ratios
over all numbers of members: what `AUTO` of models/ensemble.py should say for that network and device. TF32 is off
throughout.
"""

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor, nn

from harness import RESULTS, Loop, measure, ratio, save
from robustmetric.jobs.workers import describe, full_precision
from robustmetric.models.backbone import encoder
from robustmetric.models.convnet import ConvNet
from robustmetric.models.encoder import Encoder
from robustmetric.models.ensemble import Ensemble, Run
from robustmetric.models.mahalanobis import Mahalanobis
from robustmetric.models.stacked import obstacle
from robustmetric.perturb.pgd import frozen

WAYS: tuple[Run, ...] = tuple(way for way in get_args(Run) if way != "auto")
SIZES = {"cuda": (56, 224)}
"""Images and pixels where none are asked for; elsewhere SMALL."""
SMALL = (4, 64)
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mahalanobis": lambda: Mahalanobis(28 * 28),
    "convnet": lambda: Encoder(ConvNet()),
    "mobilenet_v2": lambda: encoder("mobilenet_v2"),
    "resnet18": lambda: encoder("resnet18"),
}
OF_28_PIXELS = ("mahalanobis", "convnet")
PASSES = ("attack", "train")

Cell = dict[str, float]
"""Per way, milliseconds or a ratio to the loop's."""


def attack_loop(ensemble: Ensemble, clean: Tensor) -> Loop:
    def loop() -> Tensor:
        x = clean.detach().requires_grad_()
        with frozen(ensemble) as embed:
            (gradient,) = torch.autograd.grad(embed(x)[:, 0].sum(), x)
        return gradient

    return loop


def train_loop(ensemble: Ensemble, clean: Tensor) -> Loop:
    def loop() -> None:
        ensemble.zero_grad()
        ensemble(clean)[:, 0].sum().backward()

    return loop


def compare(members: list[nn.Module], name: str, clean: Tensor, repeats: int) -> tuple[Cell, Cell]:
    """Milliseconds of each way that these members can be run in, and the ratios to the loop."""
    ensembles = {way: Ensemble(members, run=way).train(name == "train") for way in WAYS}
    if obstacle(members):
        del ensembles["stacked"]
    if not clean.is_cuda:
        del ensembles["streams"]  # which is the loop there
    make = {"attack": attack_loop, "train": train_loop}[name]
    times = measure({way: make(ensemble, clean) for way, ensemble in ensembles.items()}, clean.device, repeats)
    milliseconds = {way: round(1000 * statistics.median(values), 3) for way, values in times.items()}
    return milliseconds, {way: round(ratio(times, way, "loop"), 4) for way in times}


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--members", type=int, default=5, help="up to this many")
    parser.add_argument("--batch", type=int, help="images (56 on a GPU, else 4)")
    parser.add_argument("--size", type=int, help="pixels of a side (224 on a GPU, else 64)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of the CPU; one is the least disturbed by others")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder to write to")
    options = parser.parse_args(argv)
    batch, size = SIZES.get(torch.device(options.device).type, SMALL)
    options.batch, options.size = options.batch or batch, options.size or size
    return options


@full_precision()
def main(argv: list[str] | None = None) -> None:
    options = parse(argv)
    device = torch.device(options.device)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    print(f"{describe(device)}; milliseconds, and the ratio to the loop")
    print(f"{'':<22}{'members':>8}" + "".join(f"{way:>18}" for way in WAYS))
    figures: dict[str, dict[str, object]] = {}
    for network in options.networks:
        large = (options.batch, 3, options.size, options.size)
        clean = torch.rand((2 * options.batch, 1, 28, 28) if network in OF_28_PIXELS else large, device=device)
        members: list[nn.Module] = [NETWORKS[network]().to(device) for _ in range(options.members)]
        figures[network] = {name: table(members, network, name, clean, options.repeats) for name in PASSES}
    save("ensembles", options, {"networks": figures})


def table(members: list[nn.Module], network: str, name: str, clean: Tensor, repeats: int) -> dict[str, object]:
    """One network and pass: a cell per number of members, printed as it is measured."""
    times: dict[str, Cell] = {}
    ratios: dict[str, Cell] = {}
    for count in range(1, len(members) + 1):
        times[str(count)], ratios[str(count)] = compare(members[:count], name, clean, repeats)
        cells = [(times[str(count)].get(way), ratios[str(count)].get(way)) for way in WAYS]
        row = "".join(f"{'-':>18}" if ms is None else f"{ms:>11.2f}{over:>7.2f}" for ms, over in cells)
        print(f"{network:<14}{name:<8}{count:>8}{row}", flush=True)
    best = min(ratios["1"], key=lambda way: sum(cell[way] for cell in ratios.values()))
    print(f"{'':<14}best: {best}")
    return {"milliseconds": times, "ratio_to_loop": ratios, "best": best}


if __name__ == "__main__":
    main()
