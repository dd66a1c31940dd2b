"""What every request must pass and every answer has: host and origin, the size of bodies, safe headers."""

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sla.serve.limits import too_large

HEADERS = {
    # No script, style or picture but the server's own, and the pictures that a person chose.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' blob: data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class HostRule:
    """By which names the server may be called.

    Against DNS rebinding: a page whose own name resolves to this address sends that name. Addresses cannot be
    rebound, so any is allowed where the server is open to others.
    """

    def __init__(self, host: str = "127.0.0.1", names: Iterable[str] = ()) -> None:
        self.given = {name.lower() for name in names}
        self.names = {"localhost", host.lower(), *self.given}
        self.is_open = not is_loopback(host)

    def allows(self, host: str) -> bool:
        """Whether a Host header is one of ours."""
        name = _host_name(host)
        return name in self.names or (_is_number(name) and (self.is_open or is_loopback(name)))

    def allows_origin(self, origin: str, host: str) -> bool:
        """Whether a page of this origin is ours: a proxy may have replaced the Host header by its own."""
        place = origin.partition("://")[2]
        return place.lower() == host.lower() or _host_name(place) in self.given


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class Guard:
    """An ASGI application around another one."""

    def __init__(self, app: ASGIApp, rule: HostRule, most_bytes: int, most_held: int) -> None:
        self.app, self.rule, self.most_bytes, self.most_held = app, rule, most_bytes, most_held
        self.held = 0  # bytes of all bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse with one line of JSON, or pass on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        seen = 0

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            size = len(message.get("body", b""))
            seen += size
            self.held += size
            if seen > self.most_bytes:
                raise HTTPException(413, too_large(self.most_bytes))
            if self.held > self.most_held:
                raise HTTPException(
                    503, "too many uploads at once: try again in a second", {"Retry-After": "1"}
                )
            return message

        async def protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        if refused := self._refusal(scope["method"], Headers(scope=scope)):
            code, why = refused
            answer = JSONResponse({"error": why}, code, headers={"Connection": "close"})
            await answer(scope, receive, protected)
        else:
            try:
                await self.app(scope, counted, protected)
            finally:
                self.held -= seen

    def _refusal(self, method: str, headers: Headers) -> tuple[int, str] | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self.rule.allows(hosts[0]):
            named = " and ".join(hosts)[:100] or "none"
            return 421, f"unknown host name {named!r}; sla serve --allow-host NAME allows it"
        origin = headers.get("origin")
        if origin is not None and not self.rule.allows_origin(origin, hosts[0]):
            return 403, f"a page of {origin[:100]!r} may not use this server"
        site = headers.get("sec-fetch-site", "none")
        is_link = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
        if site not in ("same-origin", "none") and not is_link:
            return 403, "a page of another site may not use this server"
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 18 or int(length) > self.most_bytes:
            return 413, too_large(self.most_bytes)
        return None


def _host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _is_number(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
