"""Serve a trained run: `python serve.py RUN --port 8000`, then POST a picture to localhost and get JSON.

    curl --data-binary @picture.jpg http://127.0.0.1:8000

Pictures are resized and normalised as in training; probabilities are calibrated. Needs sla itself;
`serve_onnx.py` serves an exported model with onnxruntime and numpy alone.
"""

import argparse
import io
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from PIL import Image, ImageOps, UnidentifiedImageError

import sla

MOST_BYTES = 32 << 20


def classify(run, data, top=3):
    """The most likely classes of a picture, from the bytes of its file."""
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    probabilities = run.predict([image]).probabilities[0]
    best = probabilities.topk(min(top, len(run.classes)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [{"class": run.classes[number], "probability": round(value, 4)} for number, value in pairs]


def handler(run):
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            try:
                length = int(self.headers.get("Content-Length", 0))
                if not 0 < length <= MOST_BYTES:
                    raise ValueError(f"a picture has from 1 to {MOST_BYTES} bytes, not {length}")
                code, answer = 200, {"classes": classify(run, self.rfile.read(length))}
            except (ValueError, OSError, UnidentifiedImageError) as error:
                code, answer = 400, {"error": str(error)}
            body = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve a run of sla on localhost.")
    parser.add_argument("run")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args()
    with ThreadingHTTPServer(("127.0.0.1", given.port), handler(sla.Run(given.run))) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()
