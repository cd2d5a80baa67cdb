"""Chat and paging services through Apprise (extra ``chat``): ntfy, Slack, PagerDuty and more.

Apprise is imported when something is sent, not before. What it and the libraries below it write to
the log holds whole addresses, secrets included; nothing of that leaves this module.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import ipaddress
import logging
import re
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

from gpuwatchd.core import extras, text
from gpuwatchd.core.config import expanded
from gpuwatchd.core.errors import NotifyError
from gpuwatchd.core.model import Availability
from gpuwatchd.notify import credentials, plain_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from gpuwatchd.core.model import Message

EXTRA = extras.install("chat")
_TYPES = {"info": "INFO", "warning": "WARNING", "critical": "FAILURE"}
_LEAKY = ("apprise", "urllib3", "requests")
"""Loggers that write addresses."""
_STATUS = re.compile(r"\berror=([1-5]\d\d)\b")
_FOR_GOOD = frozenset({400, 401, 403, 404, 405, 410, 413, 422})
_REMEMBERED = 256
_LONGEST_BODY = 8000
State = Literal["sent", "refused", "failed"]
"""refused: trying again cannot help."""


class _Result(NamedTuple):
    address: Address
    state: State
    why: str = ""


class _Memory:
    """Which address has taken which message, and which is being tried.

    One for the whole process: settings that are read anew in the middle of it make no address
    forget what it has, and an attempt that was given up may arrive nevertheless.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: OrderedDict[str, set[str]] = OrderedDict()
        self._running: dict[str, threading.Thread] = {}

    def taken(self, message_id: str) -> frozenset[str]:
        """Return the fingerprints of the addresses that have a message."""
        with self._lock:
            return frozenset(self._taken.get(message_id, ()))

    def note(self, message_id: str, fingerprint: str) -> None:
        """Note that an address has taken a message."""
        with self._lock:
            self._taken.setdefault(message_id, set()).add(fingerprint)
            self._taken.move_to_end(message_id)
            while len(self._taken) > _REMEMBERED:
                self._taken.popitem(last=False)

    def start(self, fingerprint: str, thread: threading.Thread) -> bool:
        """Start an attempt; False while an earlier one at the same address has not ended."""
        with self._lock:
            self._running = {key: one for key, one in self._running.items() if one.is_alive()}
            if fingerprint in self._running:
                return False
            thread.start()
            self._running[fingerprint] = thread
            return True


_MEMORY = _Memory()


class ChatNotifier:
    """Send one message to every address; ``[notify.chat]`` is the call of this class."""

    name = "chat"

    def __init__(self, urls_file: str = "", timeout: float = 20.0) -> None:
        self._urls_file = urls_file
        self.timeout_s = float(timeout)
        self._memory = _MEMORY

    def __repr__(self) -> str:
        return "ChatNotifier()"

    def probe(self) -> Availability:
        """Say whether there are addresses and what sends to them. Connects to nobody."""
        try:
            addresses = self._addresses()
        except NotifyError as error:
            return Availability(ok=False, reason=error.message, hint=error.hint)
        if importlib.util.find_spec("apprise") is None:
            return Availability(ok=False, reason="Apprise is not installed", hint=EXTRA)
        odd = [address.name for address in addresses if not address.schema]
        if odd:
            reason = f"no address of a service: {', '.join(odd)}"
            return Availability(ok=False, reason=reason, hint="such as ntfys://ntfy.sh/topic")
        return Availability(ok=True, reason=", ".join(address.name for address in addresses))

    def send(self, message: Message) -> str:
        """Send to each address that has not taken this message yet; return who took it.

        What an address refuses for good is told, and costs the others nothing.

        Raises
        ------
        NotifyError
            Transient while some address may still take it; permanent when none ever will.
        """
        addresses = self._addresses()
        apprise = _apprise()
        has_it = self._memory.taken(message.id)
        waiting = [address for address in addresses if address.fingerprint not in has_it]
        results = self._try_all(apprise, waiting, message)
        return _verdict(addresses, self._memory.taken(message.id), results)

    def _addresses(self) -> tuple[Address, ...]:
        return load(self._urls_file)

    def _try_all(self, apprise: Any, wanted: Iterable[Address], message: Message) -> list[_Result]:
        deadline = time.monotonic() + self.timeout_s
        results: list[_Result] = []
        running: list[tuple[Address, threading.Thread, list[_Result]]] = []
        for address in wanted:
            said: list[_Result] = []
            thread = threading.Thread(
                target=self._try, args=(apprise, address, message, said), name="chat", daemon=True
            )
            if self._memory.start(address.fingerprint, thread):
                running.append((address, thread, said))
            else:
                # Not one more thread for each attempt at a service that hangs.
                results.append(_Result(address, "failed", "an earlier attempt still hangs"))
        for address, thread, said in running:
            thread.join(max(0.0, deadline - time.monotonic()))
            why = f"no answer within {self.timeout_s:g} s"
            results.append(said[0] if said else _Result(address, "failed", why))
        return results

    def _try(
        self, apprise: Any, address: Address, message: Message, results: list[_Result]
    ) -> None:
        result = _try_one(apprise, address, message, self.timeout_s)
        if result.state == "sent":
            self._memory.note(message.id, address.fingerprint)
        results.append(result)


class SingleChat(ChatNotifier):
    """Send to one address alone, whatever else is set up."""

    def __init__(self, url: str, timeout_s: float) -> None:
        super().__init__(timeout=timeout_s)
        self._url = url

    def _addresses(self) -> tuple[Address, ...]:
        return parse(self._url)


def _verdict(addresses: Iterable[Address], has_it: Collection[str], results: list[_Result]) -> str:
    """Return what is known of the arrival, or raise."""
    took = [address.name for address in addresses if address.fingerprint in has_it]
    total = len(list(addresses))
    value = f"accepted by {', '.join(took)}" if took else ""
    bad = [result for result in results if result.state != "sent"]
    told = "; ".join(f"{result.address.name}: {result.why}" for result in bad)
    if not bad:
        return value
    part = f"{told} ({len(took)} of {total} have it)"
    if any(result.state == "failed" for result in bad):
        raise NotifyError(part, hint="gpuwatchctl notify test chat", page="errors#chat")
    if not took:
        raise NotifyError(
            told,
            permanent=True,
            hint="correct that address, then: gpuwatchctl notify test chat",
            page="errors#chat",
        )
    return f"{value}; not by {told}"


def _apprise() -> Any:
    """Return Apprise with every log below it silenced; raise where it is not installed."""
    for name in _LEAKY:
        logger = logging.getLogger(name)
        logger.propagate = False
        if not logger.handlers:
            logger.addHandler(logging.NullHandler())
    try:
        import apprise  # noqa: PLC0415 - large, and only for who sends this way
    except ImportError:
        raise NotifyError(
            "Apprise is not installed", permanent=True, hint=EXTRA, page="errors#chat"
        ) from None
    # Its loggers are children of those that pass nothing on. Its services are loaded by the first
    # address, and here nothing else is loading them.
    apprise.Apprise.instantiate("json://localhost", suppress_exceptions=True)
    with contextlib.suppress(ImportError):
        import requests  # noqa: PLC0415 - comes with Apprise

        bound_reads(requests.Response)
    return apprise


class _StatusListener(logging.Handler):
    """Hears which status a service answered with, in the thread that asked it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._thread = threading.get_ident()
        self.status: int | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the status alone: the text of a record may hold the address."""
        if record.thread != self._thread:
            return
        try:
            match = _STATUS.search(record.getMessage())
        except (TypeError, ValueError):
            return
        if match is not None:
            self.status = int(match.group(1))


def _try_one(apprise: Any, address: Address, message: Message, timeout_s: float) -> _Result:
    """Try one address and return what came of it; never raises, and names no secret."""
    ear = _StatusListener()
    logger = logging.getLogger("apprise")
    logger.addHandler(ear)
    try:
        service = _service(apprise, address, timeout_s)
        if service is None:
            return _Result(address, "refused", "not understood as an address")
        # PagerDuty adds what has the same key to the incident that is open, and with
        # ``?action=map`` ends it on recovery: not on that of one alert out of several, and not when
        # the job has crashed.
        if getattr(service, "dedup", "") is None:
            service.dedup = message.id if message.others_open else message.thread or message.id
        # A service without titles has them in its body.
        most = getattr(service, "body_maxlen", 0)
        room = most if isinstance(most, int) and most > 0 else _LONGEST_BODY
        if service.notify(
            title=_title(message),
            body=_body(message, max(60, min(room, _LONGEST_BODY) - 210)),
            notify_type=_type(apprise, message),
            body_format="text",
            overflow="truncate",
        ):
            return _Result(address, "sent")
        return _refusal(address, ear.status)
    except Exception as error:  # noqa: BLE001 - a service's own code; its words may hold the address
        return _Result(address, "failed", f"failed ({type(error).__name__})")
    finally:
        logger.removeHandler(ear)


def _refusal(address: Address, status: int | None) -> _Result:
    if status is None:
        return _Result(address, "failed", "cannot be reached, or gave no useful answer")
    state: State = "refused" if status in _FOR_GOOD else "failed"
    return _Result(address, state, f"answered {status}")


def _service(apprise: Any, address: Address, timeout_s: float) -> Any:
    """Return Apprise's object for an address, None when it is none."""
    asset = apprise.AppriseAsset(app_id="gpuwatchd", app_desc="GPU memory", app_url="")
    service = apprise.Apprise.instantiate(address.url, asset=asset, suppress_exceptions=True)
    if service is not None:
        # An address may ask for less patience (cto, rto), not for more.
        for name in ("socket_connect_timeout", "socket_read_timeout"):
            wanted = getattr(service, name, None)
            if not isinstance(wanted, (int, float)) or wanted > timeout_s:
                setattr(service, name, timeout_s)
    return service


def kind(url: str) -> str:
    """Return what the service of an address is called before "://"; "" where it is none.

    Raises
    ------
    NotifyError
        When Apprise is not installed, whatever the address.
    """
    service = _service(_apprise(), Address(1, url), 1.0)
    names = getattr(service, "secure_protocol", None) or ""
    return names if isinstance(names, str) else str(names[0])


def _type(apprise: Any, message: Message) -> Any:
    if message.notice == "resolved":
        # What probably ran out of memory keeps its severity: a crash keeps a page open.
        over = message.severity == "info"
        return apprise.NotifyType.SUCCESS if over else apprise.NotifyType.FAILURE
    return getattr(apprise.NotifyType, _TYPES[message.severity])


def _title(message: Message) -> str:
    return text.for_chat(plain_text.subject(message))


def _body(message: Message, room: int) -> str:
    """Return the text, in order of weight, so that what is cut is what matters least.

    The command is kept: it goes before the facts where not all of them fit.
    """
    head = "\n".join(text.for_chat(line) for line in plain_text.lines(message.body) if line)
    command = f"-> {text.for_chat(text.clean(message.command))}" if message.command else ""
    cost = text.for_chat(text.clean(message.cost)) if message.cost else ""
    facts = [
        f"{text.for_chat(text.clean(label, limit=60))}: {text.for_chat(text.clean(value))}"
        for label, value in message.facts.items()
    ]
    tail = [line for line in (cost, command) if line and line not in head]
    taken = sum(len(line) + 1 for line in tail)
    head = text.cut(head, max(20, room - taken))
    left = room - len(head) - taken
    texts: list[str] = []
    for line in facts:
        left -= len(line) + 1
        if left < 0:
            break
        texts.append(line)
    return text.cut("\n".join([head, *texts, *tail]), room)


# Answers of web services, read no further and no longer than anybody needs.
# Apprise reads whatever a service answers to its end, in our process, and has no setting for it.
# A service that never comes to an end would fill the memory, in a thread that was long given up.

MOST_BYTES: Final = 1 << 20
"""No answer to a notice is as long; its status, which counts, comes before."""
LONGEST_S: Final = 60.0


def bound_reads(response: Any) -> None:
    """Make a class of responses (``requests.Response``) stop reading; twice does nothing more."""
    whole = response.iter_content
    if getattr(whole, "bounded", False):
        return

    def iter_content(self: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
        ends_s, taken = time.monotonic() + LONGEST_S, 0
        for chunk in whole(self, *arguments, **options):
            yield chunk
            taken += len(chunk)
            if taken >= MOST_BYTES or time.monotonic() >= ends_s:
                # What is left of it would come before the next answer.
                self.close()
                return

    iter_content.bounded = True  # type: ignore[attr-defined]
    response.iter_content = iter_content


# Addresses of chat services: where they are kept, and how they are named without their secrets.
# An address is a secret as a whole: in ``slack://TokenA/TokenB/TokenC`` the token stands where
# others have a host. So only the kind of service is ever shown, and a host where it surely is
# one.

CREDENTIAL = "chat-urls"
VARIABLE = "GPUWATCHD_CHAT_URLS"
_MAX_BYTES = 64 * 1024
_SCHEMA = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,31}")
_PLAIN = (
    ("apprise", "form", "gotify", "hassio", "http", "json", "matrix", "mailto"),
    ("mmost", "mqtt", "ncloud", "ntfy", "rocket", "signal", "xml"),
)
_WITH_HOST = frozenset(f"{name}{tls}" for row in _PLAIN for name in row for tls in ("", "s"))
"""Services of one's own: what stands after "://" is a host."""
_HOST = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]{0,18}[a-z0-9])?\.)+[a-z]{2,10}")


class Address(NamedTuple):
    """One address; its repr never shows it."""

    number: int
    """From 1, as they stand in the file."""
    url: str

    @property
    def schema(self) -> str:
        """The kind of service, as it is written before "://"; "" where there is none."""
        value, mark, _ = self.url.partition("://")
        return value.lower() if mark and _SCHEMA.fullmatch(value) else ""

    @property
    def name(self) -> str:
        """What may be shown: "ntfy at ntfy.example.org", "slack (address 2)"."""
        host = self._host()
        if host:
            return f"{self.schema} at {host}"
        return f"{self.schema} (address {self.number})" if self.schema else f"address {self.number}"

    @property
    def fingerprint(self) -> str:
        """The same for the same address, and nothing can be read from it."""
        return hashlib.sha256(self.url.encode("utf-8", "replace")).hexdigest()

    def _host(self) -> str:
        if self.schema not in _WITH_HOST:
            return ""
        try:
            parts = urlsplit(self.url)
            host = parts.hostname or ""
        except ValueError:
            return ""
        # ntfy://topic is a topic of ntfy.sh, and whoever knows it can read along.
        if host == "localhost" or _HOST.fullmatch(host):
            return host
        try:
            return str(ipaddress.ip_address(host))
        except ValueError:
            return ""

    def __repr__(self) -> str:
        return f"Address({self.name})"


def parse(words: str) -> tuple[Address, ...]:
    r"""Return the addresses of a text: one per line; what begins with "#" is a comment.

    Examples
    --------
    >>> parse("# ours\nslack://A/B/C\n\nntfys://ntfy.example.org/gpu\n")
    (Address(slack (address 1)), Address(ntfys at ntfy.example.org))
    """
    lines = [line.strip() for line in words.splitlines()]
    kept = dict.fromkeys(line for line in lines if line and not line.startswith("#"))
    return tuple(Address(number, url) for number, url in enumerate(kept, start=1))


def load(urls_file: str, environ: Mapping[str, str] | None = None) -> tuple[Address, ...]:
    """Return the addresses: of the file, else the credential, else the environment.

    Raises
    ------
    NotifyError
        Permanent: there are none, or the file is one that others can read.
    """
    environ = credentials.environment() if environ is None else environ
    directory = environ.get("CREDENTIALS_DIRECTORY")
    credential = Path(directory) / CREDENTIAL if directory else None
    if urls_file:
        source, words = "urls-file", content(expanded(urls_file))
    elif credential is not None and credential.exists():
        source, words = f"credential {CREDENTIAL}", content(credential, guarded=True)
    else:
        source, words = VARIABLE, "\n".join(environ.get(VARIABLE, "").split())
    addresses = parse(words)
    if addresses:
        return addresses
    if source == VARIABLE:
        raise credentials.refusal(
            "no address of a chat service is set",
            hint='set [notify.chat] urls-file = "~/.config/gpuwatchd/chat-urls"',
        )
    raise credentials.refusal(
        f"{source}: no address in it", hint="one address per line, such as ntfys://..."
    )


def content(path: Path, *, guarded: bool = False) -> str:
    """Return the text of a file of addresses.

    Raises
    ------
    NotifyError
        Permanent: it is missing, no text, or others can read it (where nobody has ``guarded`` it).
    """
    name = f"file of addresses {text.clean(str(path))}"
    hint = "write one address per line into it and chmod 600"
    data = credentials.read_private(path, _MAX_BYTES, guarded=guarded, name=name, hint=hint)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise credentials.refusal(f"{name}: not UTF-8 text") from None
