"""Classify pictures with a model from `sla export`, using only onnxruntime and numpy.

    python serve_onnx.py model.onnx picture.ppm picture.npy ...     one line per file: the most likely classes
    python serve_onnx.py model.onnx --port 8000                     POST such a file to localhost, get JSON

Reads .npy arrays, uint8 (H, W, 3) or (H, W), and binary PPM and PGM; JPEG, PNG and others need Pillow. A
model exported with `--preprocessing` takes the decoded picture and predicts the same as `sla predict`. For
one without, `prepare` follows the preprocessing in the model's metadata; for pictures of at least four times
the stored size, pixels differ by a level or two of 255 from those of `sla`.
"""

import argparse
import io
import json
import os
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # before importing onnxruntime, which collects telemetry
import onnxruntime

MOST_BYTES = 64 << 20


class Model:
    """The ONNX file, its classes and its preprocessing: all from the file itself."""

    def __init__(self, path: str) -> None:
        try:
            self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
            metadata = self.session.get_modelmeta().custom_metadata_map
        except Exception as error:  # onnxruntime raises many kinds of errors
            sys.exit(f"{path}: cannot read the model: {str(error).splitlines()[0]}")
        if "classes" not in metadata or "preprocessing" not in metadata:
            sys.exit(f"{path}: not a model that `sla export` wrote")
        self.classes = json.loads(metadata["classes"])
        self.preprocessing = json.loads(metadata["preprocessing"])

    def classify(self, picture: np.ndarray, top: int = 3) -> list[tuple[str, float]]:
        """The most likely classes of a picture, uint8 (H, W, 3), with their probabilities."""
        images = picture if self.preprocessing["in_graph"] else prepare(picture, self.preprocessing)
        (probabilities,) = self.session.run(None, {"images": images[None]})
        best = np.argsort(-probabilities[0])[:top]
        return [(self.classes[number], float(probabilities[0, number])) for number in best]


def prepare(picture: np.ndarray, preparation: dict) -> np.ndarray:
    """uint8 (H, W, 3) -> float32 (C, S, S), by the model's metadata."""
    stored, size, crop = preparation["squeeze"]["size"], preparation["resolution"], preparation["crop"]
    height, width = picture.shape[:2]
    rows, columns = weights(0, 1, height, stored, cubic), weights(0, 1, width, stored, cubic)
    pixels = picture.transpose(2, 0, 1)
    if height - stored > max(2 * (width - stored), 0):  # when Pillow 13 resizes the rows first
        pixels = to_levels(to_levels(rows @ pixels) @ columns.T)
    else:
        pixels = to_levels(rows @ to_levels(pixels @ columns.T))
    if preparation["channels"] == "grey":
        pixels = np.einsum("chw,c->hw", pixels, (0.299, 0.587, 0.114)).round()[None]
    if crop["rule"] == "center_window":
        edge = max(size - stored, 0)
        pixels = np.pad(pixels, ((0, 0), *[(edge // 2, edge - edge // 2)] * 2))
        start = max((stored - size + 1) // 2, 0)
        pixels = pixels[:, start : start + size, start : start + size]
    elif crop["rule"] != "none":
        share = crop.get("share")
        high, wide = (share * min(width / height, 1), share * min(height / width, 1)) if share else (1, 1)
        rows = weights((1 - high) / 2, high, stored, size, linear)
        columns = weights((1 - wide) / 2, wide, stored, size, linear)
        pixels = to_levels(rows @ pixels @ columns.T)
    mean, std = (np.array(preparation[name])[:, None, None] for name in ("mean", "std"))
    return ((pixels / 255 - mean) / std).astype(np.float32)


def weights(start: float, length: float, source: int, size: int, kernel) -> np.ndarray:
    """(size, source): weight of each source pixel in each new one; the kernel widens when shrinking."""
    scale = length * source / size
    centre = start * source + (np.arange(size) + 0.5) * scale
    weight = kernel(abs(np.arange(source) + 0.5 - centre[:, None]) / max(scale, 1))
    return weight / weight.sum(1, keepdims=True)


def linear(away: np.ndarray) -> np.ndarray:
    return np.maximum(1 - away, 0)


def cubic(away: np.ndarray) -> np.ndarray:
    far = np.where(away < 2, -0.5 * (((away - 5) * away + 8) * away - 4), 0)
    return np.where(away < 1, (1.5 * away - 2.5) * away * away + 1, far)


def to_levels(pixels: np.ndarray) -> np.ndarray:
    return np.floor(pixels + 0.5).clip(0, 255)


def read(data: bytes) -> np.ndarray:
    """The bytes of a picture's file -> uint8 (H, W, 3); a ValueError says what is wrong."""
    header = re.match(rb"P([56])\s(?:\s*#[^\n]*\n)*\s*(\d+)\s+(\d+)\s+255\s", data)
    if data.startswith(b"\x93NUMPY"):
        picture = np.load(io.BytesIO(data), allow_pickle=False)
    elif header:
        width, height, channels = int(header[2]), int(header[3]), 3 if header[1] == b"6" else 1
        pixels = np.frombuffer(data, np.uint8, height * width * channels, header.end())
        picture = pixels.reshape(height, width, channels)
    else:
        picture = decode(data)
    if picture.ndim == 2:
        picture = picture[:, :, None]
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] not in (1, 3) or not picture.size:
        raise ValueError(f"a picture is uint8 (H, W, 3) or (H, W), not {picture.dtype} {picture.shape}")
    return np.ascontiguousarray(np.broadcast_to(picture, (*picture.shape[:2], 3)))


def decode(data: bytes) -> np.ndarray:
    """Decode with Pillow: apply the EXIF rotation, and put transparent pixels on white."""
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise ValueError("not .npy, PPM or PGM; other formats need Pillow") from None
    try:
        image = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGBA")
    except Exception as error:
        raise ValueError(f"not a picture: {error}") from None
    return np.asarray(Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB"))


def serve(model: Model, port: int) -> None:
    """Answer each POST with the most likely classes of the picture in its body, until Ctrl-C."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the name that http.server calls
            try:
                length = int(self.headers.get("Content-Length", 0))
                if not 0 < length <= MOST_BYTES:
                    raise ValueError(f"a picture has from 1 to {MOST_BYTES} bytes, not {length}")
                found = model.classify(read(self.rfile.read(length)))
                code, answer = 200, {"classes": [{"class": n, "probability": p} for n, p in found]}
            except ValueError as error:
                code, answer = 400, {"error": str(error)}
            body = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description="Classify pictures with a model that sla exported.")
    parser.add_argument("model")
    parser.add_argument("pictures", nargs="*")
    parser.add_argument("--port", type=int, help="serve on this port of localhost; 0: any")
    given = parser.parse_args()
    model = Model(given.model)
    for path in given.pictures:
        try:
            with open(path, "rb") as file:
                found = model.classify(read(file.read()))
        except (OSError, ValueError) as error:
            sys.exit(f"{path}: {error}")
        print(path, *(f"{name} {100 * probability:.1f}%" for name, probability in found), sep="\t")
    if given.port is not None:
        serve(model, given.port)


if __name__ == "__main__":
    main()
