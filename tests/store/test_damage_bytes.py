"""One damaged byte, wherever it is: the daemon starts and records, and every question is answered
or refused in order."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuwatchd.cli import main
from gpuwatchd.core import config
from gpuwatchd.core.errors import StoreDamaged, StoreError
from gpuwatchd.daemon import main as daemon
from gpuwatchd.store import schema, tables
from gpuwatchd.store.reader import Reader
from tests.store import damage
from tests.store.world import CARDS, KNOWN, T0, Time, opened, rows, sample

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpuwatchd.store.writer import History

END_S = T0 + damage.SPAN_S
PAGE = damage.PAGE_BYTES
VERBS = (
    "alerts", "alerts show latest", "check", "cost", "doctor", "explain 0", "history",
    "history --json", "plot --json", "report", "snooze list", "status",
)  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the file of a small history in which every table has rows."""
    directory = tmp_path_factory.mktemp("whole")
    damage.build(directory)
    return (directory / "history.db").read_bytes()


def put(directory: Path, content: bytes) -> None:
    """Make this the only file of a directory."""
    for file in directory.iterdir():
        file.unlink()
    (directory / "history.db").write_bytes(content)


def changed(whole: bytes, spots: Iterable[int], mask: int = 0xFF) -> bytes:
    """Return a file with some of its bytes changed."""
    content = bytearray(whole)
    for spot in spots:
        content[spot] ^= mask
    return bytes(content)


def recorded(directory: Path) -> History:
    """Return a history that has recorded, as far as it could be."""
    clock = Time(END_S)
    history = opened(directory, clock, flush=1e9)
    for _ in range(3):
        clock.pass_s(61)
        history.record(sample(clock.now_s, 1000, uses=(1, 2), cards=CARDS), CARDS, KNOWN)
        history.flush(clock.now_s)
        history.chores(clock.now_s)
    return history


def is_sound(history: History, directory: Path) -> bool:
    """Say whether a history is written, and what was here before is set aside or still in use."""
    aside = list(directory.glob("history.db.corrupt-*"))
    told = [problem for problem in history.problems if "set aside" in problem]
    return history.writing and len(aside) == len(told) <= 1


def refused(directory: Path) -> set[str]:
    """Return the questions that raise something else than a reader documents, as name and error."""
    wrong = set()
    try:
        with Reader.open(directory) as reader:
            for name, ask in damage.questions(END_S).items():
                try:
                    ask(reader)
                except StoreError:
                    pass
                except Exception as error:  # noqa: BLE001 - whatever it is, the test names it
                    wrong.add(f"{name}: {error!r}")
    except StoreError:
        pass
    return wrong


def spots_of(whole: bytes, part: int, parts: int) -> list[list[int]]:
    """Return what to change: each byte that holds something, and free space in blocks.

    All of the first two pages; of the pages that the schema is on every eleventh.
    """
    head: list[int] = []
    free: list[int] = []
    for spot in range(2 * PAGE):
        (head if whole[spot] or spot < 100 else free).append(spot)
    single = [*head, *(spot for at in schema_pages(whole) for spot in range(at, at + PAGE, 11))]
    blocks = [free[at : at + 64] for at in range(0, len(free), 64)]
    return [*([spot] for spot in single), *blocks][part::parts]


def schema_pages(whole: bytes) -> list[int]:
    """Return where the pages with the statements of the schema begin: the children of page 1."""
    cells = int.from_bytes(whole[103:105], "big")
    assert whole[100] == 5  # an interior page
    pointers = [int.from_bytes(whole[at : at + 2], "big") for at in range(112, 112 + 2 * cells, 2)]
    children = [whole[at : at + 4] for at in pointers] + [whole[108:112]]
    return [(int.from_bytes(child, "big") - 1) * PAGE for child in children]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_the_daemon_records_whichever_byte_of_the_first_pages_is_damaged(
    tmp_path: Path, whole: bytes, part: int
) -> None:
    wrong, aside = [], 0
    for spots in spots_of(whole, part, 8):
        put(tmp_path, changed(whole, spots))
        clock = Time(END_S + 1)
        history = opened(tmp_path, clock, flush=1e9)
        history.record(sample(clock.now_s, 1000, uses=(1, 2), cards=CARDS), CARDS, KNOWN)
        history.flush(clock.now_s)
        history.chores(clock.now_s)
        history.flush(clock.now_s)  # what the chores met is set aside here
        if not is_sound(history, tmp_path):
            wrong.append((spots[0], history.problems))
        aside += any(tmp_path.glob("*.corrupt-*"))
        history.close()
    assert wrong == []
    assert aside > 40


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_a_reader_raises_what_it_documents_whichever_byte_is_damaged(
    tmp_path: Path, whole: bytes, part: int
) -> None:
    damaged, wrong = 0, []
    for spots in spots_of(whole, part, 4):
        content = changed(whole, spots)
        put(tmp_path, content)
        wrong += [(spots[0], one) for one in refused(tmp_path)]
        put(tmp_path, content)
        try:
            with Reader.open(tmp_path) as reader:
                reader.devices()
        except StoreDamaged:
            damaged += 1
        except StoreError:
            pass
    assert wrong == []
    assert damaged > 60


def harmed(directory: Path, content: bytes) -> list[object]:
    """Return what goes wrong where this is read and then written to."""
    put(directory, content)
    wrong: list[object] = [*refused(directory)]
    put(directory, content)
    clock = Time(END_S)
    history = opened(directory, clock, flush=1e9)
    damage.use(history, clock)
    if not is_sound(history, directory):
        wrong.append(history.problems)
    history.close()
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_a_zeroed_page_ends_in_a_new_file_or_harms_nothing(
    tmp_path: Path, whole: bytes, part: int
) -> None:
    for page in range(part, len(whole) // PAGE, 4):
        content = whole[: page * PAGE] + bytes(PAGE) + whole[(page + 1) * PAGE :]
        assert harmed(tmp_path, content) == [], page


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_whatever_is_damaged_nothing_raises(tmp_path: Path, whole: bytes, part: int) -> None:
    for seed in range(part, 200, 4):
        pick = random.Random(seed)
        held = [spot for spot in pick.choices(range(len(whole)), k=60) if whole[spot]]
        content = changed(whole, held[: pick.randint(1, 20)], pick.randint(1, 255))
        assert harmed(tmp_path, content) == [], seed


def nasty(whole: bytes) -> dict[str, bytes]:
    """Return damage of each kind that once ended a program."""
    named = whole.index(b"CREATE TABLE gpu(")
    column = whole.index(b"vendor TEXT", named)
    return {
        "a name that is no Unicode": changed(whole, [named + 14]),
        "a column that has another name": changed(whole, [column], 1),
        "a header of an unknown format": changed(whole, [47], 0xF0),
        "a header that forbids to write": changed(whole, [18]),
        "an absurd version": changed(whole, [60]),
        "an earlier version": changed(whole, [63], schema.VERSION ^ (schema.VERSION - 1)),
        "a roll-up until never": whole.replace(b"gpu_1m.until1", b"gpu_1m.until\xff"),
    }


@pytest.fixture
def states(whole: bytes) -> dict[str, bytes]:
    """Return files, each of them damaged in another way."""
    found = nasty(whole)
    assert all(content != whole for content in found.values())
    return found


def test_the_daemon_starts_on_each_kind_of_damage(
    states: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for number, (name, content) in enumerate(states.items()):
        state = tmp_path / f"state-{number}"
        state.mkdir(mode=0o700)
        (state / "history.db").write_bytes(content)
        monkeypatch.setenv("GPUWATCHD_STATE_DIR", str(state))
        monkeypatch.setenv("GPUWATCHD_RUNTIME_DIR", str(tmp_path / f"run-{number}"))
        assert daemon.main(["--once", "--source", "simulate"]) == 0, name
        is_new = any(state.glob("*.corrupt-*"))
        assert is_new == (name != "a roll-up until never"), name
        assert rows(state, "SELECT count(*) FROM gpu_raw")[0][0] > 0, name


@pytest.mark.slow
def test_no_verb_shows_a_fault_of_its_own(
    states: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    directory = config.state_dir()
    directory.mkdir(mode=0o700)
    for name, content in states.items():
        for verb in VERBS:
            put(directory, content)
            code = main(verb.split())
            out, err = capsys.readouterr()
            words = f"{name}, {verb}: {code}\n{out}{err}"
            assert code in {0, 1, 3}, words
            assert "Traceback" not in out + err, words
            assert "internal error" not in out + err, words


def test_a_verb_that_needs_the_history_says_that_it_is_damaged(
    states: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    directory = config.state_dir()
    directory.mkdir(mode=0o700)
    for name in ("a name that is no Unicode", "a column that has another name"):
        put(directory, states[name])
        for verb in ("history", "cost", "report", "explain", "predict"):
            assert main([verb]) == 1
            err = capsys.readouterr().err.splitlines()
            assert len(err) == 3  # the message, its hint, the page
            assert err[2].endswith("errors#history-damaged")


def test_a_schema_page_that_is_damaged_below_an_open_history_is_set_aside(
    tmp_path: Path, whole: bytes
) -> None:
    put(tmp_path, whole)
    history = recorded(tmp_path)
    assert history.problems == ()
    history.close()
    history = opened(tmp_path, Time(END_S), flush=1e9)
    with (tmp_path / "history.db").open("r+b") as file:
        file.seek(schema_pages(whole)[0])
        file.write(b"\xff" * PAGE)
    history.chores(END_S)
    assert is_sound(history, tmp_path)
    assert any(tmp_path.glob("*.corrupt-*"))
    assert [one.key for one in history.open_alerts()] == ["leak:x"]
    history.close()
    with Reader.open(tmp_path) as reader:
        assert [one.key for one in reader.alerts(open_only=True)] == ["leak:x"]


@pytest.mark.parametrize("spot", [18, 23, 47, 59])
def test_a_header_that_is_damaged_below_an_open_history_is_set_aside(
    tmp_path: Path, whole: bytes, spot: int
) -> None:
    put(tmp_path, whole)
    history = opened(tmp_path, Time(END_S), flush=1e9)
    with (tmp_path / "history.db").open("r+b") as file:
        file.seek(spot)
        file.write(b"\xee")
    history.record(sample(END_S, 1000), CARDS, {})
    history.flush(END_S)
    assert is_sound(history, tmp_path)
    assert any(tmp_path.glob("*.corrupt-*"))
    history.close()


def test_a_fault_of_ours_is_not_blamed_on_a_sound_file(tmp_path: Path, whole: bytes) -> None:
    put(tmp_path, whole)
    with Reader.open(tmp_path) as reader, pytest.raises(ZeroDivisionError):
        reader.ask(lambda _: 1 // 0)
    with pytest.raises(TypeError), Reader.open(tmp_path):
        sum(["a"])  # type: ignore[list-item]
    with Reader.open(tmp_path) as reader, pytest.raises(StoreError) as caught:
        reader.ask(lambda it: it.execute("SELECT nothing FROM gpu"))
    assert not isinstance(caught.value, StoreDamaged)

    history = opened(tmp_path, Time(END_S), flush=1e9)
    assert history.shelf.read(lambda _: 1 // 0) is None
    assert len(history.problems) == 1
    history.flush(END_S)
    history.chores(END_S)
    assert history.writing
    assert list(tmp_path.glob("*.corrupt-*")) == []
    history.close()


def test_a_text_among_numbers_is_damage(tmp_path: Path, whole: bytes) -> None:
    """As one damaged byte makes it; the tables do not let it in."""
    put(tmp_path, whole)
    with closing(sqlite3.connect(tmp_path / "history.db", isolation_level=None)) as base:
        base.execute("PRAGMA writable_schema = ON")
        loose = "UPDATE sqlite_schema SET sql = replace(sql, ') STRICT', ')') WHERE name = 'event'"
        base.execute(loose)
    with closing(sqlite3.connect(tmp_path / "history.db", isolation_level=None)) as base:
        base.execute("UPDATE event SET ts_ms = 'soon'")
        base.execute("PRAGMA writable_schema = ON")
        base.execute("UPDATE sqlite_schema SET sql = sql || ' STRICT' WHERE name = 'event'")
    with Reader.open(tmp_path) as reader:
        assert len(reader.devices()) == 2
        with pytest.raises(StoreDamaged):
            reader.events()
    history = opened(tmp_path, Time(END_S), flush=1e9)
    assert (
        history.shelf.read(lambda it: it.execute("SELECT ts_ms FROM event").fetchone()[0] + 1)
        is None
    )
    history.flush(END_S)
    assert any(tmp_path.glob("*.corrupt-*"))
    history.close()


def test_what_somebody_has_added_is_no_damage(tmp_path: Path, whole: bytes) -> None:
    put(tmp_path, whole)
    with closing(sqlite3.connect(tmp_path / "history.db", isolation_level=None)) as base:
        for statement in (
            "CREATE TABLE mine(a)",
            "ALTER TABLE event ADD COLUMN mine TEXT",
            "CREATE UNIQUE INDEX mine_a ON mine(a)",
            "DROP INDEX delivery_key",
            "DROP VIEW gpu_hourly",
            "VACUUM",
        ):
            base.execute(statement)
    assert recorded(tmp_path).problems == ()
    assert list(tmp_path.glob("*.corrupt-*")) == []


def test_a_roll_up_that_nobody_understands_is_made_again(tmp_path: Path, whole: bytes) -> None:
    put(tmp_path, whole)
    query = "SELECT gpu, ts_s, n, used_max_bytes FROM gpu_minutes ORDER BY gpu, ts_s"
    before = rows(tmp_path, query)
    with closing(sqlite3.connect(tmp_path / "history.db", isolation_level=None)) as base:
        base.execute("UPDATE meta SET value = '17x' WHERE key LIKE '%.until'")
        assert tables.whole(base, "gpu_1m.until") == 0
    history = recorded(tmp_path)
    assert history.problems == ()
    assert rows(tmp_path, query)[: len(before) // 2] == before[: len(before) // 2]
    last = max(at_s for _, at_s, _, _ in before)
    assert history.shelf.read(lambda it: tables.whole(it, "gpu_1m.until") > last)
    history.close()


def test_a_file_that_is_blamed_is_closed(tmp_path: Path, whole: bytes) -> None:
    put(tmp_path, changed(whole, [47], 0xF0))
    with pytest.raises(StoreDamaged) as caught:
        Reader.open(tmp_path)
    held = {one.readlink() for one in Path("/proc/self/fd").iterdir() if one.is_symlink()}
    assert tmp_path / "history.db" not in held, caught


def test_the_check_at_the_start_does_not_grow_with_the_file(tmp_path: Path, whole: bytes) -> None:
    """Counted in steps of SQLite's machine, not in time."""
    steps = []
    for many in (0, 20_000):
        put(tmp_path, whole)
        with closing(sqlite3.connect(tmp_path / "history.db", isolation_level=None)) as base:
            base.execute("BEGIN")
            base.executemany(
                "INSERT INTO event(ts_ms, kind, detail) VALUES(?, 'x', 'y')",
                [(at,) for at in range(many)],
            )
            base.execute("COMMIT")
            count = [0]

            def step(count: list[int] = count) -> int:
                count[0] += 1
                return 0

            base.set_progress_handler(step, 10)
            assert schema.missing(base, schema.VERSION) is None
            steps.append(count[0])
    assert steps[0] == steps[1] > 0
