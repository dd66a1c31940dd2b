"""Every kind of picture comes out upright in three 8-bit channels; what is none says so in one line."""

import io
import pickle
import struct
import threading
import warnings

import numpy as np
import pytest
from PIL import Image, ImageOps

from made_images import png
from refusals import fails
from sla.errors import InputError
from sla.images.decode import BadImageError, decode_array, open_rgb, read_format, read_size, shown


def gradient(height=6, width=8):
    """uint8 (H, W, 3) without any symmetry."""
    y, x = np.mgrid[:height, :width]
    colours = x * 255 // (width - 1), y * 255 // (height - 1), (x * 3 + y * 7) % 256
    return np.stack(colours, 2).astype(np.uint8)


def save(path, image, **options):
    image.save(path, **options)
    return path


def read(path):
    image = open_rgb(path)
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.mark.parametrize("extension", ["png", "bmp", "tiff", "ppm", "webp"])
def test_lossless_rgb_is_kept_to_the_byte(tmp_path, extension):
    options = {"lossless": True, "exact": True} if extension == "webp" else {}
    path = save(tmp_path / f"a.{extension}", Image.fromarray(gradient()), **options)
    assert (read(path) == gradient()).all()
    assert read_size(path) == (6, 8)


@pytest.mark.parametrize("mode", ["L", "1"])
def test_greyscale_fills_three_channels(tmp_path, mode):
    grey = Image.fromarray(gradient()[:, :, 0]).convert(mode)
    got = read(save(tmp_path / "a.png", grey))
    expected = np.asarray(grey).astype(np.uint8) * (255 if mode == "1" else 1)
    assert (got == expected[:, :, None]).all()


def test_palette_colours(tmp_path):
    image = Image.fromarray(np.array([[0, 1], [2, 1]], np.uint8), "P")
    image.putpalette([255, 0, 0, 0, 255, 0, 10, 20, 30])
    for extension in ("png", "gif"):
        got = read(save(tmp_path / f"a.{extension}", image))
        assert got.tolist() == [[[255, 0, 0], [0, 255, 0]], [[10, 20, 30], [0, 255, 0]]]


@pytest.mark.parametrize("transparency", [1, bytes([255, 0, 128])])
def test_transparent_palette_entries_lie_on_white(tmp_path, transparency):
    image = Image.fromarray(np.array([[0, 1, 2]], np.uint8), "P")
    image.putpalette([255, 0, 0, 0, 255, 0, 10, 20, 30])
    got = read(save(tmp_path / "a.png", image, transparency=transparency))
    third = [10, 20, 30] if transparency == 1 else [132, 137, 142]  # half way to white
    assert np.abs(got[0].astype(int) - [[255, 0, 0], [255, 255, 255], third]).max() <= 1


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_alpha_is_composited_on_white(tmp_path, mode):
    colour = gradient() if mode == "RGBA" else gradient()[:, :, :1]
    alpha = (np.arange(48).reshape(6, 8, 1) * 5).astype(np.uint8)
    got = read(save(tmp_path / "a.png", Image.fromarray(np.concatenate([colour, alpha], 2), mode)))
    share = alpha / 255
    assert np.abs(got - (colour * share + 255 * (1 - share))).max() <= 1


def test_a_transparent_colour_of_an_rgb_image_becomes_white(tmp_path):
    image = Image.fromarray(np.array([[[1, 2, 3], [4, 5, 6]]], np.uint8))
    assert read(save(tmp_path / "a.png", image, transparency=(1, 2, 3))).tolist() == [[[255] * 3, [4, 5, 6]]]


@pytest.mark.parametrize("extension", ["png", "tiff", "pgm"])
def test_sixteen_bits_are_scaled_not_clipped(tmp_path, extension):
    values = np.array([[0, 256, 257, 32768], [40000, 65278, 65534, 65535]], np.uint16)
    got = read(save(tmp_path / f"a.{extension}", Image.fromarray(values)))
    assert (got[:, :, 0] == np.round(values / 65535 * 255)).all()
    assert (got == got[:, :, :1]).all()


def test_big_endian_sixteen_bit_tiff(tmp_path):
    values = np.array([[0, 1000], [30000, 65535]], np.uint16)
    fields = {256: (3, 2), 257: (3, 2), 258: (3, 16), 259: (3, 1), 262: (3, 1)}
    fields |= {273: (4, 200), 278: (3, 2), 279: (4, 8)}
    data = b"MM\0*" + struct.pack(">IH", 8, len(fields))
    for tag, (kind, value) in fields.items():
        held = struct.pack(">HH", value, 0) if kind == 3 else struct.pack(">I", value)
        data += struct.pack(">HHI", tag, kind, 1) + held
    path = tmp_path / "a.tif"
    path.write_bytes((data + b"\0" * 4).ljust(200, b"\0") + values.astype(">u2").tobytes())
    assert (read(path)[:, :, 0] == np.round(values / 65535 * 255)).all()


def test_sixteen_bit_colour_png(tmp_path):
    colours = gradient().astype(np.uint16) * 257
    raw = b"".join(b"\0" + row.astype(">u2").tobytes() for row in colours)
    (tmp_path / "a.png").write_bytes(png(8, 6, raw, bits=16))
    assert (read(tmp_path / "a.png") == gradient()).all()


def test_thirty_two_bit_and_float_use_their_range(tmp_path):
    deep = Image.fromarray(np.array([[-100_000, 0], [100_000, 300_000]], np.int32))
    assert read(save(tmp_path / "a.tif", deep))[:, :, 0].tolist() == [[0, 64], [128, 255]]
    unit = Image.fromarray(np.array([[0.0, 0.2], [0.5, 0.8]], np.float32))
    assert read(save(tmp_path / "b.tif", unit))[:, :, 0].tolist() == [[0, 51], [128, 204]]
    wide = Image.fromarray(np.array([[-1.0, 0.0], [1.0, np.nan]], np.float32))
    assert read(save(tmp_path / "c.tif", wide))[:, :, 0].tolist() == [[0, 128], [255, 128]]
    endless = Image.fromarray(np.array([[2.0, 4.0], [np.inf, -np.inf]], np.float32))
    assert read(save(tmp_path / "e.tif", endless))[:, :, 0].tolist() == [[0, 255], [255, 0]]
    flat = Image.fromarray(np.full((2, 2), 5e6, np.float32))
    assert read(save(tmp_path / "d.tif", flat)).shape == (2, 2, 3)


def test_transparent_grey_of_sixteen_bits_becomes_white(tmp_path):
    image = Image.fromarray(np.array([[0, 300, 65535]], np.uint16))
    path = save(tmp_path / "a.png", image, transparency=300)
    assert read(path)[:, :, 0].tolist() == [[0, 255, 255]]


@pytest.mark.parametrize("extension", ["tiff", "jpg"])
def test_cmyk_becomes_the_colours_it_prints(tmp_path, extension):
    ink = np.zeros((16, 16, 4), np.uint8)
    ink[:, :, 0], ink[:, :, 3] = 255, 51  # full cyan and a fifth of black: no red, four fifths of the rest
    options = {"quality": 100} if extension == "jpg" else {}  # Pillow writes Adobe's inverted kind
    path = save(tmp_path / f"a.{extension}", Image.fromarray(ink, "CMYK"), **options)
    assert np.abs(read(path).astype(int) - [0, 204, 204]).max() <= 4
    small, _ = decode_array(path, (2, 2))
    assert np.abs(small.astype(int) - np.reshape([0, 204, 204], (3, 1, 1))).max() <= 4


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("extension", ["jpg", "png", "webp", "tiff"])
def test_exif_orientation(tmp_path, orientation, extension):
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if extension == "webp" else {}
    path = save(tmp_path / f"a.{extension}", Image.fromarray(gradient()), exif=exif, **options)
    with Image.open(path) as raw:
        expected = ImageOps.exif_transpose(raw).convert("RGB")
    assert expected.size == ((8, 6) if orientation < 5 else (6, 8))  # the tag was really written
    assert (read(path) == np.asarray(expected)).all()
    pixels, aspect = decode_array(path, (expected.height, expected.width))
    assert aspect == expected.width / expected.height
    assert (pixels.transpose(1, 2, 0) == np.asarray(expected)).all()


def test_damaged_exif_is_ignored(tmp_path):
    path = save(tmp_path / "a.png", Image.fromarray(gradient()), exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    assert (read(path) == gradient()).all()


def test_decode_resizes_the_whole_picture_ignoring_its_aspect_ratio(tmp_path):
    left_red = np.zeros((40, 120, 3), np.uint8)
    left_red[:, :60, 0], left_red[:, 60:, 2] = 255, 255
    path = save(tmp_path / "a.png", Image.fromarray(left_red))
    pixels, aspect = decode_array(path, (10, 10))
    assert (pixels.shape, pixels.dtype, aspect) == ((3, 10, 10), np.uint8, 3.0)
    assert pixels[:, :, 0].T.tolist() == [[255, 0, 0]] * 10
    assert pixels[:, :, 9].T.tolist() == [[0, 0, 255]] * 10
    assert decode_array(path, (7, 13))[0].shape == (3, 7, 13)


def test_decode_is_antialiased(tmp_path):
    checks = np.indices((256, 256)).sum(0) % 2 * 255
    pixels, _ = decode_array(save(tmp_path / "a.png", Image.fromarray(checks.astype(np.uint8))), (16, 16))
    assert np.abs(pixels.astype(int) - 127).max() <= 2  # a fine checkerboard is grey from afar


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_reduced_jpeg_is_close_to_the_full_one(tmp_path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    smooth = Image.fromarray(gradient(16, 16)[:, :, [0, 0, 1]]).resize((1003, 747), Image.Resampling.BICUBIC)
    path = save(tmp_path / "a.jpg", smooth, quality=95, exif=exif)
    pixels, aspect = decode_array(path, (64, 64))
    whole = np.asarray(open_rgb(path).resize((64, 64), Image.Resampling.BICUBIC)).astype(int)
    assert aspect == pytest.approx(1003 / 747 if orientation == 1 else 747 / 1003)
    assert np.abs(pixels.transpose(1, 2, 0) - whole).mean() < 1.0


def test_one_pixel(tmp_path):
    path = save(tmp_path / "a.png", Image.new("RGB", (1, 1), (9, 8, 7)))
    pixels, aspect = decode_array(path, (5, 4))
    assert aspect == 1.0
    assert (pixels == np.reshape([9, 8, 7], (3, 1, 1))).all()


def saved(image, kind):
    held = io.BytesIO()
    image.save(held, kind)
    return held.getvalue()


JPEG, PNG = (saved(Image.fromarray(gradient(200, 200)), kind) for kind in ("jpeg", "png"))
BAD = {  # what is in the file, and what is said of it
    "truncated.jpg": (JPEG[: len(JPEG) // 2], "truncated"),
    "head.jpg": (JPEG[:20], "image"),
    "truncated.png": (PNG[: len(PNG) // 2], "truncated"),
    "text.jpg": (b"hello, I am a letter\n" * 20, "not an image"),
    "empty.jpg": (b"", "empty"),
    "huge.png": (png(100_000, 100_000), "claims 10,000,000,000 pixels"),
    "claims.png": (png(10_000, 10_000), "damaged"),
    "program.jpg": (saved(Image.fromarray(gradient()), "eps"), "not an image"),
    "zeros.bmp": (b"BM" + b"\0" * 100, "image"),
    "line\nbreak.jpg": (b"x", "not an image"),
    "folder.jpg": (None, "directory"),
    "absent.jpg": (None, "no such file"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_that_names_the_file(tmp_path, name):
    path, (content, reason) = tmp_path / name, BAD[name]
    if content is not None:
        path.write_bytes(content)
    elif name == "folder.jpg":
        path.mkdir()
    for reader in (open_rgb, lambda p: decode_array(p, (8, 8))):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(BadImageError) as caught:
                reader(path)
        message = str(caught.value)
        assert reason in message.lower()
        assert shown(path) in message
        assert "\n" not in message
    assert isinstance(caught.value, InputError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == message  # as it comes from a worker


@pytest.mark.parametrize("extension", ["jpg", "png", "gif", "tiff", "webp", "bmp", "ppm"])
def test_damage_of_any_kind_ends_in_a_picture_or_in_one_line(tmp_path, extension):
    rng = np.random.default_rng(0)
    path = save(tmp_path / f"a.{extension}", Image.fromarray(gradient(30, 40)))
    intact, refused = path.read_bytes(), list[str]()
    for _ in range(60):
        damaged = bytearray(intact[: rng.integers(1, len(intact) + 1)])
        for place in rng.integers(0, min(len(damaged), 200), 4):
            damaged[place] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            pixels, aspect = decode_array(path, (8, 8))
        except BadImageError as error:
            refused.append(str(error))
        else:
            assert pixels.shape == (3, 8, 8)
            assert aspect > 0
    assert len(refused) > 20
    assert not any("\n" in message for message in refused)


def test_too_many_pixels_are_refused_before_decoding(tmp_path, monkeypatch):
    path = save(tmp_path / "a.png", Image.fromarray(gradient(20, 30)))
    assert open_rgb(path, max_pixels=600).size == (30, 20)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda self: pytest.fail("decoded"))
    fails(BadImageError, r"claims 600 pixels, more than the 599 allowed", open_rgb, path, max_pixels=599)


def test_pillows_warnings_stay_inside_and_filters_as_they_were(tmp_path, monkeypatch):
    path = save(tmp_path / "a.png", Image.fromarray(gradient(20, 30)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 400)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with Image.open(path):
            pass
        assert [w.category for w in seen] == [Image.DecompressionBombWarning]  # Pillow alone does warn
        before = list(warnings.filters)
        threads = [threading.Thread(target=lambda: [open_rgb(path) for _ in range(50)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(seen) == 1
        assert warnings.filters == before
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    fails(BadImageError, "claims 600 pixels", open_rgb, path)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "GIF", "WEBP", "BMP", "PPM"])
def test_files_in_memory_are_read_as_those_on_disk(tmp_path, kind):
    path = save(tmp_path / "a", Image.fromarray(gradient(60, 80)), format=kind)
    opened = io.BytesIO(path.read_bytes())
    (pixels, aspect), expected = decode_array(opened, (16, 16)), decode_array(path, (16, 16))
    assert (pixels == expected[0]).all()
    assert aspect == expected[1] == pytest.approx(80 / 60)
    assert read_size(io.BytesIO(path.read_bytes())) == (60, 80)
    assert read_format(path) == read_format(io.BytesIO(path.read_bytes())) == kind


def test_a_jpeg_of_several_pictures_is_a_jpeg():
    file, picture = io.BytesIO(), Image.fromarray(gradient(60, 80))
    picture.save(file, "MPO", save_all=True, append_images=[picture])
    assert Image.open(file).format == "MPO"
    assert read_format(file) == "JPEG"


def test_what_is_wrong_with_a_file_in_memory():
    fails(BadImageError, "image: an empty file", decode_array, io.BytesIO(b""), (8, 8))
    named = io.BytesIO(b"text")
    named.name = "a.jpg"
    fails(BadImageError, r"a.jpg: not an image \(JPEG", open_rgb, named)
    fails(BadImageError, "more than the", read_format, io.BytesIO(png(50_000, 50_000)))
