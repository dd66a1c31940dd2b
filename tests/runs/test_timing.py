"""Times of training steps: the first ones, slow because memory is new, are not those of a run."""

from types import SimpleNamespace

import pytest
import torch

from sla.runs import timing


def steps_of(monkeypatch: pytest.MonkeyPatch, seconds: list[float], **limits: int) -> list[float]:
    """`time_steps` of a loop whose steps take so long, by a clock that stands still otherwise."""
    clock, left = [0.0], iter(seconds)

    def learn(_: object) -> None:
        clock[0] += next(left)

    monkeypatch.setattr(timing, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    loop = SimpleNamespace(learn=learn, device=torch.device("cpu"))
    return timing.time_steps(loop, iter([None] * len(seconds)), **limits)  # type: ignore[arg-type,list-item]


def test_warm_up_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert steps_of(monkeypatch, [3.0, 2.0, 1.0, 1.5, 9.0], steps=4) == [1.0, 1.5]


def test_a_slow_first_step_is_not_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    assert steps_of(monkeypatch, [12.0, 1.0, 1.0, 1.0], steps=4) == [1.0]


def test_slow_steps_end_the_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert steps_of(monkeypatch, [4.0, 4.0, 4.0, 4.0], steps=4) == [4.0]
    assert steps_of(monkeypatch, [12.0, 12.0, 12.0], steps=3, warm_up=0) == [12.0]


def test_one_step_is_better_than_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert steps_of(monkeypatch, [5.0], steps=4) == [5.0]
