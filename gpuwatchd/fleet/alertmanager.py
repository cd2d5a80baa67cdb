"""Alerts to every member of an Alertmanager (API v2), each in a thread of its own.

A member keeps nothing over a restart and learns nothing from the others: each is sent everything
that is open, again each step. An alert is said to end :func:`lifetime_s` from now, so that it
outlives us for a while; a member never shortens that, so our own stop just sends it once more. What
ends later than we said is sent by another worker as well, and is not resolved while it is.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit

import msgspec

from gpuwatchd.core import decoding
from gpuwatchd.core.errors import MetricsServerError
from gpuwatchd.core.state_log import StateLog, masked
from gpuwatchd.core.text import clean
from gpuwatchd.fleet.connection import Connection
from gpuwatchd.fleet.worker import pause_s
from gpuwatchd.view.queries.fleet_state import FailingMember

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpuwatchd.fleet.config import Fleet

log = logging.getLogger("gpuwatchd.fleet")

_PATH: Final = "/api/v2/alerts"
_LIFETIME_S: Final = 900.0
"""A host that is started anew, and a cold start over 100,000 GPUs, take less."""
_BATCH: Final = 500
"""Alerts of one request: half a MiB, below the limit that proxies have by default."""
_MOST_POSTS: Final = 64
"""Requests of one round beyond the usual: so many are spent on finding what is refused."""
_TIMES: Final = 3
"""How often a member is told that something is over: the address may be that of several."""
_CLOCK_S: Final = 2.0
"""Ends that are no further apart may be of the same moment: a member's clock is had in seconds."""
_LONGEST_PAUSE_S: Final = 60.0
_REFUSED_S: Final = 3600.0
"""What was refused is tried again after this time."""
_CLOSE_S: Final = 5.0
_LAST_S: Final = datetime.max.replace(tzinfo=UTC).timestamp() - 1
"""No instant is later."""


class FleetAlert(msgspec.Struct, frozen=True, kw_only=True):
    """One alert; its labels are its identity."""

    labels: dict[str, str]
    annotations: dict[str, str]
    starts_at_s: float

    @property
    def key(self) -> tuple[tuple[str, str], ...]:
        """Its labels, in an order that keeps those of one subject together."""
        return tuple(sorted(self.labels.items()))


Key = tuple[tuple[str, str], ...]


class Active(msgspec.Struct, rename="camel"):
    """An alert that a member has."""

    labels: dict[str, str]
    starts_at: datetime
    annotations: dict[str, str] = {}
    ends_at: datetime | None = None


class _Posted(msgspec.Struct, rename="camel"):
    labels: dict[str, str]
    annotations: dict[str, str]
    starts_at: datetime
    ends_at: datetime


class _Resolved(msgspec.Struct):
    alert: FleetAlert
    at_s: float
    """When it was resolved, on the monotonic clock."""
    ends_s: float
    """When it would have ended by itself, as far as it is known who sends it."""
    renewed_at_s: float = -math.inf
    """When another worker was last seen to have sent it."""
    left: int = _TIMES

    def sent(self) -> bool:
        """Count that it was taken; return whether that was the last time."""
        self.left -= 1
        return self.left <= 0

    def renewed(self, ends_s: float, now_s: float, within_s: float) -> bool:
        """Say whether another worker has lately sent it, and since we have.

        Both send at the same seconds of each step: now the one is first, now the other.
        """
        if ends_s > self.ends_s + _CLOCK_S:
            self.ends_s, self.renewed_at_s = ends_s, now_s
        return now_s - self.renewed_at_s < within_s


def lifetime_s(step_s: float) -> float:
    """Return how long an alert lives that nobody sends again."""
    return max(_LIFETIME_S, 3 * step_s)


def member_name(url: str) -> str:
    """Return what the member at an address is called where failures are counted."""
    return clean(urlsplit(url).netloc, limit=120)


class MemberHealth:
    """Whether one Alertmanager takes alerts, and what it did not take."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.failures: dict[str, int] = {}
        """Why it did not take something -> how often."""
        self.error, self.failing_since_s = "", 0.0
        """Why it takes nothing now, "" where it does, and since when."""
        self._changes = StateLog()
        self._lock = threading.Lock()

    def note(self, error: Exception | None) -> None:
        """Keep why it does not take alerts, None where it does; log that when it changes."""
        words = "" if error is None else clean(str(error), limit=300)
        if error is not None and not isinstance(error, MetricsServerError):
            words = f"{self.name}: {type(error).__name__} {words}"
        with self._lock:
            if words and not self.error:
                self.failing_since_s = time.time()
            self.error = words
            change = self._changes.change("alerts", masked(words), first="")
        if change is not None and error is None:
            log.info("%s takes alerts again%s", self.name, change.fields)
        elif change is not None:
            log.warning("alerts are not taken: %s; tried again until they are", words)

    def failed(self, what: str, error: Exception) -> None:
        """Count what failed, and keep that it takes no alerts for that."""
        self.count(what, error)
        self.note(error)

    def count(self, what: str, error: Exception) -> None:
        """Count what failed."""
        key = f"{what} {getattr(error, 'status', None) or 'no answer'}"
        with self._lock:
            self.failures[key] = self.failures.get(key, 0) + 1


class Member:
    """One Alertmanager: what it is to know, and what it has not taken yet."""

    def __init__(self, url: str, fleet: Fleet) -> None:
        section = fleet.section
        self.health = MemberHealth(member_name(url))
        self._connection = Connection(
            url,
            fleet.alertmanager_headers,
            ca_file=section.ca_file,
            limit_bytes=int(section.budget.answer),
            timeout_s=section.budget.timeout,
        )
        self._step_s = section.step
        self._firing: dict[Key, FleetAlert] = {}
        self._over: dict[Key, _Resolved] = {}
        self._refused: dict[Key, float] = {}
        self._lock = threading.Lock()
        self._news, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="alerts", daemon=True)
        self._tries = 0
        self._ends_s = 0.0
        """When what was sent last ends by itself, on the clock of the member."""

    def active(self, *matchers: str) -> list[Active] | None:
        """Return the alerts that it has, matched by all; None where it does not say.

        One that lets nobody read is taken to have none. One whose answer is cut off, or something
        else, is asked again: what it has would be forgotten, and end.
        """
        try:
            return self._read(*matchers)
        except MetricsServerError as error:
            self.health.failed("read", error)
            return None if error.busy or error.status == 200 else []

    def _read(self, *matchers: str) -> list[Active]:
        words = "&".join(f"filter={quote(matcher, safe='')}" for matcher in matchers)
        reply = self._connection.request(f"{_PATH}?{words}")
        if reply.status != 200:
            raise self._connection.refused(reply)
        try:
            return decoding.decode(reply.content, list[Active])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            why = f"{self.health.name}: its answer is none of an Alertmanager"
            raise MetricsServerError(why, status=200) from None

    @property
    def failing(self) -> FailingMember | None:
        """Why it does not take alerts, or some of them, and since when; None where it does."""
        name, error, since_s = self.health.name, self.health.error, self.health.failing_since_s
        with self._lock:
            refused = self._refused.values()
            if not error and refused:
                error = f"{name}: it refuses {len(refused)} alerts, which are left out"
                since_s = time.time() - (time.monotonic() - min(refused))
        return FailingMember(name=name, error=error, since_s=since_s) if error else None

    def offer(self, firing: Iterable[FleetAlert], over: Iterable[FleetAlert]) -> None:
        """Have it told what fires now and what has ended since; the thread is begun with it."""
        now_s = time.monotonic()
        with self._lock:
            self._firing = {alert.key: alert for alert in firing}
            for alert in over:
                self._over[alert.key] = _Resolved(alert, now_s, self._ends_s)
            # What is older has ended by itself.
            keep_s = now_s - lifetime_s(self._step_s)
            self._over = {
                key: ended
                for key, ended in self._over.items()
                if key not in self._firing and ended.at_s >= keep_s
            }
            self._refused = {
                key: at_s for key, at_s in self._refused.items() if now_s - at_s < _REFUSED_S
            }
        self._news.set()
        if self._thread.ident is None:
            self._thread.start()

    def close(self) -> None:
        """Ask the thread to send all of it once more and to end; see :meth:`join`."""
        self._stop.set()
        self._news.set()

    def join(self, within_s: float) -> None:
        """Wait for the end of the thread, no longer than that: it holds nobody up."""
        if self._thread.ident is not None:
            self._thread.join(max(within_s, 0.0))

    def _run(self) -> None:
        while True:
            # Also without news: its alerts live on while a round takes long. Not as soon as one is
            # late: what another worker sent in this step would seem to be older than ours.
            self._news.wait(1.5 * self._step_s)
            self._news.clear()
            stopping = self._stop.is_set()
            try:
                self._send()
            except MetricsServerError as error:
                self.health.failed("post", error)
                self._tries += 1
                if not stopping:
                    self._stop.wait(min(pause_s(self._tries, error.wait_s), _LONGEST_PAUSE_S))
                    self._news.set()
            except Exception as error:
                # The other members, and this one's next round, must not end with this.
                log.exception("failed part=alertmanager member=%s", self.health.name)
                self.health.failed("post", error)
                self._stop.wait(self._step_s)
            else:
                self._tries = 0
                self.health.note(None)
            if stopping:
                return

    def _now_s(self) -> float:
        """Return what its clock says, asked each time.

        That decides whether an alert has ended; ours may have been set, or have stood still.
        """
        headers = self._connection.request("/-/ready").headers
        try:
            return parsedate_to_datetime(headers.get("Date", "")).timestamp()
        except (ValueError, TypeError, OverflowError):
            return time.time()

    def _others(self, over: dict[Key, _Resolved], now_s: float) -> set[Key]:
        """Return what another worker still sends: its data differ, and it will end it."""
        active: list[Active] = []
        try:
            active = self._read('gpuwatchd="fleet"') if over else active
        except MetricsServerError as error:
            self.health.count("read", error)
        known = {tuple(sorted(alert.labels.items())): alert.ends_at for alert in active}
        ends = {key: at for key in over if (at := known.get(key)) is not None}
        within_s = 2 * self._step_s
        return {k for k, at in ends.items() if over[k].renewed(seconds(at), now_s, within_s)}

    def _send(self) -> None:
        with self._lock:
            firing, over = dict(self._firing), dict(self._over)
            keys = sorted((firing.keys() | over.keys()) - self._refused.keys())
        if not keys:
            # Nothing to say: asked all the same, so that one that is away or refuses is known.
            _Round(self._connection).deliver([])
            return
        now_s = self._now_s()
        others = self._others(over, now_s)
        self._ends_s = ends_s = now_s + lifetime_s(self._step_s)
        elapsed_s = time.monotonic()
        posts = [
            (key, _posted(firing[key], ends_s))
            if key in firing
            else (key, _posted(over[key].alert, now_s - (elapsed_s - over[key].at_s)))
            for key in keys
            if key not in others
        ]
        round_ = _Round(self._connection)
        try:
            for first in range(0, len(posts), _BATCH):
                round_.deliver(posts[first : first + _BATCH])
        finally:
            self._settle(round_, over)
        if round_.unclear is not None:
            raise round_.unclear
        if round_.refused and not round_.taken:
            raise next(iter(round_.refused.values()))

    def _settle(self, done: _Round, over: dict[Key, _Resolved]) -> None:
        """Take note of what was taken and what was refused."""
        at_s = time.monotonic()
        with self._lock:
            for key in done.taken & over.keys():
                if over[key].sent() and self._over.get(key) is over[key]:
                    del self._over[key]
            # Where nothing at all is taken it is not the alerts that are wrong.
            if done.taken:
                self._refused.update(dict.fromkeys(done.refused, at_s))
        if done.taken and done.refused:
            why = next(iter(done.refused.values()))
            log.warning("%d alerts are refused and left out: %s", len(done.refused), why)
            self.health.count("post", why)


class _Round:
    """The requests of one round to one member, and what became of each alert."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._left = connection, _MOST_POSTS
        self.taken: set[Key] = set()
        self.refused: dict[Key, MetricsServerError] = {}
        self.unclear: MetricsServerError | None = None
        """Of a part in which something is refused that has not been found yet."""

    def deliver(self, batch: Sequence[tuple[Key, _Posted]]) -> None:
        """Post alerts; where one of them is refused, halves, until it is found.

        The good ones have been stored then, says the interface, but not all that stands before an
        Alertmanager keeps to that.
        """
        body = msgspec.json.encode([posted for _, posted in batch])
        reply = self._connection.request(_PATH, body, "application/json")
        if 200 <= reply.status < 300:
            self.taken.update(key for key, _ in batch)
            return
        # Not so short that half a secret is left of one.
        error = self._connection.refused(reply, reply.content[: 1 << 17].decode("utf-8", "replace"))
        if reply.status not in {400, 413, 422} or not batch:
            raise error
        if len(batch) == 1:
            self.refused[batch[0][0]] = error
            return
        if self._left <= 0:
            self.unclear = error
            return
        self._left -= 2
        middle = len(batch) // 2
        self.deliver(batch[:middle])
        self.deliver(batch[middle:])


class Alertmanagers:
    """All members: each is told all of it, and none waits for another."""

    def __init__(self, fleet: Fleet) -> None:
        self.members = [Member(url, fleet) for url in fleet.section.alertmanagers]

    def active(self, *matchers: str) -> list[Active] | None:
        """Return what the members have, one after the other; None where none of them says."""
        with ThreadPoolExecutor(len(self.members)) as pool:
            answers = list(pool.map(lambda member: member.active(*matchers), self.members))
        heard = [answer for answer in answers if answer is not None]
        return [alert for answer in heard for alert in answer] if heard else None

    def offer(self, firing: Iterable[FleetAlert], over: Iterable[FleetAlert]) -> None:
        """Have every member told what fires now and what has ended since."""
        firing, over = list(firing), list(over)
        for member in self.members:
            member.offer(firing, over)

    def close(self) -> None:
        """Have every member told once more; one that does not answer is not waited for long."""
        until_s = time.monotonic() + _CLOSE_S
        for member in self.members:
            member.close()
        for member in self.members:
            member.join(until_s - time.monotonic())

    def failing(self) -> tuple[FailingMember, ...]:
        """Return which members do not take alerts now."""
        return tuple(one for member in self.members if (one := member.failing) is not None)

    @property
    def failures(self) -> dict[str, int]:
        """Member, what and status -> how often it failed."""
        return {
            f"{health.name} {key}": count
            for health in (member.health for member in self.members)
            for key, count in dict(health.failures).items()
        }


def _posted(alert: FleetAlert, ends_s: float) -> _Posted:
    return _Posted(
        alert.labels,
        alert.annotations,
        # What ends before it starts is refused.
        _instant(min(alert.starts_at_s, ends_s)),
        _instant(ends_s),
    )


def seconds(at: datetime) -> float:
    """Return an instant that a member has said; 0 for one that no clock of ours can have."""
    try:
        return at.timestamp()
    except (ValueError, OverflowError):
        return 0.0


def _instant(at_s: float) -> datetime:
    return datetime.fromtimestamp(min(max(at_s, 0.0), _LAST_S), UTC)
