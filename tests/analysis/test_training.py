"""Trainings against a baseline: the tables of the reports, defaults, and what is NA and why."""

import json

import pytest
from sweep_builders import edited, write_json
from training_builders import Trained, write_training

from commtrace import analyse_training
from commtrace.analysis.core.schema import records
from commtrace.analysis.errors import DamagedTraining, NothingMeasured, NoTraining, UnreadableFile

FIVE = [(2.0, 0.3), (1.5, 0.4), (1.2, 0.5), (1.0, 0.6)]


def rows(tmp_path, *trainings, **options):
    """The table of these trainings, which are called a, b, ..."""
    for name, training in zip("abcdef", trainings, strict=False):
        write_training(tmp_path / name, training)
    return records(analyse_training(tmp_path, **options).training)


@pytest.mark.parametrize(
    ("small", "large", "differences"),
    [
        # B: 128 on one GPU, 2048 on each of four. D: a large batch "against" the small one, whose sizes it leaves open.
        (((0.4310, 0.8490), 1, 128), ((0.7415, 0.7390), 4, 2048), (0.3105, -0.1100)),
        (((0.7153, 0.7536), 1, 32), ((0.6241, 0.7834), 4, 512), (-0.0912, 0.0298)),
    ],
    ids=["report B", "report D"],
)
def test_the_tables_of_the_reports(tmp_path, small, large, differences) -> None:
    """Epoch 5 against the small batch; epoch times by hand: 30 s, then 10 s four times; and half of that."""
    trainings = [
        Trained(workers, batch, [*FIVE, score], epoch_s=seconds)
        for (score, workers, batch), seconds in ((small, 10.0), (large, 5.0))
    ]
    base, other = rows(tmp_path, *trainings)
    assert (base["run"], base["baseline"], base["after_epochs"], base["note"]) == ("a", "a", 5, None)
    assert (base["test_loss"], base["test_accuracy_frac"]) == small[0]
    assert (other["test_loss"], other["test_accuracy_frac"]) == large[0]
    assert (other["train_loss"], other["train_accuracy_frac"]) == (large[0][0], large[0][1] / 2)
    found = (other["test_loss_difference"], other["test_accuracy_difference_frac"])
    assert found == pytest.approx(differences, abs=1e-12)
    assert (base["epoch_ns"], other["epoch_ns"], other["data_ns"]) == (10_000_000_000, 5_000_000_000, 500)
    assert (base["speedup_over_baseline"], other["speedup_over_baseline"]) == (1.0, 2.0)
    assert (other["global_batch_size"], other["lr"], other["finished_epochs"]) == (large[1] * large[2], 0.1, 5)
    assert other["note"] is None


def test_the_baseline_has_the_smallest_batch_and_then_the_fewest_workers(tmp_path) -> None:
    trainings = [Trained(4, 32), Trained(2, 32), Trained(1, 64), Trained(1, 2048)]
    assert {row["baseline"] for row in rows(tmp_path, *trainings)} == {"c"}
    assert {row["baseline"] for row in rows(tmp_path, baseline="d")} == {"d"}
    with pytest.raises(NothingMeasured, match="--baseline e: is none of the trainings: a, b, c, d"):
        rows(tmp_path, baseline="e")


def test_epochs_may_be_fewer_or_named(tmp_path) -> None:
    three, five = Trained(scores=FIVE[:3]), Trained(workers=2, scores=[*FIVE, (0.9, 0.7)])
    assert [row["test_loss"] for row in rows(tmp_path, three, five)] == [1.2, 1.2]
    (short, long) = rows(tmp_path, after_epochs=4)
    assert (short["test_loss"], short["lr"], long["test_loss"]) == (None, None, 1.0)
    assert short["note"] == "no epoch 4: it has 3 of its 5 epochs"
    assert long["note"] == "no difference: the baseline has 3 epochs"
    assert long["test_loss_difference"] is None
    assert long["speedup_over_baseline"] == 1.0, "the time of an epoch is known all the same"
    with pytest.raises(NothingMeasured, match="no training has an epoch 6; ask for --epoch 5 at most"):
        rows(tmp_path, after_epochs=6)


def test_what_was_assumed_is_said(tmp_path) -> None:
    trainings = [
        Trained(scores=FIVE[:2], planned=2),
        Trained(2, scores=FIVE[:1]),
        Trained(2, scores=FIVE[:2], planned=2, steps=100),
        Trained(2, scores=FIVE[:2], planned=2, grows=((1, 64),)),
        Trained(2, scores=[(None, 0.1)] * 2, planned=2),
        Trained(2, scores=FIVE[:2], planned=2, samples=25_000),
    ]
    _, stopped, bounded, grown, diverged, other_data = rows(tmp_path, *trainings)
    assert stopped["note"] == (
        "no epoch 2: it has 1 of its 5 epochs; its time is that of the first epoch, which warms up"
    )
    assert stopped["epoch_ns"] == 30_000_000_000
    assert bounded["note"] == "trained 100 of 782 steps per epoch, its time is scaled to a whole epoch"
    assert bounded["epoch_ns"] == pytest.approx(10_000_000_000, abs=10)
    assert grown["note"] == "its global batch grows to 128"
    assert grown["global_batch_size"] == 64
    assert diverged["note"] == "train_loss and test_loss are not finite: the training diverged"
    assert (diverged["test_loss"], diverged["test_loss_difference"]) == (None, None)
    assert diverged["test_accuracy_difference_frac"] == pytest.approx(-0.3)
    assert other_data["note"] == "no speedup: its epoch has 25,000 images, that of the baseline 50,000"
    assert other_data["speedup_over_baseline"] is None
    assert other_data["test_loss_difference"] == 0


def test_another_model_or_data_set_is_not_compared(tmp_path) -> None:
    _, other = rows(tmp_path, Trained(), Trained(2, model="vgg16", data="synthetic"))
    assert other["note"].endswith("not compared: the baseline has model resnet18 and data cifar10")
    assert (other["test_loss"], other["test_loss_difference"], other["speedup_over_baseline"]) == (1.0, None, None)


def test_every_epoch_is_in_the_long_table(tmp_path) -> None:
    write_training(tmp_path / "a", Trained(2, scores=FIVE[:2]))
    table = records(analyse_training(tmp_path / "a").training_epochs)
    assert [(row["run"], row["after_epochs"], row["test_accuracy_frac"]) for row in table] == [
        ("a", 1, 0.3),
        ("a", 2, 0.4),
    ]


# --- files ------------------------------------------------------------------------------------------------------------


def test_runs_are_found_in_folders_and_each_is_read_once(tmp_path) -> None:
    a, b = (write_training(tmp_path / name, Trained()) for name in "ab")
    (tmp_path / "without").mkdir()
    found = analyse_training(tmp_path, a, b / "training.json", tmp_path / "b" / ".." / "a")
    assert found.training["run"].tolist() == ["a", "b"]


def test_runs_of_the_same_name_are_told_apart_by_their_paths(tmp_path) -> None:
    paths = [write_training(tmp_path / where / "run", Trained(workers)) for workers, where in ((1, "x"), (2, "y"))]
    table = analyse_training(*paths, baseline=str(paths[1])).training
    assert table["run"].tolist() == [str(path) for path in paths]
    assert set(table["baseline"]) == {str(paths[1])}


def damaged(tmp_path, **changes):
    return edited(write_training(tmp_path / "a", Trained(scores=FIVE[:2])) / "training.json", **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema_version": 2}, "has schema_version 2, expected 1; upgrade commtrace"),
        ({"planned_epochs": 1}, "expected epochs from 0, each once, and 1 at most; found 0, 1"),
        ({"epochs": []}, "is not as a training writes it"),
        ({"epochs": None}, "missing required field `epochs`"),
        ({"workers": 0}, "is not as a training writes it"),
        ({"dataset_samples": "many"}, "is not as a training writes it"),
    ],
)
def test_damaged_content_is_named(tmp_path, changes, message) -> None:
    damaged(tmp_path, **changes)
    with pytest.raises(DamagedTraining, match=r"training.json: ") as err:
        analyse_training(tmp_path / "a")
    assert message in str(err.value)


@pytest.mark.parametrize("change", [{"accuracy": 1.5}, {"accuracy": -0.1}, {"samples": 0}, {"loss": "low"}])
def test_a_score_that_cannot_be_is_damage(tmp_path, change) -> None:
    path = damaged(tmp_path)
    content = json.loads(path.read_text())
    content["epochs"][1]["test"] |= change
    write_json(path, content)
    with pytest.raises(DamagedTraining, match=r"\$\.epochs\[1\]\.test|\$.epochs\[...\].test"):
        analyse_training(tmp_path / "a")


@pytest.mark.parametrize("text", [b"", b"{", b"\xff\xfe", b'{"loss": NaN}', b"[" * 100_000, b"null"])
def test_what_is_no_json_is_damage(tmp_path, text) -> None:
    damaged(tmp_path).write_bytes(text)
    with pytest.raises(DamagedTraining, match=r"training.json: is not as a training writes it"):
        analyse_training(tmp_path / "a")


def test_what_is_missing_is_named(tmp_path) -> None:
    run = write_training(tmp_path / "a", Trained())
    (run / "run.json").unlink()
    with pytest.raises(NoTraining, match=r"a/run.json: is not there"):
        analyse_training(run)
    with pytest.raises(NoTraining, match="nowhere: no such file or directory"):
        analyse_training(tmp_path / "nowhere")
    (run / "training.json").rename(run / "run.json")
    with pytest.raises(NoTraining, match=r"a/training.json: is not there; .* once the first epoch is tested"):
        analyse_training(run)
    with pytest.raises(NoTraining, match=r"run.json: is a file; expected a run directory"):
        analyse_training(run / "run.json")
    with pytest.raises(NoTraining, match=r"holds no training; expected training.json in it or in its folders"):
        analyse_training(tmp_path)
    (run / "training.json").mkdir()
    with pytest.raises(UnreadableFile, match=r"training.json: cannot be read: Is a directory"):
        analyse_training(run)


def test_keep_going_leaves_out_what_cannot_be_read(tmp_path) -> None:
    write_training(tmp_path / "a", Trained())
    write_training(tmp_path / "b", Trained())
    (tmp_path / "b" / "training.json").write_text("{")
    found = analyse_training(tmp_path, tmp_path / "nowhere", keep_going=True)
    assert found.training["run"].tolist() == ["a"]
    damaged_file, absent = found.trainings.failed
    assert "b/training.json: is not as a training writes it" in damaged_file
    assert "nowhere: no such file or directory" in absent
    with pytest.raises(NoTraining, match=r"no training could be used: .*nowhere: no such file"):
        analyse_training(tmp_path / "nowhere", keep_going=True)
