"""Few-shot heads: all episodes of a step at once against a loop over them, side by side in one run.

    python benchmarks/fewshot.py [--rounds 20] [--threads N]

Every round times both ways in turn, forward and backward, on 8 episodes of 5 ways and 5 shots with 6 queries,
plain and with the joint labels of four views. The target is 3 times for the plain episodes.
Measured on one busy core of an AMD EPYC: prototypes 16, ridge 25, R2D2 18, SVM 4.8 times; with
four views the SVM's systems (100 x 100, 20 of them an episode) are so large that batching gains nothing.
"""

import argparse
import time

import torch

from sla.fewshot.heads import HEADS, create_head
from sla.fewshot.loss import smoothed_cross_entropy
from sla.labels import join_labels

EPISODES, WAY, SHOT, QUERY, WIDTH, TARGET = 8, 5, 5, 6, 64, 3.0


def make_episodes(views):
    stream = torch.Generator().manual_seed(0)
    support = torch.randn(EPISODES, WAY * SHOT * views, WIDTH, generator=stream)
    query = torch.randn(EPISODES, WAY * QUERY * views, WIDTH, generator=stream)
    labels = [
        join_labels(torch.arange(WAY).repeat_interleave(count), views).expand(EPISODES, -1)
        for count in (SHOT, QUERY)
    ]
    return support.requires_grad_(), labels[0], query.requires_grad_(), labels[1]


def at_once(head, support, targets, query, wanted, way):
    smoothed_cross_entropy(head(support, targets, query, way), wanted).backward()


def one_by_one(head, support, targets, query, wanted, way):
    losses = []
    for i in range(EPISODES):
        own = slice(i, i + 1)
        losses.append(smoothed_cross_entropy(head(support[own], targets[own], query[own], way), wanted[own]))
    torch.stack(losses).mean().backward()


def seconds(run, *arguments):
    start = time.perf_counter()
    run(*arguments)
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} threads, {EPISODES} episodes, {WIDTH} features")
    print(f"{'head':9} {'views':>5} {'loop ms':>8} {'batch ms':>8} {'ratio':>6}")
    worst = float("inf")
    for views in (1, 4):
        for name in HEADS:
            head, episodes = create_head(name), make_episodes(views)
            rounds = options.rounds if views == 1 else max(options.rounds // 4, 2)
            times = [
                [seconds(run, head, *episodes, WAY * views) for run in (one_by_one, at_once)]
                for _ in range(rounds + 1)
            ]
            loop, batch = (min(column) for column in zip(*times[1:], strict=True))  # the first warms up
            if views == 1:
                worst = min(worst, loop / batch)
            print(f"{name:9} {views:5} {loop * 1e3:8.2f} {batch * 1e3:8.2f} {loop / batch:6.1f}", flush=True)
    verdict = "met" if worst >= TARGET else "missed"
    print(f"least ratio of plain episodes {worst:.1f}, target {TARGET:g}: {verdict}")


if __name__ == "__main__":
    main()
