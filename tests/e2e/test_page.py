"""The page at / in a headless browser."""

import shutil
import struct
import subprocess
import zlib

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


def browse(tmp_path, url: str, *flags: str) -> str:
    result = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         "--hide-scrollbars", f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1280,900",
         "--virtual-time-budget=6000", *flags, url],
        capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout


def pixels(png: bytes) -> set[bytes]:
    """The distinct colours of an 8-bit RGB or RGBA picture."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, data, width, colour = 8, b"", 0, 0
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at:at + 8])
        if kind == b"IHDR":
            width, _, depth, colour = struct.unpack(">IIBB", png[at + 8:at + 18])
            assert depth == 8 and colour in (2, 6)
        elif kind == b"IDAT":
            data += png[at + 8:at + 8 + size]
        at += size + 12
    raw, step = zlib.decompress(data), 3 if colour == 2 else 4
    row, seen, previous = width * step, set(), bytearray(width * step)
    for begin in range(0, len(raw), row + 1):
        line = unfilter(raw[begin], bytearray(raw[begin + 1:begin + 1 + row]), previous, step)
        seen.update(bytes(line[i:i + 3]) for i in range(0, row, step * 7))
        previous = line
    return seen


def unfilter(kind: int, line: bytearray, above: bytearray, step: int) -> bytearray:
    """Undoes one of PNG's five row filters."""
    for i in range(len(line) if kind else 0):
        left = line[i - step] if i >= step else 0
        corner = above[i - step] if i >= step else 0
        if kind == 1:
            guess = left
        elif kind == 2:
            guess = above[i]
        elif kind == 3:
            guess = (left + above[i]) // 2
        else:
            p = left + above[i] - corner
            guess = min((left, above[i], corner), key=lambda v: abs(p - v))
        line[i] = (line[i] + guess) & 255
    return line


def test_the_page_needs_nothing_from_elsewhere(server):
    status, body, headers = server.request("GET", "/")
    assert status == 200
    assert headers["Content-Type"].startswith("text/html")
    text = body.decode()
    assert "sluice" in text
    assert "https://" not in text and "//cdn" not in text
    import re
    for link in re.findall(r"(?:src|href)=\"([^\"#]+)\"", text):
        if not link.startswith("data:"):
            assert server.get("/" + link.lstrip("./"))[0] == 200, link


@needs_chromium
def test_the_page_has_a_chat_box_and_the_live_picture(server, tmp_path):
    dom = browse(tmp_path, server.url + "/", "--dump-dom")
    assert "<textarea" in dom or "<input" in dom
    assert server.model_id() in dom, "the model's name was fetched by the script"
    for word in ("instance", "window"):
        assert word in dom.lower()


@needs_chromium
def test_a_question_in_the_address_is_asked_and_answered(server, tmp_path):
    dom = browse(tmp_path, server.url + "/?q=What+is+a+river%3F", "--dump-dom")
    log = dom[dom.index('id="log"'):dom.index('id="form"')]
    assert 'class="message user"' in log and "What is a river?" in log
    answer = log[log.index('class="message assistant"'):]
    assert "<p>" in answer, "the answer is rendered"


@needs_chromium
def test_the_page_is_not_blank(server, tmp_path):
    picture = tmp_path / "page.png"
    browse(tmp_path, server.url + "/", f"--screenshot={picture}")
    colours = pixels(picture.read_bytes())
    assert len(colours) > 8, "text and boxes give many colours"
