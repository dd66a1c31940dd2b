"""timm's models as backbones, and torchvision where its compiled part does not load."""

import importlib
import subprocess
import sys

import pytest
import torch

from refusals import fails, refused
from sla.backbones import create_backbone, find_weights
from sla.backbones.torchvision_import import import_torchvision
from sla.errors import InputError, MissingExtraError, SLAError


@pytest.fixture
def timm():
    try:
        import_torchvision()
    except MissingExtraError as error:
        pytest.skip(str(error))
    return pytest.importorskip("timm", reason="needs the extra `timm`")


@pytest.mark.usefixtures("timm")
@pytest.mark.parametrize(
    ("name", "options", "channels", "size"),
    [
        ("resnet18", {}, 3, 64),
        ("mobilenetv3_small_050", {"drop_rate": 0.1}, 1, 64),  # its head has a hidden layer
        ("resnet18", {"global_pool": "catavgmax"}, 3, 64),  # twice as wide as its map
        ("vit_tiny_patch16_224", {"img_size": 64, "global_pool": "avg"}, 3, 64),  # its map is a sequence
    ],
)
def test_a_vector_an_image(name, options, channels, size):
    backbone = create_backbone(f"timm:{name}", in_channels=channels, **options)
    assert all(module.training for module in backbone.modules())
    backbone.eval()
    with torch.no_grad():
        features = backbone(torch.randn(2, channels, size, size))
        maps = backbone.forward_features(torch.randn(2, channels, size, size))
    assert features.shape == (2, backbone.num_features)
    assert maps.ndim > 2


def test_features_are_timms_own(timm):
    torch.manual_seed(0)
    theirs = timm.create_model("resnet18", num_classes=7).eval()
    ours = create_backbone("timm:resnet18").eval()
    ours.load_state_dict({k: v for k, v in theirs.state_dict().items() if not k.startswith("fc.")})
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(theirs.fc(ours(images)), theirs(images))
    weights = find_weights("timm:resnet18")
    assert weights.input == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 224)
    assert not weights.available  # timm downloads them


@pytest.mark.usefixtures("timm")
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnt18", {}, r"timm has no model 'resnt18', did you mean 'resnet18'\?"),
        ("zzzzqqq", {}, r"'zzzzqqq'; timm\.list_models\(\)"),
        ("hf-hub:timm/resnet18", {}, "timm has no model"),
        ("resnet18.bogus", {}, "bogus"),
        ("resnet18", {"depth": 3}, "'depth'"),
        ("resnet18", {"num_classes": 3}, "no classes, its head has"),
        ("resnet18", {"in_chans": 1}, "use in_channels"),
        ("resnet18", {"features_only": True}, "one pooled vector"),
        ("resnet18", {"global_pool": ""}, r"gives \(1, 512, 7, 7\) for an image, not one vector"),
        ("inception_next_atto", {}, r"gives \(1, 0\) for an image"),  # it keeps a head of no classes
        ("resnet18", {"checkpoint_path": "weights.pth"}, "load_state_dict"),
    ],
)
def test_wrong_names_and_options(name, options, message):
    refused(message, create_backbone, f"timm:{name}", **options)


def test_weights_that_do_not_arrive_are_a_failure_and_not_wrong_input(timm, monkeypatch):
    def unreachable(*_, **__):
        raise ConnectionError("no route\nmore lines")

    monkeypatch.setattr(timm, "create_model", unreachable)
    with pytest.raises(
        SLAError, match=r"weights of 'timm:resnet18' could not be downloaded: no route$"
    ) as caught:
        create_backbone("timm:resnet18", pretrained=True)
    assert not isinstance(caught.value, InputError)


def test_missing_packages_name_the_extra(timm, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    fails(MissingExtraError, r"timm.*install .*\[timm\]'", create_backbone, "timm:resnet18")
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(MissingExtraError, match=r"torchvision.*install .*\[timm\]'"):
        create_backbone("timm:resnet18")


@pytest.mark.usefixtures("timm")
def test_torchvision_is_whole_and_one():
    torchvision = import_torchvision()
    assert import_torchvision() is torchvision is sys.modules["torchvision"]
    image = torch.arange(12, dtype=torch.uint8).reshape(1, 3, 4)
    assert torch.equal(torchvision.transforms.functional.hflip(image), image.flip(2))
    v2 = importlib.import_module("torchvision.transforms.v2")
    assert torch.equal(v2.RandomHorizontalFlip(p=1)(image), image.flip(2))


FAKES = """
import importlib, pathlib, sys, torch
from sla.backbones.torchvision_import import import_torchvision
package = pathlib.Path(sys.argv[1], "torchvision")
package.mkdir()
sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True

def declared():
    return hasattr(torch.ops.torchvision, "nms")

def write(text):
    (package / "__init__.py").write_text(text)
    importlib.invalidate_caches()

write("raise RuntimeError('CUDA versions differ')")
try:
    import_torchvision()
except ValueError as error:
    assert "does not fit torch" in str(error) and "same build" in str(error)
    assert "CUDA versions differ" in str(error)
else:
    raise AssertionError("another failure was hidden")
assert not declared()

write("works = True")
assert import_torchvision().works and not declared()

del sys.modules["torchvision"]
(package / "first.py").write_text("works = 'now'")
(package / "second.py").write_text("import torch; torch.library.register_fake('torchvision::nms')(max)")
write("import torchvision.first, torchvision.second")
assert import_torchvision().first.works == "now" and declared()
"""


def test_operators_are_declared_only_after_the_real_ones_failed(tmp_path):
    command = [sys.executable, "-c", FAKES, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
