"""Foreign text made safe."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatchd import text

HOSTILE = [
    "\x1b[2J\x1b]0;title\x07python",
    "\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\",
    "a\u202eb\u2066c\u200fd",
    "line\nbreak\r\ttab\u2028sep",
    "nul\x00byte\x7f\x9b31m",
    "lone\udcff surrogate",
    "[/red][link=x]",
    "<b>&amp;</b>",
]


@pytest.mark.parametrize("rude", HOSTILE)
def test_nothing_dangerous_survives(rude: str) -> None:
    safe = text.clean(rude)
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 for c in safe)
    assert not any(0x202A <= ord(c) <= 0x202E or 0x2066 <= ord(c) <= 0x2069 for c in safe)
    safe.encode("utf-8")


@given(st.one_of(st.text(), st.binary()))
def test_cleaning_is_final_and_bounded(rude: str | bytes) -> None:
    once = text.clean(rude)
    assert text.clean(once) == once
    assert len(once) <= text.MAX_CHARS
    once.encode("utf-8")


@given(st.text(alphabet=st.characters(blacklist_categories=["C", "Z"]), max_size=100))
def test_honest_text_is_left_alone(honest: str) -> None:
    assert text.clean(honest) == honest


def test_a_megabyte_of_escapes_is_no_burden() -> None:
    assert text.clean("\x1b[" * 1_000_000) == ""


SECRETS = [
    ["serve.py", "--api-key", "s3cr3tvalue"],
    ["serve.py", "--api-key=s3cr3tvalue"],
    ["serve.py", "--HF_TOKEN=s3cr3tvalue"],
    ["env", "AWS_SECRET_ACCESS_KEY=s3cr3tvalue", "python"],
    ["curl", "https://bob:s3cr3tvalue@example.org/x"],
    ["serve.py --password s3cr3tvalue --port 80"],
    ["serve.py", "--wandb-key", "s3cr3tvalue"],
]


@pytest.mark.parametrize("argv", SECRETS)
def test_secrets_do_not_reach_the_record(argv: list[str]) -> None:
    masked = text.mask_argv(argv)
    assert "s3cr3tvalue" not in " ".join(masked)
    assert text.MASK in " ".join(masked)


@pytest.mark.parametrize(
    "token",
    [
        "hf_" + "a1B2" * 8,
        "ghp_" + "a1B2" * 9,
        "sk-" + "a1B2" * 8,
        "AKIA" + "A1B2" * 4,
        "aB3" * 15,
        "0123456789abcdef" * 3,
    ],
)
def test_tokens_of_known_shape_are_masked_anywhere(token: str) -> None:
    assert token not in " ".join(text.mask_argv(["run.py", token]))


def test_plain_command_lines_stay_readable() -> None:
    argv = (
        "python",
        "train.py",
        "--lr=0.1",
        "--batch-size",
        "32",
        "/data/imagenet/train",
        "a/b.yaml",
    )
    assert text.mask_argv(argv) == argv


def test_long_command_lines_are_cut() -> None:
    assert len(text.mask_argv(["x"] * 1000)) == 25


@given(st.text(max_size=200))
def test_escapers_leave_no_markup(rude: str) -> None:
    assert "<" not in text.for_pango(rude)
    assert "<" not in text.for_html(rude)
    assert '"' not in text.for_html(rude)
    assert text.for_csv(rude)[:1] not in {"=", "+", "-", "@", "\t"}


@given(st.text(max_size=50), st.integers(1, 60))
def test_cut_is_never_too_wide(words: str, width: int) -> None:
    assert len(text.cut(words, width)) <= width


@pytest.mark.parametrize(
    "argv",
    [
        ["curl", "--header", "Authorization: Bearer PLANTED"],
        ["serve", '{"user": "a", "password": "PLANTED"}'],
        ["serve", "{'api_key':'PLANTED'}"],
        ["serve", "token:PLANTED"],
        ["curl", "-u", "me:PLANTED"],
        ["gpg", "--passphrase", "PLANTED"],
    ],
)
def test_secrets_in_headers_objects_and_logins_are_masked(argv: list[str]) -> None:
    masked = " ".join(text.mask_argv(argv))
    assert "PLANTED" not in masked
    assert text.MASK in masked
