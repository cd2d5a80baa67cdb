"""No program that is started for a button gets a secret."""

from __future__ import annotations

from gpuwatchd.act import terminal

OURS = {
    "DISPLAY": ":1", "GPUWATCHD_SMTP_PASSWORD": "hush", "GPUWATCHD_CHAT_URLS": "hush",
    "GPUWATCHD_STATE_DIR": "/s",
}  # fmt: skip


def test_a_terminal_has_none_and_shows_none() -> None:
    assert terminal.environment(OURS) == {"DISPLAY": ":1", "GPUWATCHD_STATE_DIR": "/s"}
    argv = terminal.outside(["xterm"], OURS, service=True)
    assert "--setenv=GPUWATCHD_STATE_DIR=/s" in argv
    assert "hush" not in " ".join(argv)
