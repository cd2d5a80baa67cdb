"""Foreign text made safe."""

from __future__ import annotations

import json
import time
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuwatchd.core import text

HOSTILE = [
    "\x1b[2J\x1b]0;title\x07python",
    "\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\",
    "a\u202eb\u2066c\u200fd",
    "line\nbreak\r\ttab\u2028sep",
    "nul\x00byte\x7f\x9b31m",
    "lone\udcff surrogate",
    "a\u061cb\u206ac\u206fd\u2065e\u180ef",
    "note\ufff9shown\ufffahidden\ufffb",
    "tags\U000e0001\U000e0041\U000e0042\U000e007f\U000e0000",
    "beam\U0001d173 shorthand\U0001bca0",
    "[/red][link=x]",
    "<b>&amp;</b>",
]

REORDERING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI", "BN"}
"""Bidirectional classes of characters that are not seen themselves."""


def invisible(safe: str) -> list[str]:
    """Return the format characters that nobody sees, and what of the tags is left."""
    return [
        c
        for c in safe
        if unicodedata.bidirectional(c) in REORDERING
        or c in "\u061c\u200e\u200f\ufff9\ufffa\ufffb"
        or 0xE0000 <= ord(c) <= 0xE007F
    ]


@pytest.mark.parametrize("rude", HOSTILE)
def test_nothing_dangerous_survives(rude: str) -> None:
    safe = text.clean(rude)
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 for c in safe)
    assert not any(0x202A <= ord(c) <= 0x202E or 0x2065 <= ord(c) <= 0x206F for c in safe)
    assert not invisible(safe)
    safe.encode("utf-8")


@given(st.one_of(st.text(), st.binary()))
def test_cleaning_is_final_and_bounded(rude: str | bytes) -> None:
    once = text.clean(rude)
    assert not invisible(once)
    assert text.clean(once) == once
    assert len(once) <= text.MAX_CHARS
    once.encode("utf-8")


@pytest.mark.parametrize("code", [0x61C, *range(0x206A, 0x2070), *range(0xE0000, 0xE0080)])
def test_each_of_the_invisible_goes(code: int) -> None:
    assert text.clean(f"a{chr(code)}b") == "ab"


@given(st.text(alphabet=st.characters(blacklist_categories=["C", "Z"]), max_size=100))
@example("\u2764\ufe0f")  # what languages and emoji need
@example("\u845b\U000e0100")
@example("\u0661\u0662\u06dd")
@example("\u05e9\u05dc\u05d5\u05dd")
def test_honest_text_is_left_alone(honest: str) -> None:
    assert text.clean(honest) == honest


def test_a_megabyte_of_escapes_is_no_burden() -> None:
    assert text.clean("\x1b[" * 1_000_000) == ""


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


# Secrets as people choose them: any visible signs, blanks inside; and as programs make them.
CHOSEN = st.text(
    alphabet=st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="\"'\\"),
    min_size=6,
    max_size=40,
).filter(lambda word: word[0] not in "-*=:@[{(,;&<")
PHRASES = st.lists(CHOSEN, min_size=2, max_size=3).map(" ".join)
LETTERS = st.text(alphabet="abcdefXYZ0123456789", min_size=6, max_size=30)
NAMES = st.sampled_from(
    [
        *("api-key", "api_key", "token", "hf-token", "password", "passwd", "secret", "wandb-key"),
        *("aws_secret_access_key", "HF_TOKEN", "DB_PASS", "client-secret", "credentials", "auth"),
    ]
)
AROUND = st.lists(
    st.sampled_from(["--lr", "0.1", "train.py", "-v", "x=y", "/a/b", "{}", "k: v"]), max_size=8
)


def shown(argv: list[str]) -> str:
    return " ".join(text.mask_argv(argv))


def assert_hidden(secret: str, argv: list[str]) -> None:
    """Nothing of a secret is left that would not be there anyway."""
    left = shown(argv)
    assert text.MASK in left
    assert secret not in left
    without = shown([word.replace(secret, "QQQQQQ") for word in argv])
    for start in range(len(secret) - 3):
        piece = secret[start : start + 4]
        assert piece not in left or piece in without or piece in text.MASK * 2


@given(NAMES, CHOSEN | PHRASES, AROUND, AROUND)
def test_the_value_of_a_telling_option_never_survives(
    name: str, secret: str, before: list[str], after: list[str]
) -> None:
    assert_hidden(secret, [*before, f"--{name}", secret, *after])
    assert_hidden(secret, [*before, f"--{name}={secret}", *after])
    assert_hidden(secret, [*before, f"{name}={secret}", *after])
    assert_hidden(secret, [*before, f"-D{name}={secret}", *after])


@given(NAMES, CHOSEN, AROUND)
def test_nor_does_it_within_something_longer(name: str, secret: str, around: list[str]) -> None:
    for word in (
        f"--env={name}={secret}",
        f"--header=X-{name}: {secret}",
        f"python serve.py --{name} {secret} --port 80",
        f"python serve.py --{name}={secret} --port 80",
        f"bash -c '{name}={secret} python train.py'",
    ):
        assert_hidden(secret, [*around, word, *around])


@given(NAMES, LETTERS)
def test_nor_in_a_query(name: str, secret: str) -> None:
    assert shown([f"https://h/x?a=1&{name}={secret}&b=2"]) == f"https://h/x?a=1&{name}=****&b=2"


@given(NAMES, CHOSEN | PHRASES, st.integers(0, 10**6))
def test_nor_in_an_object(name: str, secret: str, number: int) -> None:
    inside = {"max_tokens": number, "user": "u", name: secret, "z": [1]}
    assert_hidden(secret, ["serve", "--config", json.dumps(inside)])
    assert_hidden(secret, ["serve", json.dumps(inside, separators=(",", ":"))])
    assert_hidden(secret, ["serve", f"--config={json.dumps({'a': {name: secret}})}"])
    assert_hidden(secret, ["serve", json.dumps({"inner": json.dumps({name: secret})})])
    assert_hidden(secret, ["serve", f"{{'{name}': '{secret}'}}"])


LOGINS = st.text(alphabet="abcXYZ0123456789!$%^*_+.,;~@", min_size=6, max_size=20)


@given(LOGINS, st.sampled_from(["https", "postgresql+psycopg2", "redis", "mongodb", "amqp"]))
def test_nor_in_a_login(secret: str, scheme: str) -> None:
    masked = shown([f"{scheme}://user:{secret}@host:5432/db?x=1"])
    assert masked == f"{scheme}://****@host:5432/db?x=1"
    assert_hidden(secret, [f"user:{secret}@host:5432/db"])
    assert_hidden(secret, ["-u", f"user:{secret}"])
    assert_hidden(secret, [f"--user=user:{secret}"])
    assert_hidden(secret, [f"host=h user=u password={secret} dbname=d"])


@given(CHOSEN, st.sampled_from(["Bearer", "Basic", "Token", "ApiKey"]))
def test_nor_in_a_header(secret: str, scheme: str) -> None:
    assert_hidden(secret, ["curl", "-H", f"Authorization: {scheme} {secret}", "https://h"])
    assert_hidden(secret, [f"curl -H 'Authorization: {scheme} {secret}' https://h"])
    assert_hidden(secret, ["curl", "-H", f"Cookie: session={secret}"])


@pytest.mark.parametrize(
    "token",
    [
        "hf_" + "a1B2" * 8,
        "ghp_" + "a1B2" * 9,
        "sk-" + "a1B2" * 8,
        "AKIA" + "A1B2" * 4,
        "gsk_" + "a1B2" * 8,
        "nvapi-" + "a1B2" * 8,
        "AIza" + "a1B2" * 9,
        "ASIA" + "A1B2" * 4,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
        "wJ7rXUt/FEMIq8K7MD+bPxRfi9YEXz2Lk4Qp7vTn",
    ],
)
@pytest.mark.parametrize("shape", ["{}", "--x={}", "a {} b", "--url=https://h/{}"])
def test_tokens_of_programs_are_known_anywhere(token: str, shape: str) -> None:
    if "/" in token and "://" in shape:
        return  # such a one is part of a path
    assert token not in shown(["run.py", shape.format(token)])


@pytest.mark.parametrize("token", ["aB3" * 15, "0123456789abcdef" * 3])
def test_long_words_without_sense_are_masked(token: str) -> None:
    assert token not in shown(["run.py", token])


def test_a_secret_that_is_cut_is_masked_first() -> None:
    word = '{"pad": "' + "x" * 240 + '", "password": "planted secret"}'
    assert "plant" not in shown([word])
    assert all(len(word) <= text.MAX_CHARS for word in text.mask_argv([word]))


@pytest.mark.parametrize(
    "argv",
    [
        ("vllm", "serve", "meta-llama/Llama-3.1-8B", "--tokenizer", "x/y", "--max-num-tokens=9"),
        ("serve", "--max-num-batched-tokens", "8192", "--keypoints", "17"),
        ("docker", "run", "ubuntu:22.04@sha256:" + "ab" * 32, "s3://bucket/a@v1"),
        ("x", "http://localhost:8000/models/a@main", "user@host:path", "cuda:0", "a=b@c"),
        ("llama-server", "--model", "/root/.ollama/models/blobs/sha256-" + "0a" * 32),
        ("python", "-p", "8000", '{"lr": 0.1, "max_tokens": 5}'),
        (
            "run",
            "--eos_token",
            "</s>",
            "--pad-token-id=0",
            "--num-key-value-heads",
            "8",
            "key_dim=64",
        ),
        ("ray::IDLE",),
    ],
)
def test_what_is_no_secret_stays(argv: tuple[str, ...]) -> None:
    assert text.mask_argv(argv) == argv


def test_a_passphrase_that_nothing_announces_is_not_guessed() -> None:
    assert text.mask_argv(["mysql", "-p", "hunter2"]) == ("mysql", "-p", "hunter2")


@pytest.mark.parametrize(
    "word",
    [
        "a" * 9999,
        "key" * 3000,
        "a://x:" * 1500,
        "'\"" * 3000,
        "x " * 5000,
        '\\"' * 3000,
        "key=" * 999,
    ],
)
def test_a_hostile_word_is_no_burden(word: str) -> None:
    begun_s = time.process_time()
    text.mask_argv([word])
    assert time.process_time() - begun_s < 0.5


@given(st.lists(st.text(max_size=60), max_size=30))
def test_masking_takes_anything_and_is_bounded(argv: list[str]) -> None:
    masked = text.mask_argv(argv)
    assert len(masked) <= 25
    assert all(text.clean(word) == word for word in masked)
