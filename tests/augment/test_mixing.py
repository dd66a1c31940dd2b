"""Mixup and CutMix: the share that is said is the share of the pixels."""

import numpy as np
import pytest
import torch

from refusals import refused
from sla.augment.mixing import CutMix, Mixup, cut_boxes, parse_mix
from sla.sampling.draws import Draws


def flat(count, height=32, width=32):
    """Image b is b everywhere: what came from whom can be counted."""
    return torch.arange(float(count))[:, None, None, None].expand(-1, 3, height, width).contiguous()


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (7, 20), (1, 1)])
def test_cutmixs_lambda_is_the_exact_share_of_pixels(each, height, width):
    partial = 0
    for step in range(40):
        images, partner, lam = CutMix(each=each)(flat(6, height, width), Draws(0, step, 6))
        shares = lam.expand(6)
        assert sorted(partner.tolist()) == list(range(6))
        for b in range(6):
            own, theirs = ((images[b] == who).float().mean().item() for who in (b, partner[b]))
            assert theirs == pytest.approx(1 - shares[b].item() if partner[b] != b else 1, abs=1e-6)
            if partner[b] != b:
                assert own == pytest.approx(shares[b].item(), abs=1e-6)
                partial += 0 < own < 1
        assert lam.shape == ((6,) if each else ())
    assert partial > 50 or height == 1


def test_a_box_by_the_published_rule_and_cut_off_at_the_border():
    stream = np.random.default_rng(0)
    lam, place = stream.random(500), stream.random((500, 2))
    place[:4] = [[0, 0], [0.999, 0.999], [0, 0.999], [0.5, 0.5]]
    boxes, exact = cut_boxes(torch.from_numpy(lam), torch.from_numpy(place), 32, 48)
    clipped = 0
    for value, (y, x), box, share in zip(lam, place, boxes.tolist(), exact.tolist(), strict=True):
        high, wide = int(32 * np.sqrt(1 - value)), int(48 * np.sqrt(1 - value))
        cy, cx = int(y * 32), int(x * 48)
        rows = [r for r in range(cy - high // 2, cy + high // 2) if 0 <= r < 32]
        columns = [c for c in range(cx - wide // 2, cx + wide // 2) if 0 <= c < 48]
        top, left, bottom, right = box
        assert list(range(top, bottom)) == rows
        assert list(range(left, right)) == columns
        assert share == pytest.approx(1 - len(rows) * len(columns) / (32 * 48))
        clipped += len(rows) < high // 2 * 2 or len(columns) < wide // 2 * 2
    assert clipped > 100


def test_lambda_one_cuts_nothing_and_zero_everything_but_what_lies_beyond_the_border():
    centre = torch.tensor([[0.5, 0.5]])
    boxes, exact = cut_boxes(torch.tensor([1.0]), centre, 32, 32)
    assert exact.item() == 1
    assert (boxes[0, 2:] - boxes[0, :2]).prod() == 0
    boxes, exact = cut_boxes(torch.tensor([0.0]), centre, 32, 32)
    assert boxes.tolist() == [[0, 0, 32, 32]]
    assert exact.item() == 0
    boxes, exact = cut_boxes(torch.tensor([0.0]), torch.tensor([[0.0, 0.0]]), 32, 32)
    assert boxes.tolist() == [[0, 0, 16, 16]]
    assert exact.item() == 0.75


@pytest.mark.parametrize("mix", [Mixup(), CutMix(), Mixup(each=True), CutMix(each=True)], ids=str)
def test_a_batch_of_one_mixes_with_itself(mix):
    image = torch.rand(1, 3, 8, 8)
    mixed, partner, lam = mix(image, Draws(0, 0, 1))
    assert partner.tolist() == [0]
    assert torch.allclose(mixed, image)
    assert 0 <= float(lam) <= 1


@pytest.mark.parametrize("each", [False, True])
def test_mixup_is_the_weighted_mean_of_two_images(each):
    images = torch.rand(8, 3, 5, 5)
    mixed, partner, lam = Mixup(0.7, each=each)(images, Draws(1, 2, 8))
    for b in range(8):
        share = float(lam.expand(8)[b])
        expected = share * images[b].double() + (1 - share) * images[partner[b]].double()
        assert torch.allclose(mixed[b].double(), expected, atol=1e-6)
    assert len(set(lam.expand(8).tolist())) == (8 if each else 1)


@pytest.mark.parametrize("kind", [Mixup, CutMix])
def test_the_probability_is_that_of_steps_or_of_images(kind):
    images = flat(4)
    shares = [kind(1.0, 0.5)(images, Draws(0, step, 4)).lam.item() for step in range(300)]
    unmixed = sum(share == 1 for share in shares) / 300
    assert 0.4 < unmixed < 0.62  # CutMix has a few empty boxes besides
    assert kind(1.0, 0.0)(images, Draws(0, 0, 4)).images.equal(images)
    lam = kind(1.0, 0.5, each=True)(flat(400, 8, 8), Draws(0, 0, 400)).lam
    assert 0.4 < (lam == 1).float().mean() < 0.65


def test_shares_come_from_the_beta_distribution():
    """Beta(a, a) has variance 1 / (4 (2a + 1)) about one half."""
    for alpha in (0.2, 1.0, 4.0):
        lam = Mixup(alpha, each=True)(torch.zeros(4000, 1, 1, 1), Draws(0, 0, 4000)).lam.double()
        assert lam.mean().item() == pytest.approx(0.5, abs=0.03)
        assert lam.var().item() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.1)


@pytest.mark.parametrize(
    "text", ["mixup", "cutmix", "cutmix(1.0, 0.5)", "mixup(1.0, each)", "cutmix(2, 1, each)"]
)
def test_shares_and_boxes_do_not_depend_on_the_number_of_processes_and_partners_stay_inside(text):
    mix, images = parse_mix(text), flat(12)
    whole = mix(images, Draws(0, 3, 12))
    again = mix(images, Draws(0, 3, 12))
    assert torch.equal(whole.images, again.images)
    for start in (0, 4, 8):
        part = mix(images[start : start + 4], Draws(0, 3, 12, start, start + 4))
        expected = whole.lam[start : start + 4] if whole.lam.ndim else whole.lam
        assert torch.equal(part.lam, expected)
        assert sorted(part.partner.tolist()) == [0, 1, 2, 3]


def test_mixing_as_text():
    assert parse_mix("cutmix(1.0, 0.5)") == CutMix(1.0, 0.5)
    assert parse_mix("cutmix") == CutMix(1.0, 1.0)
    assert parse_mix(" mixup( 0.2 ) ") == Mixup(0.2, 1.0)
    assert parse_mix("mixup(0.2, 0.5, each)") == Mixup(0.2, 0.5, each=True)
    assert parse_mix("none") is None
    assert parse_mix(None) is None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("cutmx", "unknown mixing 'cutmx' in 'cutmx', did you mean 'cutmix'?"),
        ("cutmix, mixup", "only one kind of mixing, not 2"),
        ("cutmix(0)", "beta must be from 0.001 to 1000, not 0"),
        ("mixup(-1)", "alpha must be from 0.001 to 1000, not -1"),
        ("mixup(1, 2)", "probability of mixing must be from 0 to 1, not 2"),
        ("mixup(1, 1, 1)", "takes up to two numbers and then perhaps the word each"),
        ("mixup(each, 1)", "takes up to two numbers and then perhaps the word each"),
        ("cutmix(nan)", "takes up to two numbers and then perhaps the word each"),
        ("cutmix(1, 1, 1, 1)", "cutmix takes up to 3 arguments"),
    ],
)
def test_wrong_mixing_is_refused(text, line):
    refused(line, parse_mix, text)
