"""Memory of one training step of PyramidNet-200 (alpha 240) with SLA+SD, four views of each image.

    python benchmarks/memory.py

Each row is a process of its own, whose highest resident memory counts: as it is, with the blocks' insides
computed again (`checkpointing`), and with the batch in parts besides (`accumulate`). Writes
results/memory.csv and the table in docs/training.md. Some minutes on two cores.
"""

import resource
import subprocess
import sys
import time

from tables import Table

SIZE, CLASSES = 32, 100
ROWS = ((4, False, 1), (4, True, 1), (16, True, 1), (16, True, 4))  # images of a step, checkpointing, parts
COLUMNS = ("images", "checkpointing", "parts", "gigabytes", "seconds", "commit")
TABLE = Table("memory", "docs/training.md", COLUMNS)


def take_step(images: int, checkpointing: bool, parts: int) -> None:
    """One step by the parts of a batch; prints gigabytes and seconds."""
    import torch

    import sla

    torch.manual_seed(0)
    model = sla.create("pyramidnet200_240", CLASSES, checkpointing=checkpointing).train()
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    batch, targets = torch.randn(images, 3, SIZE, SIZE), torch.randint(CLASSES, (images,))
    start = time.monotonic()
    for piece, labels in zip(batch.chunk(parts), targets.chunk(parts), strict=True):
        (model.losses(piece, labels)["loss"] / parts).backward()
    optimizer.step()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"{peak / 1e9:.2f} {time.monotonic() - start:.0f}")


def main() -> None:
    from sla.runs.result import find_commit

    if sys.argv[1:]:
        images, checkpointing, parts = map(int, sys.argv[1:])
        take_step(images, bool(checkpointing), parts)
        return
    rows = []
    for images, checkpointing, parts in ROWS:
        words = [sys.executable, __file__, str(images), str(int(checkpointing)), str(parts)]
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        cells = (images, checkpointing, parts, *said.split(), find_commit())
        rows.append(dict(zip(COLUMNS, cells, strict=True)))
        print(*cells, sep="  ", flush=True)
    TABLE.write(rows)
    TABLE.show(render)


def render(rows: list[dict[str, str]]) -> str:
    """A line a row."""
    lines = ["| images x 4 views | `checkpointing` | `accumulate` | gigabytes |", "|--:|---|--:|--:|"]
    for row in rows:
        lines.append(f"| {' | '.join(row[name].lower() for name in COLUMNS[:4])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
