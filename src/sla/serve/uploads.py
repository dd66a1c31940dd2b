"""Pictures in a request: its body is one, or a form has several. Their number and sizes are bounded."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from sla.errors import InputError, shown
from sla.images.decode import BadImageError
from sla.serve.limits import (
    FIELD_BYTES,
    LONGEST_NAME,
    MOST_FIELDS,
    MOST_PICTURES,
    PICTURE_BYTES,
    SECONDS,
    too_large,
)


@dataclass(frozen=True)
class Upload:
    """A file as it was sent, in memory or, as part of a form, perhaps in a temporary file."""

    source: bytes | UploadFile

    @property
    def name(self) -> str:
        """To be shown; never used as a path."""
        name = "" if isinstance(self.source, bytes) else self.source.filename or ""
        return shown(name)[:LONGEST_NAME]

    async def read(self) -> bytes:
        """The whole file; refused if it is too large."""
        if isinstance(self.source, bytes):
            return self.source
        if (self.source.size or 0) > PICTURE_BYTES:
            raise BadImageError(self.name, too_large(PICTURE_BYTES))
        return await self.source.read()


@dataclass(frozen=True)
class Uploads:
    """What a request brings: one picture as its body, or a form of pictures and other fields."""

    pictures: list[Upload]
    fields: dict[str, str]
    is_form: bool


@asynccontextmanager
async def reading_uploads(request: Request) -> AsyncIterator[Uploads]:
    """The whole request, to be used inside the block; refused when it has no picture, or too much."""
    try:
        async with asyncio.timeout(SECONDS):
            form, body = await _receive(request)
    except TimeoutError:
        raise HTTPException(408, f"the upload did not end within {SECONDS:.0f} seconds") from None
    except ClientDisconnect:
        raise HTTPException(400, "the upload was broken off") from None  # nobody is there to read it
    if form is None:
        yield Uploads([Upload(body)], {}, False)
        return
    try:
        files = [Upload(value) for _, value in form.multi_items() if isinstance(value, UploadFile)]
        if not files:
            raise InputError("no picture in the form: each is a field with a file name")
        yield Uploads(files, {name: text for name, text in form.items() if isinstance(text, str)}, True)
    finally:
        await form.close()


async def _receive(request: Request) -> tuple[FormData | None, bytes]:
    if request.headers.get("content-type", "").startswith("multipart/form-data"):
        form = await request.form(max_files=MOST_PICTURES, max_fields=MOST_FIELDS, max_part_size=FIELD_BYTES)
        return form, b""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > PICTURE_BYTES:
            raise HTTPException(413, too_large(PICTURE_BYTES))
    return None, bytes(data)
