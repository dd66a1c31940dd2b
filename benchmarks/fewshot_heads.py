"""Few-shot heads: all episodes of a step at once against a loop over them, side by side in one run.

    python benchmarks/fewshot_heads.py [--rounds 20] [--threads N]

Every round times both ways in turn, forward and backward, on 8 episodes of 5 ways and 5 shots with 6 queries,
plain and with the joint labels of four views. The target is 3 times for the plain episodes; with four views
the SVM's systems (100 x 100, 20 of them an episode) are so large that there is little to gain. Writes
results/fewshot_heads.csv and the table in docs/fewshot.md. On a machine with nothing else to do, a minute.
"""

import argparse
import time

import torch
from tables import Table

from sla.labels import join_labels
from sla.runs.result import find_commit
from sla.tasks.fewshot.heads import HEADS, create_head
from sla.tasks.fewshot.loss import smoothed_cross_entropy

EPISODES, WAY, SHOT, QUERY, WIDTH, TARGET = 8, 5, 5, 6, 64, 3.0
COLUMNS = ("head", "views", "threads", "loop_milliseconds", "batch_milliseconds", "ratio", "commit")
TABLE = Table("fewshot_heads", "docs/fewshot.md", COLUMNS)


def make_episodes(views):
    stream = torch.Generator().manual_seed(0)
    support = torch.randn(EPISODES, WAY * SHOT * views, WIDTH, generator=stream)
    query = torch.randn(EPISODES, WAY * QUERY * views, WIDTH, generator=stream)
    targets, wanted = (torch.arange(WAY).repeat_interleave(count) for count in (SHOT, QUERY))
    targets, wanted = (join_labels(some, views).expand(EPISODES, -1) for some in (targets, wanted))
    return support.requires_grad_(), targets, query.requires_grad_(), wanted


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
    rows = []
    for views in (1, 4):
        for name in HEADS:
            head, episodes = create_head(name), make_episodes(views)
            rounds = options.rounds if views == 1 else max(options.rounds // 4, 2)
            times = [
                [seconds(run, head, *episodes, WAY * views) for run in (one_by_one, at_once)]
                for _ in range(rounds + 1)
            ]
            loop, batch = (min(column) for column in zip(*times[1:], strict=True))  # the first warms up
            numbers = (f"{number:.2f}" for number in (loop * 1e3, batch * 1e3, loop / batch))
            cells = (name, views, options.threads, *numbers, find_commit())
            rows.append(dict(zip(COLUMNS, cells, strict=True)))
            print(*cells, sep="  ", flush=True)
    TABLE.write([*(row for row in TABLE.read() if row["threads"] != str(options.threads)), *rows])
    TABLE.show(render)


def render(rows):
    """How many times faster all episodes are at once, plain and with four views."""
    found = {(row["head"], row["views"], row["threads"]): float(row["ratio"]) for row in rows}
    threads = list(dict.fromkeys(row["threads"] for row in rows))
    kinds = [(views, count) for count in threads for views in ("1", "4")]
    names = {"1": "plain", "4": "four views"}
    heads = [f"{names[views]}, {count} thread{'s' if count != '1' else ''}" for views, count in kinds]
    lines = ["| times faster | " + " | ".join(heads) + " |", "|---|" + "--:|" * len(kinds)]
    for head in dict.fromkeys(row["head"] for row in rows):
        lines.append(f"| {head} | " + " | ".join(f"{found[head, *kind]:.1f}" for kind in kinds) + " |")
    least = min(ratio for (_, views, _), ratio in found.items() if views == "1")
    verdict = "met" if least >= TARGET else "missed"
    lines += [
        "",
        f"The smallest speed-up without views is {least:.1f}; the target, {TARGET:g}, is {verdict}.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
