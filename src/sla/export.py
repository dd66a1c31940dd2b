"""A trained run as ONNX: one kind of inference, with class names and preprocessing in its metadata."""

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sla.disk import replacing
from sla.errors import MissingExtraError, SLAError

if TYPE_CHECKING:
    from sla.training.run import Run

TOLERANCE = 1e-4  # between the exported model's probabilities and the run's


class _Inference(nn.Module):
    """Normalised images (B, C, S, S) -> calibrated probabilities (B, N)."""

    def __init__(self, run: "Run", how: str) -> None:
        super().__init__()
        self.model, self.how, self.temperature = run.model, how, run.temperatures.get(how, 1.0)

    def forward(self, images: Tensor) -> Tensor:
        return (self.model.logits(images, self.how) / self.temperature).softmax(-1)


def export_onnx(run: "Run", path: Path, how: str | None = None) -> None:
    """Write `path`, its batch dynamic; checked against the run by onnxruntime before it takes its place."""
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  # torch's exporter needs it
    except ImportError:
        raise MissingExtraError("export", "export") from None
    how = how or run.model.method.headline
    module = _Inference(run, how).eval()
    about = run.model.about["preprocessing"]
    channels = run.config.model.options.get("in_channels", 3)
    example = torch.randn(3, channels, about["resolution"], about["resolution"])
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "model.onnx"
        torch.onnx.export(
            module,
            (example,),
            target,
            input_names=["images"],
            output_names=["probabilities"],
            dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
            dynamo=True,
            external_data=False,
            verbose=False,
        )
        exported = onnx.load(target)
        described = {
            "classes": run.classes,
            "inference": how,
            "preprocessing": about,
            "output": "probabilities",
        }
        for key, value in described.items():
            exported.metadata_props.add(key=key, value=value if isinstance(value, str) else json.dumps(value))
        data = exported.SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    for batch in (example[:1], example, torch.randn(5, *example.shape[1:])):
        with torch.inference_mode():
            expected = module(batch)
        found = torch.from_numpy(session.run(None, {"images": batch.numpy()})[0])
        if not torch.allclose(found, expected, atol=TOLERANCE):
            gap = (found - expected).abs().max().item()
            raise SLAError(f"the exported model differs from the run by {gap:.1e}: nothing was written")
    with replacing(path) as file:
        file.write(data)
