"""The web application: a page, and the same answers as JSON."""

import asyncio
import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from sla.errors import InputError, MissingExtraError, SLAError, listed, shown
from sla.images.decode import BadImageError
from sla.images.store import Pixels
from sla.progress import QUIET, Progress
from sla.serve.limits import HELD_BYTES, MOST_REQUESTS, REQUEST_BYTES
from sla.serve.service import Service
from sla.serve.worker import BusyError
from sla.tasks.classifier.run import Run

try:
    import python_multipart  # noqa: F401  # starlette needs it for forms, and says so only then
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, JSONResponse, Response
    from starlette.routing import Route

    from sla.serve.guard import Guard, HostRule
    from sla.serve.uploads import Upload, reading_uploads
except ImportError:
    raise MissingExtraError("sla serve", "serve") from None

TOP = 3  # classes in an answer
SHOWN_CLASSES = 12  # at the top of the page
PLACE = re.compile("[0-9]{1,12}")  # of a training picture
STATIC = {"css": ("base.css", "style.css"), "javascript": ("choose.js", "page.js")}


def create_app(
    run: Run,
    *,
    inference: str | None = None,
    min_confidence: float = 0.5,
    nearest: int = 4,
    host: str = "127.0.0.1",
    allow_hosts: Iterable[str] = (),
    progress: Progress = QUIET,
) -> Starlette:
    """An ASGI application that serves a run, for uvicorn or any other server.

    Args:
        run: an opened run of a classifier; from then on the application alone uses its model.
        inference: single, aggregated or distilled; by default the run's headline.
        min_confidence: the answer is `unsure` below this probability, unless a request says another one.
        nearest: how many of the nearest training pictures an answer has; 0 for none.
        host: where the server listens; only requests to this name or address are answered.
        allow_hosts: further names by which it may be called, such as that of a proxy.
        progress: how far the features of the training pictures are.
    """
    service = Service(run, inference, min_confidence, nearest, progress)
    routes = [
        Route("/", _page),
        Route("/static/{name}", _static),
        Route("/nearest/{place}", _thumbnail),
        Route("/api/health", _health),
        Route("/api/info", _info),
        Route("/api/predict", _predict, methods=["POST"]),
        Route("/api/corrections", _correct, methods=["POST"]),
    ]
    app = Starlette(
        routes=routes,
        lifespan=service.lifespan,
        middleware=[
            Middleware(
                Guard, rule=HostRule(host, allow_hosts), most_bytes=REQUEST_BYTES, most_held=HELD_BYTES
            )
        ],
        exception_handlers={HTTPException: _refuse, SLAError: _refuse},
    )
    app.state.service = service
    return app


def _service(request: Request) -> Service:
    found: Service = request.app.state.service
    return found


async def _page(request: Request) -> Response:
    info = _service(request).info()
    classes = listed([shown(name) for name in info["classes"]], SHOWN_CLASSES)
    return HTMLResponse(_template().render(info=info, classes=classes))


@cache
def _template() -> Template:
    loader = PackageLoader("sla.serve")
    found = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return found.get_template("page.html")


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    kinds = [kind for kind, names in STATIC.items() if name in names]
    if not kinds:
        raise HTTPException(404, "nothing of this name")
    return Response(_packaged(name), media_type=f"text/{kinds[0]}")


@cache
def _packaged(name: str) -> str:
    """The text of one of our files; the style of reports is the base of that of the page."""
    file = files("sla.report") / "style.css" if name == "base.css" else files("sla.serve") / "static" / name
    return file.read_text(encoding="utf-8")


async def _thumbnail(request: Request) -> Response:
    nearest, place = _service(request).nearest, request.path_params["place"]
    known = None if nearest is None else nearest.found
    # The number as text: Python refuses to convert thousands of digits.
    if known is None or not PLACE.fullmatch(place) or int(place) >= len(known.thumbnails):
        raise HTTPException(404, "no such training picture")
    data = known.thumbnails[int(place)]
    kind = "image/png" if data.startswith(b"\x89PNG") else "image/jpeg"
    return Response(data, media_type=kind, headers={"Cache-Control": "private, max-age=3600"})


async def _health(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _info(request: Request) -> Response:
    return JSONResponse(_service(request).info())


async def _predict(request: Request) -> Response:
    service = _service(request)
    least = _number(request, "min_confidence", service.min_confidence, 0.0, 1.0)
    top = int(_number(request, "top", TOP, 1, len(service.run.classes), whole=True))
    # An upload may be slow: until it is here, it takes nothing that others wait for.
    async with reading_uploads(request) as uploads:
        if service.requests >= MOST_REQUESTS:
            raise BusyError(f"{MOST_REQUESTS} requests wait already: try again in a second")
        service.requests += 1
        try:
            async with service.decoding:
                pictures = [await _decode(service, one) for one in uploads.pictures]
            found = await asyncio.gather(*(_answer(service, one, least, top) for one in pictures))
        finally:
            service.requests -= 1
    if uploads.is_form:  # what is wrong with one picture does not fail the others
        names = (one.name for one in uploads.pictures)
        return JSONResponse(
            {"pictures": [{"file": name, **one} for name, one in zip(names, found, strict=True)]}
        )
    return JSONResponse(found[0], 400 if "error" in found[0] else 200)


async def _decode(service: Service, upload: Upload) -> Pixels | BadImageError:
    try:
        return await service.decode(await upload.read())
    except BadImageError as error:
        return error


async def _answer(service: Service, pixels: Pixels | BadImageError, least: float, top: int) -> dict[str, Any]:
    if isinstance(pixels, BadImageError):
        return {"error": pixels.reason}
    return service.describe(await service.classify(pixels), least, top)


async def _correct(request: Request) -> Response:
    service = _service(request)
    async with reading_uploads(request) as uploads:
        label = uploads.fields.get("label")
        if label is None or len(uploads.pictures) != 1:
            raise InputError("a correction is a form with one picture and a field `label`")
        service.corrections.check_label(label)
        async with service.decoding:
            data = await uploads.pictures[0].read()
            await service.decode(data)  # only what can be trained on is kept
    path = await service.correct(data, label)
    return JSONResponse({"path": path, "label": label, "note": service.corrections.note(label)})


def _number(
    request: Request, name: str, default: float, low: float, high: float, whole: bool = False
) -> float:
    """A number of the query."""
    text = request.query_params.get(name)
    if text is None:
        return min(default, high)
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high or (whole and value != int(value)):
        kind = "a whole number" if whole else "a number"
        raise InputError(f"{name} is {kind} from {low:g} to {high:g}, not {shown(text)[:40]!r}")
    return value


def _refuse(request: Request, error: Exception) -> Response:
    """Every refusal is one line of JSON."""
    headers: dict[str, str] = {}
    if isinstance(error, HTTPException):
        code, why, headers = error.status_code, error.detail, dict(error.headers or {})
    elif isinstance(error, BusyError):
        code, why, headers = 503, str(error), {"Retry-After": "1"}
    else:
        code = 400 if isinstance(error, InputError) else 500
        why = error.reason if isinstance(error, BadImageError) else str(error)
    return JSONResponse({"error": why}, code, headers=headers)
