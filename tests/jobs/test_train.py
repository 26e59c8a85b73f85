"""Training: the same weights whatever interrupts it, and nothing lost when something goes wrong."""

import json
import random
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from safetensors.torch import load_file

from commands import Command, finish, start
from robustmetric import recipe, records
from robustmetric.errors import InputError
from robustmetric.jobs.assemble import load_plan, resolve
from robustmetric.jobs.hurry import compiled_updates, hurry
from robustmetric.jobs.train import _set_up, train
from robustmetric.jobs.workers import Hardware

QUICK = "defence.attack.steps=2"


def own_recipe(path: Path, defence: str, extra: str = "") -> Path:
    """A recipe over digits/plain with a defence of one's own."""
    base = recipe.shelf() / "digits" / "plain.yaml"
    path.write_text(f"base: {base}\ndefence: {defence}\nepochs: 2\ncheckpoint_seconds: 0\n{extra}")
    return path


def signalled(at: int, pause: float = 0.0) -> str:
    """Adversarial training that sends itself Ctrl-C at a step."""
    attack = "{name: pgd, ball: {name: ball, radius: 0.25}, steps: 2, step_size: 0.1}"
    inner = f"{{name: madry, loss: {{name: triplet, miner: {{name: semihard}}}}, attack: {attack}}}"
    return f"{{name: own_parts.Signalled, at: {at}, pause: {pause}, inner: {inner}}}"


def signalled_hm(at: int) -> str:
    """Hardness manipulation in two groups, whose goals follow the loss of the step before; Ctrl-C at a step."""
    attack = "{name: pgd, ball: {name: ball, radius: 0.25}, steps: 2, step_size: 0.1, random_start: false}"
    parts = f"source: {{name: softhard}}, destination: {{name: gradual}}, attack: {attack}, structure: {{name: ics}}"
    return f"{{name: own_parts.Signalled, at: {at}, inner: {{name: hm, {parts}, groups: 2}}}}"


def same_weights(one: Path, other: Path) -> bool:
    """Bit for bit."""
    return (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


def wait_for(path: Path, process: subprocess.Popen[str], seconds: float = 120) -> None:
    """Until the process has written the file; one that ends or takes too long is shown, not waited for."""
    ends = time.monotonic() + seconds
    while not path.exists():
        if process.poll() is not None or time.monotonic() > ends:
            process.kill()
            pytest.fail(f"{path} did not come: {finish(process)}")
        time.sleep(0.01)


def test_a_run_killed_at_a_random_moment_resumes_to_the_same_weights(tmp_path: Path, command: Command) -> None:
    words = ["train", "digits/madry", "epochs=4", "checkpoint_seconds=0", QUICK]
    assert command(*words, "--out", "whole").code == 0
    process = start(tmp_path, *words, "--out", "killed")
    wait_for(tmp_path / "killed" / "state.pt", process)
    time.sleep(random.Random(20).uniform(0.0, 0.6))
    process.send_signal(signal.SIGKILL)
    assert finish(process).code == -signal.SIGKILL
    assert not (tmp_path / "killed" / "model.safetensors").exists()
    resumed = command(*words, "--out", "killed", "--resume")
    assert resumed.code == 0, resumed.err
    assert same_weights(tmp_path / "whole", tmp_path / "killed")
    epochs = [r.settings["epoch"] for r in records.latest(records.read(tmp_path / "killed" / "results.jsonl"))]
    assert epochs == [1, 2, 3, 4, 4]


def test_ctrl_c_saves_the_state_and_the_printed_command_goes_on(tmp_path: Path, command: Command) -> None:
    recipe_file = own_recipe(tmp_path / "own.yaml", signalled(at=5))
    stopped = command("train", recipe_file, "--out", "part one", "--accelerator", "cpu")
    assert stopped.code == 130
    state = torch.load(tmp_path / "part one" / "state.pt", weights_only=True)
    assert (state["epoch"], state["step"]) == (0, 5), "stops in the middle of an epoch, after the step it was in"
    printed = stopped.err.strip().splitlines()[-1]
    assert "the state is saved" in printed
    words = shlex.split(printed.partition("Go on with: robustmetric ")[2])
    assert words[-2:] == ["cpu", "--resume"]
    assert command(*words).code == 0
    own_recipe(recipe_file, signalled(at=-1))
    assert command("train", recipe_file, "--out", "whole").code == 0
    assert same_weights(tmp_path / "part one", tmp_path / "whole")


def test_sigint_stops_a_process_of_its_own(tmp_path: Path, command: Command) -> None:
    recipe_file = own_recipe(tmp_path / "own.yaml", signalled(at=-1, pause=0.05), "epochs: 50\n")
    process = start(tmp_path, "train", recipe_file, "--out", "run")
    wait_for(tmp_path / "run" / "state.pt", process)
    process.send_signal(signal.SIGINT)
    stopped = finish(process)
    assert stopped.code == 130, stopped.err
    assert "--out run --resume" in stopped.err and "Traceback" not in stopped.err
    state = torch.load(tmp_path / "run" / "state.pt", weights_only=True)
    last = state["epoch"] + 1
    resumed = command("train", recipe_file, f"epochs={last}", "--out", "run", "--resume")
    assert resumed.code == 0, resumed.err
    assert all(bool(torch.isfinite(w).all()) for w in load_file(tmp_path / "run" / "model.safetensors").values())


def test_a_run_that_never_saved_a_state_can_be_resumed(tmp_path: Path, command: Command, trained: Path) -> None:
    assert command("train", "digits/plain", "epochs=1", "--out", "run").code == 0
    for name in ("state.pt", "model.safetensors"):
        (tmp_path / "run" / name).unlink()
    assert command("train", "digits/plain", "epochs=1", "--out", "run", "--resume").code == 0
    assert same_weights(tmp_path / "run", trained)


def test_more_epochs_go_on_where_fewer_ended(tmp_path: Path, command: Command) -> None:
    assert command("train", "digits/plain", "epochs=1", "--out", "run").code == 0
    assert command("train", "digits/plain", "epochs=2", "--out", "run", "--resume").code == 0
    assert command("train", "digits/plain", "epochs=2", "--out", "whole").code == 0
    assert same_weights(tmp_path / "run", tmp_path / "whole")


def test_the_seed_decides_the_weights(tmp_path: Path, trained: Path) -> None:
    other = train("digits/plain", ["epochs=1", "seed=1"], tmp_path / "other")
    assert not same_weights(other, trained)


def test_a_loss_of_nan_names_the_step_and_the_last_good_state(tmp_path: Path, command: Command) -> None:
    recipe_file = own_recipe(tmp_path / "own.yaml", "{name: own_parts.Broken, at: 4}")
    error = command("train", recipe_file, "--out", "run").error
    assert "NaN or infinite at epoch 1, step 4" in error
    assert "last good state (epoch 1, step 3) is in run/state.pt" in error
    state = torch.load(tmp_path / "run" / "state.pt", weights_only=True)
    assert state["step"] == 3
    assert all(bool(torch.isfinite(w).all()) for w in state["model"].values())
    again = command("train", recipe_file, "--out", "run", "--resume", "checkpoint_seconds=99").error
    assert "step 4" in again and "last good state (epoch 1, step 3) is in run/state.pt" in again


def test_a_gradient_of_nan_is_never_saved(tmp_path: Path, command: Command) -> None:
    recipe_file = own_recipe(tmp_path / "own.yaml", "{name: own_parts.Broken, at: 4, where: gradient}")
    error = command("train", recipe_file, "--out", "run").error
    assert "weights became NaN or infinite by epoch 1, step 4" in error
    assert "last good state (epoch 1, step 3)" in error
    state = torch.load(tmp_path / "run" / "state.pt", weights_only=True)
    assert all(bool(torch.isfinite(w).all()) for w in state["model"].values())


def test_nan_before_the_first_state_says_so(tmp_path: Path, command: Command) -> None:
    recipe_file = own_recipe(tmp_path / "own.yaml", "{name: own_parts.Broken, at: 1}")
    assert "no state had been saved yet" in command("train", recipe_file, "checkpoint_seconds=99").error


def test_a_full_disk_leaves_the_old_state_intact(tmp_path: Path, command: Command) -> None:
    words = ["train", "digits/plain", "--out", "run"]
    assert command(*words, "epochs=1").code == 0
    before = (tmp_path / "run" / "state.pt").read_bytes()
    (tmp_path / "run" / "state.pt.part").symlink_to("/dev/full")
    error = command(*words, "epochs=2", "checkpoint_seconds=0", "--resume").error
    assert "the disk is full; the previous one is intact" in error
    assert (tmp_path / "run" / "state.pt").read_bytes() == before
    assert not (tmp_path / "run" / "state.pt.part").is_symlink()
    assert command(*words, "epochs=2", "--resume").code == 0


def test_a_run_folder_is_not_overwritten(trained: Path, command: Command) -> None:
    before = {path.name: path.read_bytes() for path in trained.iterdir() if path.is_file()}
    assert "exists; continue it with --resume" in command("train", "digits/plain", "--out", trained).error
    assert {path.name: path.read_bytes() for path in trained.iterdir() if path.is_file()} == before


def test_a_run_is_not_resumed_under_other_settings(trained: Path, command: Command) -> None:
    words = ["train", "digits/plain", "epochs=1", "--out", trained, "--resume"]
    assert "begun with other settings for 'seed'" in command(*words, "seed=1").error
    assert "'optimiser'" in command(*words, "optimiser.rate=0.5").error


def test_a_folder_that_is_no_run_cannot_be_resumed(command: Command) -> None:
    assert "is not a run folder" in command("train", "digits/plain", "--out", "nowhere", "--resume").error


@pytest.mark.parametrize("damage", ["truncated", "code", "architecture", "other"])
def test_a_state_that_cannot_be_used_is_named(damage: str, tmp_path: Path, command: Command) -> None:
    words = ["train", "digits/plain", "epochs=1", "--out", "run"]
    assert command(*words).code == 0
    path = tmp_path / "run" / "state.pt"
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        expected = "state.pt is damaged"
    elif damage == "code":
        torch.save({"epoch": Path("x"), "run": print}, path)
        expected = "holds more than numbers, which is never loaded"
    elif damage == "architecture":
        state = torch.load(path, weights_only=True)
        torch.save({**state, "model": {"layer": torch.zeros(3)}}, path)
        expected = "is of another model or version"
    else:
        torch.save({"epoch": 3}, path)
        expected = "is of another model or version"
    damaged = path.read_bytes()
    assert expected in command(*words, "--resume").error
    assert path.read_bytes() == damaged


def test_reading_a_state_runs_no_code(tmp_path: Path, command: Command) -> None:
    words = ["train", "digits/plain", "epochs=1", "--out", "run"]
    assert command(*words).code == 0
    torch.save(Touch(), tmp_path / "run" / "state.pt")
    assert "never loaded" in command(*words, "--resume").error
    assert not Touch.touched


class Touch:
    """Unpickling this would call `touch`."""

    touched: list[int] = []  # noqa: RUF012  # shared on purpose: it is how a call would show

    def __reduce__(self) -> tuple[object, tuple[()]]:
        return touch, ()


def touch() -> None:
    Touch.touched.append(1)


def test_a_run_folder_holds_what_it_takes_to_repeat_it(trained: Path) -> None:
    assert recipe.load(trained / "recipe.yaml")["epochs"] == 1
    summary = json.loads((trained / "run.json").read_text())
    assert {"name", "data", "defence", "model", "seed", "commit", "hardware", "versions", "recipe"} <= set(summary)
    assert (summary["data"], summary["defence"], summary["model"]) == ("digits", "plain", "convnet")
    found = records.read(trained / "results.jsonl")
    assert [record.kind for record in found] == ["train", "validation"]
    # 901 training images as pairs of an anchor and its partner.
    assert found[0].count == 2 * 901
    assert found[1].scores["R@1"] > 80
    assert torch.__version__.startswith(found[1].context["versions"]["torch"])


def test_validation_every_epoch_is_recorded_once_each(tmp_path: Path) -> None:
    run = train("digits/plain", ["epochs=2", "validate_every=1"], tmp_path / "run")
    clean = [r.settings["epoch"] for r in records.read(run / "results.jsonl") if r.kind == "validation"]
    assert clean == [1, 2]


def test_tensorboard_writes_an_event_file(tmp_path: Path, command: Command) -> None:
    assert command("train", "digits/plain", "epochs=1", "--out", "run", "--tensorboard").code == 0
    events = list((tmp_path / "run").glob("events.out.tfevents*"))
    assert len(events) == 1 and events[0].stat().st_size > 100


def test_clipping_and_a_schedule_change_the_weights(tmp_path: Path, trained: Path) -> None:
    clipped = train("digits/plain", ["epochs=1", "optimiser.clip=1e-4"], tmp_path / "clipped")
    decayed = train("digits/plain", ["epochs=1", "optimiser.schedule.name=cosine"], tmp_path / "decayed")
    assert not same_weights(clipped, trained) and not same_weights(decayed, trained)


def test_an_odd_batch_for_pairs_is_refused_before_anything_is_written(tmp_path: Path, command: Command) -> None:
    assert "an odd batch of 7 images cannot hold pairs" in command("train", "digits/plain", "sampler.batch=7").error
    assert not (tmp_path / "runs").exists()


def test_errors_of_the_api_are_input_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a setting of a recipe"):
        train("digits/plain", ["epocs=1"], tmp_path / "run")


def test_a_word_where_an_object_belongs_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    done = finish(start(tmp_path, "train", "digits/plain", "defence.loss.miner=semihard"))
    assert "plain.yaml.defence.loss: miner 'semihard' is a word; write {name: semihard}" in done.error
    assert not (tmp_path / "runs").exists()


def test_an_epoch_is_resumed_by_as_many_processes_as_began_it(tmp_path: Path, command: Command) -> None:
    words = ["train", "digits/plain", "epochs=1", "--out", "run"]
    assert command(*words).code == 0
    path = tmp_path / "run" / "state.pt"
    state = torch.load(path, weights_only=True)
    assert state.pop("ranks") == 1
    torch.save({**state, "epoch": 0, "step": 3, "ranks": 2}, path)
    assert "in the middle of an epoch shared by 2 process(es), not 1" in command(*words, "--resume").error
    torch.save({**state, "epoch": 0, "step": 3}, path)
    assert command(*words, "--resume").code == 0, "a state that does not say is of one process"
    torch.save({**state, "ranks": 2}, path)
    assert command(*words, "--resume").code == 0, "between two epochs any number goes on"


def test_gradients_are_clipped_through_fabric_which_knows_their_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clipped: list[float] = []
    clip = Fabric.clip_gradients

    def watched(self: Fabric, *parts: Any, clip_val: float) -> None:
        clip(self, *parts, clip_val=clip_val)
        clipped.append(max(float(p.grad.abs().max()) for p in parts[0].parameters()))

    monkeypatch.setattr(Fabric, "clip_gradients", watched)
    train("digits/plain", ["epochs=1", "optimiser.clip=1e-4"], tmp_path / "run")
    # 901 anchors, 56 pairs a batch.
    assert len(clipped) in (16, 17) and max(clipped) <= 1e-4 + 1e-9


def test_a_run_says_what_shape_its_model_sees(tmp_path: Path, trained: Path) -> None:
    assert json.loads((trained / "run.json").read_text())["input_shape"] == [1, 8, 8]
    parts = ["view={name: centre_crop, size: 6}", "augment={name: centre_crop, size: 6}", "model.trunk.side=6"]
    cropped = train("digits/plain", ["epochs=1", *parts], tmp_path / "run")
    assert json.loads((cropped / "run.json").read_text())["input_shape"] == [1, 6, 6]


def test_in_a_hurry_a_cpu_folds_and_a_gpu_compiles_under_what_is_set_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True}, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert hurry(["seed=1"], Hardware()) == (["attack_view=fast", "seed=1"], Hardware())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert hurry([], Hardware("cpu")) == (["attack_view=fast"], Hardware("cpu"))
    changes, hardware = hurry(["update=eager"], Hardware())
    assert changes == ["attack_view=compiled", "update=compiled", "update=eager"]
    assert hardware == Hardware(precision="bf16-mixed")
    assert hurry([], Hardware(precision="16-mixed"))[1].precision == "16-mixed"


def test_in_a_hurry_a_cpu_with_tiles_of_bfloat16_trains_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True}, raising=False)
    assert hurry(["seed=1"], Hardware("cpu")) == (
        ["attack_view=fast", "seed=1"],
        Hardware("cpu", precision="bf16-mixed"),
    )
    assert hurry([], Hardware("cpu", precision="16-mixed"))[1].precision == "16-mixed"
    monkeypatch.delattr(torch.cpu, "get_capabilities")  # earlier versions of torch have none
    assert hurry([], Hardware("cpu")) == (["attack_view=fast"], Hardware("cpu"))


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_on_a_cpu_convolutions_lie_channels_last_for_bfloat16_alone(precision: str) -> None:
    plan, dataset = load_plan(*resolve("digits/classifier_madry", []))
    _set_up(Hardware("cpu", precision=precision).fabric(), plan, dataset)
    weights = [weight for weight in plan.model.parameters() if weight.dim() == 4 and weight.shape[1] > 1]
    channels_last = {weight.is_contiguous(memory_format=torch.channels_last) for weight in weights}
    assert channels_last == {precision == "bf16-mixed"}


def test_fast_training_is_a_setting_of_the_run(tmp_path: Path, command: Command) -> None:
    assert (
        command("train", "digits/madry", "epochs=1", QUICK, "--fast", "--accelerator", "cpu", "--out", "run").code == 0
    )
    assert recipe.load(tmp_path / "run" / "recipe.yaml")["attack_view"] == "fast"
    wrong = command("train", "digits/madry", "update=compield", "--out", "other")
    assert wrong.code == 2 and "update 'compield' is not known; did you mean 'compiled'" in wrong.err


def test_a_model_is_compiled_inside_and_itself_again_outside() -> None:
    model = torch.nn.Linear(2, 2)
    with pytest.raises(ZeroDivisionError), compiled_updates([model], True):
        assert model._compiled_call_impl is not None
        raise ZeroDivisionError
    assert model._compiled_call_impl is None
    with compiled_updates([model], False):
        assert model._compiled_call_impl is None


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_members_that_an_ensembles_defence_calls_are_compiled(tmp_path: Path) -> None:
    member = "{name: encoder, trunk: {name: convnet, side: 8, kernel: 3, widths: [4, 8], hidden: 16, dim: 8}}"
    loss = "{name: proxy_anchor, classes: $classes, dim: 8}"
    attack = "{name: pgd, ball: {name: ball, radius: 0.1}, steps: 1, step_size: 0.1}"
    changes = [
        f"model={{name: ensemble, members: [{member}, {member}]}}",
        f"defence={{name: eat, losses: [{loss}, {loss}], attack: {attack}}}",
        "update=compiled", "epochs=1", "sampler={name: balanced, batch: 450, per_class: 90}",
    ]  # fmt: skip
    torch._dynamo.utils.counters.clear()
    train("digits/plain", changes, tmp_path / "run", hardware=Hardware("cpu"))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_compiled_training_gives_the_weights_of_eager_training(tmp_path: Path) -> None:
    runs = [
        train("digits/madry", ["epochs=1", QUICK, *extra], tmp_path / name, hardware=Hardware("cpu"))
        for name, extra in (("eager", []), ("compiled", ["update=compiled", "attack_view=compiled"]))
    ]
    eager, compiled = (load_file(run / "model.safetensors") for run in runs)
    for name, weight in eager.items():
        torch.testing.assert_close(compiled[name], weight, atol=2e-3, rtol=0)


def test_an_epoch_records_the_figures_of_its_defence_beside_the_terms_of_its_loss(tmp_path: Path) -> None:
    run = train("digits/hm", ["epochs=2", QUICK], tmp_path / "run")
    first, second = (r for r in records.read(run / "results.jsonl") if r.kind == "train")
    assert second.settings == {"epoch": 2, "terms": ["triplet", "structure"]}
    figures = {"before", "goal", "after", "attacked", "passes"}
    assert set(first.scores) == {"triplet", "structure", *figures, "images_per_second", "data_wait"}
    # The gradual goal lies in [-margin, 0]; two steps, and the pass that finds all triplets at rest is never needed.
    assert -0.2 <= first.scores["goal"] <= 0 and first.scores["before"] < first.scores["after"]
    assert 0 < first.scores["passes"] <= 2


def test_a_defence_without_figures_records_its_terms_alone(trained: Path) -> None:
    record = records.read(trained / "results.jsonl")[0]
    assert record.settings == {"epoch": 1, "terms": ["metric"]}
    assert set(record.scores) == {"metric", "images_per_second", "data_wait"}


def test_hardness_manipulation_resumes_with_the_last_loss_it_knew(tmp_path: Path, command: Command) -> None:
    recipe_file = own_recipe(tmp_path / "own.yaml", signalled_hm(at=7))
    assert command("train", recipe_file, "--out", "part").code == 130
    state = torch.load(tmp_path / "part" / "state.pt", weights_only=True)
    assert state["step"] == 7 and state["defence"]["inner.last_loss"].shape == (2,)
    assert (state["defence"]["inner.last_loss"] != 2.0).all()
    assert command("train", recipe_file, "--out", "part", "--resume").code == 0
    own_recipe(recipe_file, signalled_hm(at=-1))
    assert command("train", recipe_file, "--out", "whole").code == 0
    assert same_weights(tmp_path / "part", tmp_path / "whole")
