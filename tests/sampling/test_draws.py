import torch

from sla.sampling.draws import Draws, generator, seed_of


def test_parts_of_a_batch_are_cut_from_the_same_numbers():
    whole = Draws(seed=3, step=7, batch_size=12)
    parts = [Draws(3, 7, 12, start, start + 4) for start in (0, 4, 8)]
    for draw in (lambda d: d.uniform("a", 5), lambda d: d.integers("a", 9, 5)):
        joined = torch.cat([draw(part) for part in parts])
        assert joined.shape == (12, 5)
        assert torch.equal(joined, draw(whole))


def test_seed_step_and_name_each_change_every_draw():
    base = Draws(0, 0, 1000).uniform("crop", 2)
    for other in (
        Draws(1, 0, 1000).uniform("crop", 2),
        Draws(0, 1, 1000).uniform("crop", 2),
        Draws(0, 0, 1000).uniform("flip", 2),
    ):
        assert (base != other).float().mean() > 0.99
        assert abs(torch.corrcoef(torch.stack([base.flatten(), other.flatten()]))[0, 1]) < 0.1


def test_draws_do_not_depend_on_nor_disturb_the_global_generator():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = Draws(0, 0, 8).uniform("x")
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(Draws(0, 0, 8).uniform("x"), first)


def test_integers_are_uniform_over_their_whole_range():
    drawn = Draws(0, 0, 9000).integers("x", 9)
    counts = torch.bincount(drawn.flatten(), minlength=9)
    assert drawn.dtype == torch.int64
    assert len(counts) == 9
    assert (counts - 1000).abs().max() < 150  # five standard deviations


def test_seeds_follow_from_the_parts_and_their_kinds():
    assert seed_of(1, 2) == seed_of(1, 2)
    assert len({seed_of(1, 2), seed_of(12), seed_of("1", 2), seed_of(1, "2"), seed_of(2, 1)}) == 5
    assert 0 <= seed_of("x") < 2**63
    numbers = [torch.rand(4, generator=generator(0, "a")) for _ in range(2)]
    assert torch.equal(*numbers)
