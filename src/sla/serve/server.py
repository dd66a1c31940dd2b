"""Runs the application until Ctrl-C."""

import signal
import socket

from starlette.applications import Starlette

from sla.disk import reason
from sla.errors import InputError, MissingExtraError

try:
    import uvicorn
except ImportError:
    raise MissingExtraError("sla serve", "serve") from None

BACKLOG = 256  # connections that wait to be accepted


def bind(host: str, port: int) -> socket.socket:
    """A socket that accepts connections; 0 is any free port."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(BACKLOG)  # from here on a client waits instead of being refused
    except OSError as error:
        hint = "; --port 0 takes any free one" if port else ""
        raise InputError(f"cannot listen on {host} port {port}: {reason(error)}{hint}") from None
    return found


def address_of(listening: socket.socket) -> str:
    """The URL of a server's socket."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def serve(app: Starlette, listening: socket.socket) -> None:
    """Answer requests until Ctrl-C or SIGTERM, which end it alike; open requests get a few seconds."""
    # uvicorn raises the signal again when it has ended: as KeyboardInterrupt, whichever it was.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nobody may say that a request came from elsewhere
        timeout_graceful_shutdown=3,
    )
    try:
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        signal.signal(signal.SIGTERM, before)
        listening.close()
