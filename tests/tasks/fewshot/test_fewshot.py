"""Few-shot models, training, evaluation and prediction on pictures that a tiny network can tell apart."""

import colorsys
import csv
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

import sla
from refusals import refused
from sla.errors import InputError, SLAError, SLAWarning
from sla.images.store import ArrayImages, Dataset, Splits
from sla.model_file import read_model_file
from sla.runs.checkpoint import find_checkpoint
from sla.runs.schedules import rate_factor
from sla.runs.signals import StoppedError
from sla.sampling.episodes import Episodes
from sla.sampling.loader import EpisodeLoader
from sla.session import train
from sla.tasks.fewshot.config import FewShotConfig
from sla.tasks.fewshot.evaluate import embed, episode_accuracies, episode_interval, paired_interval
from sla.tasks.fewshot.heads import create_head
from sla.tasks.fewshot.model import FewShotModel, load_model
from sla.tasks.fewshot.plan import make_plan
from sla.tasks.fewshot.predict import adapt_to_folder, cautious_temperature, classify_files, hold_out_in_turn
from sla.tasks.fewshot.result import record_run
from sla.tasks.fewshot.run import FewShotRun
from sla.tasks.fewshot.trainer import FewShotTrainer
from sla.tasks.registry import make_config
from sla.views import Identity, Rotation

SIZE = 8


def picture(label, number):
    """A corner of the class's own colour on dark noise: rotation moves it, so views can be told apart."""
    stream = np.random.default_rng(number)
    pixels = stream.integers(0, 60, (3, SIZE, SIZE))
    color = 255 * np.array(colorsys.hsv_to_rgb(label * 0.618 % 1, 1, 1))  # hues far from each other
    pixels[:, :4, :4] = color[:, None, None] + stream.integers(-40, 40, (3, 4, 4))
    return np.clip(pixels, 0, 255).astype(np.uint8)


def make_split(labels, images):
    pixels = np.stack([picture(label, 100 * label + i) for label in labels for i in range(images)])
    targets = np.repeat(np.arange(len(labels)), images)
    return Dataset(ArrayImages(torch.from_numpy(pixels)), targets, tuple(f"c{label}" for label in labels))


SPLITS = Splits("tiny", make_split(range(8), 12), make_split(range(8, 12), 10), make_split(range(12, 17), 10))


def settings(**more):
    tree = {
        "data": {"source": "tiny"},
        "model": {"backbone": "convnet4", "options": {"width": 16}},
        "method": {"name": "ridge", "views": "rot4"},
        "episodes": {"way": 3, "shot": 2, "query": 2, "per_step": 2, "test_query": 4, "test_shots": [1, 2]},
        "augment": "crop(1), flip",
        "run": {"iterations": 20, "evaluations": 2, "device": "cpu"},
    }
    tree["episodes"] |= {"val_episodes": 5, "test_episodes": 20}
    for key, value in more.items():
        part, _, name = key.partition("__")
        if name:
            tree[part][name] = value
        else:
            tree[part] = value
    return make_config(tree)


def make_model(views, head="protonet", width=6, seed=0):
    torch.manual_seed(seed)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, width))
    return FewShotModel(backbone, create_head(head), views)


def test_joint_episodes_have_every_class_in_every_view_with_its_own_label():
    """The head is given NM classes; rows and labels are looked up one by one."""
    model, seen = make_model(Rotation()), {}

    class Spy(nn.Module):
        def forward(self, support, targets, query, way):
            seen.update(support=support, targets=targets, way=way)
            return torch.zeros(len(query), query.shape[1], way)

    model.head = Spy()
    images, targets = torch.rand(2, 6, 3, SIZE, SIZE), torch.tensor([[0, 0, 1, 1, 2, 2], [2, 1, 0, 0, 1, 2]])
    losses = model.losses(images, targets, images[:, :3], targets[:, :3], 3)
    assert seen["way"] == 12
    assert float(losses["loss"]) == pytest.approx(np.log(12))
    for e in range(2):
        for s in range(6):
            for view in range(4):
                row = 4 * s + view
                assert seen["targets"][e, row] == 4 * targets[e, s] + view
                alone = model.features(torch.rot90(images[e, s], view, (1, 2)).unsqueeze(0))[0]
                torch.testing.assert_close(seen["support"][e, row], alone)


def test_loss_is_over_all_joint_labels_of_all_query_views_and_the_answer_is_the_mean_of_own_blocks():
    model = make_model(Rotation())
    support, query = torch.rand(1, 4, 3, SIZE, SIZE), torch.rand(1, 2, 3, SIZE, SIZE)
    targets, wanted = torch.tensor([[0, 0, 1, 1]]), torch.tensor([[1, 0]])
    losses = model.losses(support, targets, query, wanted, 2)
    total, means = 0.0, torch.zeros(2, 2)
    turned = [torch.rot90(support[0], view, (2, 3)) for view in range(4)]
    rows = [model.features(turned[j])[targets[0] == y].mean(0) for y in range(2) for j in range(4)]
    for q in range(2):
        for view in range(4):
            feature = model.features(torch.rot90(query[0, q : q + 1], view, (2, 3)))[0]
            logits = torch.stack([-((feature - row) ** 2).sum() / 6 for row in rows])
            total += float(F.cross_entropy(logits.unsqueeze(0), wanted[0, q : q + 1] * 4 + view).detach()) / 8
            means[q] += logits.detach().view(2, 4)[:, view] / 4
    assert float(losses["loss"].detach()) == pytest.approx(total, rel=1e-5)
    torch.testing.assert_close(losses["output"], means, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("head", ["protonet", "ridge", "r2d2", "svm"])
def test_one_view_is_exactly_the_plain_method(head):
    model = make_model(Identity(), head)
    support, query = torch.rand(3, 6, 3, SIZE, SIZE), torch.rand(3, 5, 3, SIZE, SIZE)
    targets, wanted = torch.arange(6).expand(3, -1) % 3, torch.randint(3, (3, 5))
    losses = model.losses(support, targets, query, wanted, 3)
    plain = model.head(
        model.backbone(support.flatten(0, 1)).view(3, 6, -1),
        targets,
        model.backbone(query.flatten(0, 1)).view(3, 5, -1),
        3,
    )
    assert torch.equal(losses["loss"], F.cross_entropy(plain.flatten(0, 1), wanted.flatten()))
    assert torch.equal(losses["output"], plain.detach().flatten(0, 1))
    assert model.inferences == ("single",)


def test_support_and_query_go_forward_apart():
    """Batch norm: the support features must not depend on the queries."""
    sizes = []
    model = make_model(Identity())
    model.backbone.register_forward_pre_hook(lambda module, inputs: sizes.append(len(inputs[0])))
    images, targets = torch.rand(2, 4, 3, SIZE, SIZE), torch.tensor([[0, 0, 1, 1]]).expand(2, -1)
    model.losses(images, targets, images[:, :3], targets[:, :3], 2)
    assert sizes == [8, 6]
    with pytest.raises(InputError, match="3x8x8 and 3x6x6; resize them to one"):
        model.losses(images, targets, images[..., 1:7, 1:7], targets, 2)


def test_the_loader_gives_support_then_queries_of_the_seeded_episodes_and_shares_no_image():
    episodes = Episodes(SPLITS.train, 3, 2, 4, seed=5)
    for batch in EpisodeLoader(SPLITS.train, episodes, 2, steps=5, start_step=3):
        support, query = batch.indices.split([12, 24])
        for e in range(2):
            wanted = episodes.episode(2 * batch.step + e)
            mine = support[6 * e : 6 * e + 6], query[12 * e : 12 * e + 12]
            assert np.array_equal(mine[0], wanted.support)
            assert np.array_equal(mine[1], wanted.query)
            assert not set(mine[0].tolist()) & set(mine[1].tolist())
        assert torch.equal(batch.images, SPLITS.train.read(batch.indices.numpy()).images)


def test_embedded_episodes_are_episodes_embedded_anew():
    model = make_model(Rotation(), "ridge")
    pipeline = make_pipeline_of(model)
    embedded = embed(model, SPLITS.test, pipeline, batch_size=7)
    episodes = Episodes(SPLITS.test, 3, 2, 4, seed=9)
    found = episode_accuracies(model, embedded, episodes, 6)
    for number in range(6):
        episode = episodes.episode(number)
        images = [
            SPLITS.test.read(places).images.float() / 255 for places in (episode.support, episode.query)
        ]
        features = [model.view_features((part - 0.5) / 0.5).unsqueeze(0) for part in images]
        joint = model.joint_logits(
            features[0], torch.from_numpy(episode.support_targets)[None], features[1], 3
        )
        right = model.class_logits(joint)["aggregated"][0].argmax(1).numpy() == episode.query_targets
        assert found["aggregated"][number] == pytest.approx(100 * right.mean())


def make_pipeline_of(model):
    model.about["preprocessing"] = {"augment": "none", "resolution": SIZE, "stored_size": SIZE}
    model.about["preprocessing"] |= {"mean": [0.5] * 3, "std": [0.5] * 3}
    return model.preprocessing.eval_pipeline()


def test_large_embeddings_lie_in_a_file_and_are_the_same(monkeypatch):
    model = make_model(Rotation())
    pipeline = make_pipeline_of(model)
    held = embed(model, SPLITS.test, pipeline)
    monkeypatch.setattr("sla.tasks.fewshot.evaluate.MEMORY_LIMIT", 100)
    assert torch.equal(embed(model, SPLITS.test, pipeline), held)


def test_intervals_are_those_of_the_tables():
    values = np.array([60.0, 70.0, 80.0, 90.0])
    mean, low, high = episode_interval(values)
    assert (mean, high - mean) == (75.0, pytest.approx(1.96 * np.sqrt(125) / 2))
    assert paired_interval(values + 3, values) == pytest.approx((3.0, 3.0, 3.0))
    refused("4 and 3 episodes", paired_interval, values, values[:3])
    assert low == pytest.approx(150 - high)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run from start to end."""
    return train(settings(), tmp_path_factory.mktemp("runs") / "whole", splits=SPLITS)


def test_a_run_says_what_it_reached_and_what_it_cost(whole):
    result = json.loads((whole.folder / "result.json").read_text())
    assert result["headline"] == "aggregated"
    tested = result["accuracies"]["last"]["test"]
    assert set(tested) == {"1", "2"}
    assert set(tested["1"]) == {"single", "aggregated"}
    again = FewShotRun(whole.folder).evaluate(SPLITS.test)
    assert tested["2"]["aggregated"]["top1"] == again[2]["aggregated"].mean()
    assert tested["2"]["aggregated"]["top1"] > 60  # three classes: a guess is 33
    assert result["cost"]["images_seen"] == 20 * 2 * 3 * 4 * 4
    assert result["cost"]["episodes"] == 40
    assert {"seed", "commit", "versions", "finished"} <= set(result)
    assert result["accuracies"]["best"]["step"] in (10, 20)


def test_the_record_of_a_run_has_its_best_accuracy_on_validation_classes(whole):
    with (whole.folder / "metrics.csv").open() as file:
        seen = [float(row["val_aggregated"]) for row in csv.DictReader(file) if row["val_aggregated"]]
    found = record_run(whole)["more"]
    assert len(seen) == 2
    assert found["val"] == pytest.approx(max(seen), abs=1e-3)
    assert found["2-shot aggregated"] == whole.result["accuracies"]["last"]["test"]["2"]["aggregated"]["top1"]


@pytest.mark.parametrize("step", [2, 10])
def test_a_resumed_run_is_the_whole_run_bit_for_bit(whole, tmp_path, step, stop_at):
    out = tmp_path / "stopped"
    with pytest.raises(StoppedError, match=r"sla train --resume --out"):
        train(settings(), out, splits=SPLITS, progress=stop_at(step))
    assert not (out / "result.json").exists()
    resumed = train(FewShotConfig(), out, resume=True, splits=SPLITS)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], value), name
    assert (out / "metrics.csv").read_text() == (whole.folder / "metrics.csv").read_text()
    assert resumed.result["accuracies"] == whole.result["accuracies"]


def test_an_averaged_run_with_a_policy_is_resumed_bit_for_bit_without_the_file(tmp_path, stop_at):
    """AdamW, clipping, an average of the weights, and a policy whose file is gone when the run resumes."""
    file = tmp_path / "own.json"
    file.write_text('[[["Invert", 0.5, 0]]]')
    config = settings(optimizer={"name": "adamw", "learning_rate": 0.01, "clip": 1.0, "ema": 0.8})
    config = config.model_copy(update={"augment": f"policy({file}), crop(1)"})
    once = train(config, tmp_path / "once", splits=SPLITS)
    with pytest.raises(StoppedError):
        train(config, tmp_path / "twice", splits=SPLITS, progress=stop_at(7))
    file.unlink()
    twice = train(FewShotConfig(), tmp_path / "twice", resume=True, splits=SPLITS)
    for name, value in once.model.state_dict().items():
        assert torch.equal(twice.model.state_dict()[name], value), name
    state = load_file(find_checkpoint(once.folder / "checkpoint", "last") / "state.safetensors")
    weights = once.model.state_dict()  # what is used is the average, not what was last trained
    assert all(torch.equal(weights[name], state[f"ema.{name}"]) for name in weights)
    assert not all(torch.equal(weights[name], state[f"model.{name}"]) for name in weights)


def test_episodes_of_a_step_may_go_through_the_model_in_parts(tmp_path):
    """Four episodes at once and in two parts: the same gradients, where no batch norm mixes them."""
    gradients = []
    for parts in (1, 2):
        config = settings(episodes__per_step=4, optimizer={"accumulate": parts}, augment="none")
        trainer = FewShotTrainer(make_plan(config, SPLITS), tmp_path)
        trainer.model.eval()
        (batch, *_) = trainer.batches(SPLITS.train, 19)
        trainer.learn(batch)
        gradients.append([value.grad.clone() for value in trainer.model.parameters()])
        assert trainer.meter.sums["steps"] == 1
    for whole, added in zip(*gradients, strict=True):
        torch.testing.assert_close(added, whole, rtol=1e-4, atol=1e-6)


def test_a_finished_run_that_is_resumed_keeps_its_result(whole):
    before = (whole.folder / "result.json").read_bytes()
    train(FewShotConfig(), whole.folder, resume=True, splits=SPLITS)
    assert (whole.folder / "result.json").read_bytes() == before


@pytest.mark.parametrize("text", ["{", None])
def test_a_damaged_or_lost_result_is_made_again(whole, tmp_path, text):
    copied = shutil.copytree(whole.folder, tmp_path / "run")
    (copied / "result.json").unlink()
    if text is not None:
        (copied / "result.json").write_text(text)
        with pytest.raises(InputError, match="damaged; resuming the run"):
            _ = FewShotRun(copied).result
    again = train(FewShotConfig(), copied, resume=True, splits=SPLITS)
    assert again.result["accuracies"] == whole.result["accuracies"]


def test_runs_of_the_other_kind_are_named(whole, tmp_path):
    with pytest.raises(InputError, match="a run of task fewshot: it cannot be resumed as classifier"):
        train(make_config({"data": {"source": "digits"}}), whole.folder, resume=True)
    (tmp_path / "config.yaml").write_text("data: {source: digits}\n")
    with pytest.raises(InputError, match="a run of task classifier: it cannot be resumed as fewshot"):
        train(FewShotConfig(), tmp_path, resume=True, splits=SPLITS)


def test_a_run_resumes_without_the_weights_that_it_started_from(whole, tmp_path, monkeypatch, stop_at):
    first = shutil.copytree(whole.folder, tmp_path / "first")
    monkeypatch.chdir(tmp_path)
    config = settings(model__weights="first", model__options={"width": 16})
    with pytest.raises(StoppedError):
        train(config, tmp_path / "on", splits=SPLITS, progress=stop_at(3))
    once = train(config, tmp_path / "once", splits=SPLITS)
    shutil.rmtree(first)
    on = train(FewShotConfig(), tmp_path / "on", resume=True, splits=SPLITS)
    for name, value in once.model.state_dict().items():
        assert torch.equal(on.model.state_dict()[name], value), name


def test_training_that_went_astray_is_one_line(tmp_path):
    config = settings(method__name="svm", optimizer={"learning_rate": 1e5})
    with pytest.raises(SLAError, match="a lower learning rate may help"):
        train(config, tmp_path / "run", splits=SPLITS)


def test_an_augmentation_that_contains_a_view_is_warned_of():
    with pytest.warns(SLAWarning, match=r"'flip, vflip' contains a view of rot4: .*two labels"):
        make_plan(settings(augment="flip, vflip"), SPLITS)
    make_plan(settings(augment="flip, vflip", method__views="none"), SPLITS)


def test_a_run_is_protected_from_another_configuration_and_another_start(whole):
    refused("exists already; continue it with --resume", train, settings(), whole.folder, splits=SPLITS)
    with pytest.raises(InputError, match=r"method.name: 'svm' is not 'ridge'"):
        train(settings(method__name="svm"), whole.folder, resume=True, splits=SPLITS)
    fewer = replace(SPLITS, train=make_split(range(8), 11))
    refused("8 are gone", train, FewShotConfig(), whole.folder, resume=True, splits=fewer)


@pytest.mark.parametrize("name", ["protonet", "r2d2", "svm"])
def test_every_method_trains_and_lowers_its_loss(name, tmp_path):
    config = settings(method__name=name, method__views="none", method__label_smoothing=0.1)
    trainer = FewShotTrainer(make_plan(config, SPLITS), tmp_path)
    trainer.steps = 30
    losses = []
    for batch in trainer.batches(SPLITS.train, 0):
        trainer.learn(batch)
        losses.append(float(trainer.meter.sums["loss"]))
    each = np.diff(losses, prepend=0)
    assert each[-10:].mean() < each[:10].mean()


def test_the_rate_follows_the_recipe():
    optimizer = FewShotConfig().optimizer
    rates = [rate_factor(optimizer, step, 60) for step in (0, 19, 20, 39, 40, 49, 50, 59)]
    assert rates == [1, 1, 0.06, 0.06, 0.012, 0.012, 0.0024, 0.0024]


def test_wrong_settings_are_one_line():
    refused("an episode's classes are new ones", settings, method__name="ridge+sd")
    refused(r"unknown key 'episodes.shots', did you mean 'episodes.shot'", settings, episodes__shots=3)


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (
            {"shot": 9, "query": 6},
            "training classes: class 'c0' has 12 images; 9 shots and 6 queries need 15: "
            "lower episodes.shot or episodes.query",
        ),
        ({"way": 9}, "training classes: 9-way episodes need 9 classes; there are 8: lower episodes.way"),
        ({"way": 5}, "validation classes: 5-way episodes need 5 classes; there are 4: lower episodes.way"),
        (
            {"val_shot": 3, "test_query": 8},
            "validation classes: class 'c8' has 10 images; 3 shots and 8 queries need 11: "
            "lower episodes.val_shot or episodes.test_query",
        ),
        (
            {"test_shots": [1, 7]},
            "test classes: class 'c12' has 10 images; 7 shots and 4 queries need 11: "
            "lower episodes.test_shots or episodes.test_query",
        ),
    ],
)
def test_episodes_that_do_not_fit_name_the_classes_and_the_keys(wrong, line):
    with pytest.raises(InputError) as caught:
        make_plan(settings(**{f"episodes__{key}": value for key, value in wrong.items()}), SPLITS)
    assert str(caught.value) == line


def test_few_validation_images_by_choice_name_that_choice():
    with pytest.raises(InputError, match=r"4 queries need 6: .* or raise data.val_per_class"):
        make_plan(settings(data__val_per_class=5), SPLITS)
    with pytest.raises(InputError, match=r"'c8' has 10 images, 11 are needed .*: lower per_class"):
        make_plan(settings(data__val_per_class=11), SPLITS)


def test_files_of_the_first_version_are_read(whole, tmp_path):
    """They had the description under another key, and no task in it."""
    new = find_checkpoint(whole.folder / "checkpoint", "last") / "weights.safetensors"
    described, weights = read_model_file(new, "a model")
    assert described.pop("task") == "fewshot"
    save_file(weights, tmp_path / "old.safetensors", {"sla-fewshot": json.dumps(described)})
    old = load_model(tmp_path / "old.safetensors")
    assert old.about == load_model(new).about
    assert all(torch.equal(value, whole.model.state_dict()[name]) for name, value in old.state_dict().items())
    sla.save(sla.create("convnet4", 2, width=4), tmp_path / "classifier.safetensors")
    refused("not a few-shot model", load_model, tmp_path / "classifier.safetensors")


def test_a_damaged_file_is_one_line(whole, tmp_path):
    path = tmp_path / "weights.safetensors"
    path.write_bytes(b"nothing")
    refused("not a few-shot model", load_model, path)
    copy = shutil.copytree(whole.folder, tmp_path / "plain")
    (copy / "config.yaml").write_text("run: {seed: 1}")
    refused("a run of task classifier; this needs one of task fewshot", FewShotRun, copy)


def write_folder(folder, counts, first=20):
    for label, count in enumerate(counts, first):
        (folder / f"thing{label}").mkdir(parents=True)
        for number in range(count):
            pixels = picture(label, 7000 + 100 * label + number).transpose(1, 2, 0)
            side = (SIZE, SIZE) if number % 2 else (2 * SIZE, 3 * SIZE)  # pictures may differ in size
            Image.fromarray(pixels).resize(side, Image.Resampling.NEAREST).save(
                folder / f"thing{label}" / f"{number}.png"
            )
    return folder


def test_five_pictures_of_each_thing_tell_the_next_one(whole, tmp_path):
    support = adapt_to_folder(whole.model, write_folder(tmp_path / "support", [5, 5, 5]))
    assert support.classes == ("thing20", "thing21", "thing22")
    assert support.checked[1] == 15
    write_folder(tmp_path / "new", [9, 9, 9])
    files = [
        tmp_path / "new" / f"thing{label}" / f"{number}.png"
        for label in (20, 21, 22)
        for number in range(5, 9)
    ]
    probabilities = classify_files(whole.model, support, files)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(12))
    assert (probabilities.argmax(1) == torch.arange(3).repeat_interleave(4)).sum() >= 9
    with pytest.warns(SLAWarning, match="unequal shots: thing20 2, thing21 4"):
        adapt_to_folder(whole.model, write_folder(tmp_path / "unequal", [2, 4]))
    with pytest.warns(SLAWarning, match="one picture of each class"):
        assert adapt_to_folder(whole.model, write_folder(tmp_path / "single", [1, 1])).checked is None
    refused("only one class, 'thing20'", adapt_to_folder, whole.model, write_folder(tmp_path / "one", [3]))
    with pytest.raises(InputError, match="no such folder; --support has one folder for each class"):
        adapt_to_folder(whole.model, tmp_path / "nothing")


def test_held_out_pictures_are_judged_by_the_others_alone():
    model = make_model(Identity())
    features, targets = torch.randn(7, 1, 6), torch.tensor([0, 1, 0, 1, 1, 0, 2])
    logits, wanted = hold_out_in_turn(model, features, targets, 3)
    assert wanted.tolist() == [0, 1, 0, 1, 1, 0]  # the class of one picture is never held out
    for row, held in enumerate([(0, 1), (0, 1), (2, 3), (2, 3), (5, 4), (5, 4)]):
        rest = [i for i in range(7) if i not in held]
        mine = held[row % 2] if row < 4 else (4, 5)[row % 2]
        means = [features[[i for i in rest if targets[i] == label], 0].mean(0) for label in range(3)]
        expected = torch.stack([-((features[mine, 0] - mean) ** 2).sum() / 6 for mean in means])
        torch.testing.assert_close(logits[row], expected.detach(), rtol=1e-4, atol=1e-5)


def test_few_pictures_that_are_all_right_make_nobody_certain():
    logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 2.0]]).repeat(2, 1)
    temperature = cautious_temperature(logits, logits.argmax(1))
    surest = float((logits[0] / temperature).softmax(0).max())
    assert 0.75 < surest < 0.95  # 6 of 7: 0.86
