"""Make a mail of a simulated leak, open it in a browser and save pictures of it, to be looked at.

Run it as ``python -m tests.real.mail_picture FOLDER [MESSAGE.json]``: the mail, its page, and one
picture for each width and each colour scheme land in the folder.
"""

from __future__ import annotations

import email
import email.policy
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gpuwatchd.analysis.verdict import judge
from gpuwatchd.charts import drawing_process
from gpuwatchd.core.config import DetectionSection
from gpuwatchd.core.model import Alert, AlertSubject, Blame, Button, Cost, Message, Series
from gpuwatchd.notify.channels.email.message import compose
from gpuwatchd.pipeline import messages
from gpuwatchd.pipeline.chart_points import chart
from tests.making import GIB, KEY, MIB, alert
from tests.pipeline.test_chart_points import track

if TYPE_CHECKING:
    from email.message import EmailMessage


BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTHS = (640, 360)
HEIGHTS = {640: 1080, 360: 1240}


def leak(now_s: float, *, rate_mb_per_min: float = 50.0) -> tuple[Alert, Any]:
    """Return a leak as it is judged: flat for an hour, then growing for 50 minutes."""
    t_s = now_s - 5.0 * np.arange(1320, dtype=np.float64)[::-1]
    grown = rate_mb_per_min * 1e6 / 60.0 * np.maximum(0.0, t_s - (now_s - 3000.0))
    noise = np.random.default_rng(7).normal(0.0, 20.0 * MIB, t_s.size)
    used = 12.0 * GIB + grown + noise
    series = Series(
        subject=alert().subject, t_s=t_s, used_bytes=used, limit_bytes=23.6 * GIB,
        total_bytes=24.0 * GIB, framework="PyTorch", util_pct=90.0, age_s=7000.0,
    )  # fmt: skip
    found = judge(series, DetectionSection())
    blame = Blame(process=KEY, name="python", share=1.0, rate_bytes_per_s=1.0)
    found = msgspec.structs.replace(found, blame=(blame,), framework="PyTorch", severity="warning")
    about = AlertSubject(
        gpu="0", gpu_name="NVIDIA A100-SXM4-80GB", user="alice", process="python", pid=4711,
        framework="PyTorch", job="slurm 42.0",
    )  # fmt: skip
    cost = Cost(
        usd_per_hour=4.1, spent_usd=25.28, at_risk_usd=13.6,
        basis="A100 80GB, on-demand, as of 2026-06",
    )  # fmt: skip
    raised = alert(
        finding=found, severity=found.severity, opened_at_s=now_s - 120.0, changed_at_s=now_s,
        firing_at_s=now_s - 60.0, notices=1, about=about, cost=cost,
        title="GPU 0 (A100-SXM4-80GB): python train.py[4711] of alice",
    )  # fmt: skip
    return raised, track(t_s, used)


def letter(now_s: float, **changes: Any) -> Message:
    """Return the message of that leak."""
    raised, track = leak(now_s)
    press = Button(
        name="checkpoint", label="Ask to save", command="gpuwatchctl ask-checkpoint 4711"
    )
    message = messages.compose(
        raised, "firing", now_s=now_s, chart=chart(track, raised), buttons=(press,), host="lab3"
    )
    return msgspec.structs.replace(message, **changes)


def unpack(mail: EmailMessage, folder: Path) -> Path:
    """Write a mail's page and its pictures into a folder as a mail program shows them."""
    html = mail.get_body(("html",))
    if html is None:
        raise ValueError("the mail has no page")
    content = html.get_content()
    for part in mail.walk():
        name = part.get("Content-ID", "").strip("<>")
        if name:
            file = folder / re.sub(r"[^A-Za-z0-9.]", "-", f"{name}.png")
            file.write_bytes(part.get_content())
            content = content.replace(f"cid:{name}", file.name)
    page = folder / "mail.html"
    page.write_text(content, encoding="utf-8")
    return page


def browser() -> str | None:
    """Return the browser that is here."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


def shoot(page: Path, out: Path, *, width: int, dark: bool, height: int | None = None) -> Path:
    """Save a picture of a page, ``width`` pixels wide and drawn with two for each.

    The page is put into a frame of that width: no window of a browser is as narrow as a phone.
    """
    program = browser()
    if program is None:
        raise FileNotFoundError("no browser")
    height = height or HEIGHTS.get(width, 1100)
    frame = page.with_name(f"frame-{width}.html")
    frame.write_text(
        '<meta name="color-scheme" content="light dark"><body style="margin:0">'
        f'<iframe src="{page.name}" style="border:0;width:{width}px;height:{height}px"></iframe>'
    )
    scheme = 0 if dark else 1
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        subprocess.run(
            [
                program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                "--hide-scrollbars", "--force-device-scale-factor=2", "--no-first-run",
                f"--blink-settings=preferredColorScheme={scheme}", f"--user-data-dir={profile}",
                f"--window-size={max(width, 500)},{height}", f"--screenshot={out}",
                frame.resolve().as_uri(),
            ],
            check=True, capture_output=True, timeout=240,
        )  # fmt: skip
    return out


def main(argv: list[str]) -> int:
    """Write, open, look."""
    if not argv or browser() is None:
        print("usage: mail_picture FOLDER [MESSAGE.json]; needs chromium", file=sys.stderr)
        return 2
    folder = Path(argv[0])
    folder.mkdir(parents=True, exist_ok=True)
    message = letter(time.time())
    if len(argv) > 1:
        message = msgspec.json.decode(Path(argv[1]).read_bytes(), type=Message)
    image = None if message.chart is None else drawing_process.draw(message.chart)
    mail = compose(
        message, sender="gpuwatchd@example.org", to=["a@example.org"], host="lab3", picture=image
    )
    (folder / "mail.eml").write_bytes(mail.as_bytes())
    page = unpack(email.message_from_bytes(mail.as_bytes(), policy=email.policy.default), folder)
    print(f"{len(mail.as_bytes())} bytes, picture {0 if image is None else len(image)} bytes")
    for width in WIDTHS:
        for dark in (False, True):
            name = f"{width}-{'dark' if dark else 'light'}.png"
            print(shoot(page, folder / name, width=width, dark=dark))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
