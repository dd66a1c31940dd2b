"""The server of `sla serve` inside a program of your own: `python serve.py RUN --port 8000`.

    curl --data-binary @picture.jpg http://127.0.0.1:8000/pictures/api/predict

On the command line `sla serve RUN` is all you need. Here it is one part of another application, which has a
route of its own. Needs the extra `serve`; `serve_onnx.py` serves an exported model without torch.
"""

import argparse
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

import sla
from sla.serve.app import create_app


async def hello(request):
    return PlainTextResponse("a program of your own")


def make_app(folder):
    pictures = create_app(sla.Run(folder), min_confidence=0.9)

    @asynccontextmanager
    async def lifespan(app):
        async with pictures.router.lifespan_context(
            pictures
        ):  # a mounted application is not started by itself
            yield

    return Starlette(routes=[Route("/", hello), Mount("/pictures", pictures)], lifespan=lifespan)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve a run of sla as part of a program.")
    parser.add_argument("run")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args()
    uvicorn.run(make_app(given.run), port=given.port)
