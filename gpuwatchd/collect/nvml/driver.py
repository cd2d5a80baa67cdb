"""The driver as a whole: starting and ending NVML, what is wrong with it, which cards it shows.

Each of these calls may take seconds or hang, so each runs in a lane of its own and returns what it
found instead of changing anything. Nothing here imports pynvml.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from gpuwatchd.collect.nvml.calls import (
    ABSENT_CODES,
    EMPTY_SLOT_CODES,
    GLOBAL_CODES,
    GPU_IS_LOST,
    NO_ATTACH,
    NO_PERMISSION,
    Card,
    code_of,
    order,
    placeholder,
    state_of,
)
from gpuwatchd.collect.nvml.driver_files import (
    Library,
    in_container,
    kernel_module_version,
    nvml_address,
    pci_address,
)
from gpuwatchd.core.model import Availability, Device
from gpuwatchd.core.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from gpuwatchd.collect.device_threads import DeviceThreads
    from gpuwatchd.collect.nvml.calls import Calls
    from gpuwatchd.collect.nvml.driver_files import KernelFiles
    from gpuwatchd.core.model import DeviceState


VERSION_EVERY_S: Final = 30.0
"""Time between two looks whether the kernel module was exchanged."""
FIRST_LOOK_S: Final = 6.0
"""How long the first look waits for a card that has to start."""
LOOK_S: Final = 1.0
"""How long a later one does."""
_LATE = object()


class FoundDevice(NamedTuple):
    """One card or MIG instance that answered."""

    uid: str
    handle: Any
    place: int
    """Its index, or its position among the instances of its card."""
    name: str = ""
    """Empty where it does not say."""
    bus: str | None = None
    mig: bool | None = False
    """Whether it has instances; None when it refused to say."""
    mig_exists: bool = True
    """False when the driver or the card knows nothing of instances."""
    slices: tuple[FoundDevice, ...] = ()
    unsure: frozenset[int] = frozenset()
    """Places whose instance may be there: the driver refused to say."""


class ScanResult(NamedTuple):
    """What one look at the driver found."""

    cards: tuple[FoundDevice, ...]
    blocked: tuple[tuple[int | str, int], ...]
    """(index or PCI address, NVML code) of the cards that did not tell who they are."""
    again: dict[str, Any]
    """UUID -> handle of known cards that were found under no index."""
    skipped: frozenset[str]
    """UUIDs of the cards that were not asked, or have not answered."""
    late: tuple[int | str, ...] = ()
    """Indexes or PCI addresses that have not answered."""
    gone: int = 0
    """NVML's code when NVML itself is gone, else 0."""


class Scanner:
    """Asks the driver for its cards, each in a lane of its own."""

    def __init__(self, calls: Calls, lanes: DeviceThreads) -> None:
        self._api = calls.api
        self._error = calls.error
        self._lanes = lanes
        self._look_s = LOOK_S

    def answer_within(self, seconds: float) -> None:
        """Wait no longer than this for a card that is slow, unless it is the first look."""
        self._look_s = min(LOOK_S, seconds)

    def scan(
        self,
        cards: Mapping[str, Card],
        places: Sequence[int | str],
        left: AbstractSet[str],
    ) -> ScanResult:
        """Ask for every card.

        ``places`` are indexes, or PCI addresses, as asking by index wakes every card. The cards at
        the PCI addresses ``left`` are not touched by whatever name. A card that has not answered in
        time is late; the others do not wait for it.
        """
        deadline_s = self._look_s if cards else FIRST_LOOK_S
        known = {
            uid: card
            for uid, card in cards.items()
            if card.device.parent_uid is None and not card.is_placeholder
        }
        skipped = {uid for uid, card in known.items() if card.device.pci_bus in left}
        owners: dict[int | str, str] = {}
        for uid, card in known.items():
            for place in (card.device.index, card.device.pci_bus):
                if place is not None:
                    owners[place] = uid
        # A card that is known keeps its lane: nobody asks it anything while it hangs.
        lanes = {place: owners.get(place, f"place {place}") for place in places}
        answers = self._lanes.run(
            {lane: partial(self._place, place) for place, lane in lanes.items()},
            deadline_s,
        )
        devices: dict[str, FoundDevice] = {}
        blocked: list[tuple[int | str, int]] = []
        late: list[int | str] = []
        gone = 0
        for place, lane in lanes.items():
            answer = answers.get(lane, _LATE)
            if answer is _LATE:
                late.append(place)
                skipped.update({lane} & known.keys())
            elif isinstance(answer, FoundDevice):
                devices[answer.uid] = answer
            elif (code := code_of(answer)) in GLOBAL_CODES:
                gone = code
            else:
                blocked.append((place, code))
        missing = known.keys() - devices.keys() - skipped
        find = self._api.nvmlDeviceGetHandleByUUID
        again = self._lanes.run({uid: partial(find, uid) for uid in missing}, deadline_s)
        return ScanResult(
            tuple(devices.values()),
            tuple(blocked),
            {uid: handle for uid, handle in again.items() if not isinstance(handle, Exception)},
            frozenset(skipped - devices.keys()),
            tuple(late),
            gone,
        )

    def _place(self, place: int | str) -> FoundDevice:
        if isinstance(place, int):
            handle, index = self._api.nvmlDeviceGetHandleByIndex(place), place
        else:
            handle = self._api.nvmlDeviceGetHandleByPciBusId(nvml_address(place).encode())
            index = self._api.nvmlDeviceGetIndex(handle)
        return self._card(handle, clean(self._api.nvmlDeviceGetUUID(handle)), index)

    def _card(self, handle: Any, uid: str, index: int) -> FoundDevice:
        name, bus = self._name(handle), self._bus(handle)
        try:
            mig = bool(self._api.nvmlDeviceGetMigMode(handle)[0])
            most = self._api.nvmlDeviceGetMaxMigDeviceCount(handle) if mig else 0
        except self._error as error:
            exists = code_of(error) not in ABSENT_CODES
            return FoundDevice(uid, handle, index, name, bus, None, exists)
        slices: list[FoundDevice] = []
        unsure: set[int] = set()
        for position in range(most):
            try:
                part = self._api.nvmlDeviceGetMigDeviceHandleByIndex(handle, position)
                part_uid = clean(self._api.nvmlDeviceGetUUID(part))
            except (self._error, UnicodeError) as error:
                if code_of(error) not in EMPTY_SLOT_CODES:
                    unsure.add(position)
                continue
            slices.append(FoundDevice(part_uid, part, position, self._name(part), bus))
        parts, doubts = tuple(slices), frozenset(unsure)
        return FoundDevice(uid, handle, index, name, bus, mig, slices=parts, unsure=doubts)

    def _name(self, handle: Any) -> str:
        with contextlib.suppress(self._error, UnicodeError):
            return clean(self._api.nvmlDeviceGetName(handle))
        return ""

    def _bus(self, handle: Any) -> str | None:
        with contextlib.suppress(self._error, UnicodeError):
            return pci_address(self._api.nvmlDeviceGetPciInfo(handle).busId)
        return None


def beside(cards: Mapping[str, Card], buses: Iterable[str], state: DeviceState) -> dict[str, Card]:
    """Return the table of cards with a stand-in for each PCI address that no card has."""
    taken = {card.device.pci_bus for card in cards.values()}
    found = dict(cards)
    for bus in buses:
        if bus not in taken:
            card = placeholder(bus, state)
            found[card.uid] = card
    return dict(sorted(found.items(), key=lambda item: order(item[1], found)))


def merge(cards: Mapping[str, Card], look: ScanResult) -> dict[str, Card]:
    """Return the table of cards after a look; known cards stay the same objects.

    What answered before and does not now stays, with its state; what never answered is shown by a
    stand-in.
    """
    found: dict[str, Card] = {}
    buses = {answer.bus for answer in look.cards} - {None}
    for answer in look.cards:
        card = _adopt(cards, answer)
        found[card.uid] = card
        _slices(cards, card, answer, found)
    states = dict(look.blocked)
    for uid, card in cards.items():
        if uid in found or card.is_placeholder:
            continue
        parent = card.device.parent_uid
        if parent is not None and parent not in look.skipped and parent in found:
            continue  # the administrator removed this instance
        if card.device.pci_bus in buses and parent not in found:
            continue  # its place answers by another UUID
        found[uid] = card
        if uid in look.skipped or (parent is not None and parent in look.skipped):
            continue
        code = states.pop(card.device.pci_bus or "", GPU_IS_LOST)
        if card.device.index is not None:
            code = states.pop(card.device.index, code)
        card.handle = look.again.get(uid)
        card.state = "ok" if card.handle is not None else state_of(code)
    names = {uid for uid in look.skipped if uid in found}
    taken = {p for uid in names for p in (found[uid].device.index, found[uid].device.pci_bus)}
    new = {place: state_of(code) for place, code in states.items()}
    new |= {place: "hung" for place in look.late if place not in taken}
    for place, state in new.items():
        card = placeholder(place, state)
        found[card.uid] = card
    return dict(sorted(found.items(), key=lambda item: order(item[1], found)))


def _adopt(cards: Mapping[str, Card], answer: FoundDevice, parent: Card | None = None) -> Card:
    card = cards.get(answer.uid)
    if card is None:
        device = Device(
            uid=answer.uid,
            vendor="nvidia",
            index=answer.place,
            name=answer.name or "NVIDIA GPU",
            memory_total_bytes=None,
            parent_uid=parent.uid if parent else None,
            parent_index=parent.device.index if parent else None,
            source="nvml",
            pci_bus=parent.device.pci_bus if parent else answer.bus,
        )
        card = Card(answer.uid, device)
    else:
        name, bus = answer.name or card.device.name, answer.bus or card.device.pci_bus
        if (card.device.index, card.device.name, card.device.pci_bus) != (answer.place, name, bus):
            card.device = msgspec.structs.replace(
                card.device, index=answer.place, name=name, pci_bus=bus
            )
    card.handle = answer.handle
    card.state = "ok"
    return card


def _slices(
    cards: Mapping[str, Card], card: Card, answer: FoundDevice, found: dict[str, Card]
) -> None:
    known = {c.device.index: c for c in cards.values() if c.device.parent_uid == card.uid}
    if answer.mig is None:
        # Without an answer nothing has changed: instances are not gone because a call failed.
        card.is_parent = card.is_parent and answer.mig_exists
        found.update({c.uid: c for c in known.values() if card.is_parent})
        return
    card.is_parent = answer.mig
    for part in answer.slices:
        found[part.uid] = _adopt(cards, part, card)
    for position in answer.unsure:
        if (kept := known.get(position)) is not None:
            found[kept.uid] = kept


DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, VERSION_MISMATCH = 9, 12, 18


class Opened(NamedTuple):
    """What a start came to."""

    is_open: bool
    cards: int = 0
    """How many cards NVML counts."""
    code: int = 0
    """NVML's code of what it refused; 0 when it refused nothing."""


def pending_call_message(
    gone: Availability | None, stuck_s: float, *, started_before: bool
) -> Availability:
    """Return what to say while NVML is not open and a call to the driver has not returned.

    ``gone`` is why NVML itself is gone; None when it is not.
    """
    silent = f"has not answered for {stuck_s:.0f} s"
    if gone is not None:
        reason = f"{gone.reason}; a call to the driver {silent}"
    elif started_before:
        reason = f"the NVIDIA driver is being restarted or released, and {silent}"
    else:
        reason = f"the NVIDIA driver {silent}"
    brief = gone.brief if gone is not None else ""
    return Availability(ok=False, reason=reason, hint="see dmesg", brief=brief)


class Driver:
    """Calls that concern no single card.

    ``calls`` learns of the library as soon as it is loaded.
    """

    def __init__(self, calls: Calls, files: KernelFiles) -> None:
        self._api = calls.api
        self._error = calls.error
        self._calls = calls
        self._files = files
        self._library = Library(files.proc)
        self._version: str | None = None
        self._module: str | None = None
        """Version of the kernel module when NVML was started last."""
        self.version_at_s = 0.0
        """When (monotonic) the kernel module is looked at next."""
        self.gone: Availability | None = None
        """Why NVML itself is gone, until it is open again."""
        self._code = 0
        """NVML's code for that."""
        self._flaw: LibraryDefect | None = None
        """Why a library that is there could not be loaded."""
        self.needs_restart = False
        """True when the library file was replaced: only a new process can load the new one."""

    def open(self, *, attach: bool) -> Opened:
        """Start NVML; ``attach`` as a rule, not where a card must not be woken. Never raises."""
        if self._version is None and (flaw := load_crash_risk()) is not None:
            self._flaw = flaw
            return Opened(is_open=False, code=LIBRARY_NOT_FOUND)
        try:
            if attach:
                self._api.nvmlInit()
            else:
                self._api.nvmlInitWithFlags(NO_ATTACH)
        except self._error as error:
            if code_of(error) == LIBRARY_NOT_FOUND:
                self._flaw = load_error()
            return Opened(is_open=False, code=code_of(error))
        finally:
            self._library.note()
            self._version = self._version or self._library_version()
        self._calls.attach()
        return self.count()

    def count(self) -> Opened:
        """Ask how many cards there are. Never raises."""
        try:
            return Opened(is_open=True, cards=self._api.nvmlDeviceGetCount())
        except self._error as error:
            return Opened(is_open=True, code=code_of(error))

    def close(self) -> None:
        """End NVML."""
        # A library that calls itself uninitialised is as good as shut down.
        with contextlib.suppress(self._error):
            self._api.nvmlShutdown()

    def _library_version(self) -> str | None:
        try:
            version = clean(self._api.nvmlSystemGetNVMLVersion())
        except (self._error, UnicodeError):
            return None  # no library, or one that does not say
        # "12.550.54.15" is CUDA's major version, then the driver's.
        return version.partition(".")[2] if version.count(".") >= 2 else version

    def started(self, mono_s: float) -> str:
        """Note that NVML is open; return how the kernel module was replaced, "" if it was not."""
        self.gone, self._code = None, 0
        before, self._module = self._module, kernel_module_version(self._files)
        self.version_at_s = mono_s + VERSION_EVERY_S
        if before is None or self._module in {before, None}:
            return ""
        return f"the kernel module {before} was replaced by {self._module}"

    def is_exchanged(self, mono_s: float) -> bool:
        """Say, now and then, whether the kernel module is another one than at the start."""
        if mono_s < self.version_at_s:
            return False
        self.version_at_s = mono_s + VERSION_EVERY_S
        return kernel_module_version(self._files) != self._module

    def look_for_library(self) -> bool:
        """Note and say whether a library that fits lies ready for a new process.

        One is needed only where that of this process does not fit the kernel module.
        """
        if self._code != VERSION_MISMATCH:
            return False
        if not self.needs_restart:
            fresh = self._library.replaced_by()
            module = kernel_module_version(self._files)
            # Half-way through an upgrade the file is new and the module is not: wait for both.
            self.needs_restart = fresh is not None and fresh in {"", module}
        return self.needs_restart

    def explain(self, code: int) -> Availability:
        """Return why NVML is gone: one sentence and one hint for what it refused."""
        brief, self._code = "", code
        if code == LIBRARY_NOT_FOUND and self._flaw is not None:
            why = clean(self._flaw.words, limit=1024)
            reason = f"{(brief := 'the NVIDIA library cannot be loaded')}: {why}"
            hint = self._flaw.hint
        elif code == LIBRARY_NOT_FOUND:
            brief = "no NVIDIA driver is installed here"
            reason = f"{brief}: libnvidia-ml.so.1 was not found"
            hint = "install the NVIDIA driver; in a container, start it with --gpus all"
        elif code == NO_PERMISSION:
            reason = "the NVIDIA driver refuses this user"
            hint = "ls -l /dev/nvidia*: this user, or its container, must be allowed to open them"
        elif code == DRIVER_NOT_LOADED:
            reason = "the NVIDIA driver is installed but not loaded"
            hint = "sudo modprobe nvidia, or reboot after an installation"
        elif code == VERSION_MISMATCH:
            module = kernel_module_version(self._files) or "of unknown version"
            library = self._version or "of unknown version"
            reason = f"NVIDIA library {library} does not fit the loaded kernel module {module}"
            if self.look_for_library():
                hint = "the daemon starts anew with the new library; else restart it"
            else:
                hint = "reboot, or reload the module"
        else:
            reason = f"{(brief := 'NVML did not answer')}: {self._calls.text(code)}"
            hint = "see nvidia-smi"
            if in_container(self._files.proc):
                # A reload of systemd on the host takes the GPUs away from a running container.
                hint = "restart the container: the host may have taken its GPUs away"
        self.gone = Availability(ok=False, reason=reason, hint=hint, brief=brief)
        return self.gone


# Where the NVIDIA library lies, and why one that lies there cannot be loaded.
# nvidia-ml-py says "not found" whatever the loader complained of. The loader itself says "no
# such file" of a library for another processor: the file's own header tells that.

NAME: Final = "libnvidia-ml.so.1"
_FOLDERS: Final = (
    *("usr/lib/{machine}-linux-gnu", "lib/{machine}-linux-gnu", "usr/lib64", "usr/lib"),
    *("usr/lib/wsl/lib", "usr/lib/{machine}-linux-gnu/nvidia/current", "run/opengl-driver/lib"),
    "usr/local/nvidia/lib64",
    *("usr/lib/i386-linux-gnu", "usr/lib32"),  # only to say that this is the wrong one
)
_HEADER_BYTES: Final = 20
_SEGMENT_BYTES: Final = 56
"""Size of an entry in a 64-bit file's table of segments."""
_PROCESSORS: Final = {3: "x86", 21: "ppc64", 40: "arm", 62: "x86_64", 183: "aarch64"}
"""ELF's numbers, with the names that the kernel uses."""


class LibraryDefect(NamedTuple):
    """Why a library cannot be loaded."""

    words: str
    """With the path, and the loader's words where it was asked."""
    hint: str


def find(root: Path, environ: Mapping[str, str]) -> Path | None:
    """Return the library's path; None where it is in none of the usual folders."""
    folders = [root / folder.format(machine=platform.machine()) for folder in _FOLDERS]
    asked_for = [text for text in environ.get("LD_LIBRARY_PATH", "").split(":") if text]
    folders[:0] = [root / text.lstrip("/") for text in asked_for]
    return next((folder / NAME for folder in folders if os.path.exists(folder / NAME)), None)  # noqa: PTH110


def library_defect(library: Path) -> LibraryDefect | None:
    """Return what its file shows to be wrong with a library; None where nothing is."""
    again = "install the library of the driver's version again"
    try:
        theirs = _processor(library)
    except OSError as error:
        return LibraryDefect(
            f"{library}: {error.strerror}", f"ls -lL {library}: it must be readable"
        )
    ours = _processor(Path("/proc/self/exe")) if Path("/proc/self/exe").exists() else theirs
    if theirs is None:
        return LibraryDefect(f"{library}: it is no library, or only its beginning", again)
    if _is_cut_off(library):
        return LibraryDefect(f"{library}: its end is missing", again)
    if ours is not None and theirs != ours:
        return LibraryDefect(
            f"{library}: it is built for {theirs}, and this Python for {ours}",
            f"install the driver's library for {ours}, and check LD_LIBRARY_PATH",
        )
    return None


def load_crash_risk() -> LibraryDefect | None:
    """Return why loading the library would end this process; None where it would not.

    The loader maps a file that is cut off as if it were whole, and dies of what is not there.
    """
    library = find(Path("/"), os.environ)
    if library is None or not _is_cut_off(library):
        return None
    return library_defect(library)


def load_error() -> LibraryDefect | None:
    """Load the library as nvidia-ml-py does; return why that fails although there is one.

    None where there is none, or it can be loaded. May hang as long as the file system does.
    """
    try:
        ctypes.CDLL(NAME)
    except OSError as error:
        text = clean(str(error))
    else:
        return None
    library = find(Path("/"), os.environ)
    not_found = NAME in text and "No such file" in text
    if library is None:
        return None if not_found else LibraryDefect(text, "reinstall the NVIDIA driver's library")
    found = library_defect(library)
    if found is not None:
        return LibraryDefect(f"{found.words} (the loader: {text})", found.hint)
    if not_found:
        hint = f"export LD_LIBRARY_PATH={library.parent}, or add it to /etc/ld.so.conf.d"
        return LibraryDefect(f"{library}: the loader does not search there ({text})", hint)
    return LibraryDefect(
        text, f"ldd {library} names what is missing; or reinstall the driver's library"
    )


def _processor(file: Path) -> str | None:
    """Return for which processor an ELF file is built; None where it is none."""
    with file.open("rb") as stream:
        head = stream.read(_HEADER_BYTES)
    if len(head) < _HEADER_BYTES or head[:5] not in {b"\x7fELF\x01", b"\x7fELF\x02"}:
        return None
    number = int.from_bytes(head[18:20], "big" if head[5] == 2 else "little")
    bits = 32 * head[4]
    name = _PROCESSORS.get(number, f"processor {number}")
    return f"{name} ({bits} bits)"


def _is_cut_off(file: Path) -> bool:
    """Say whether a 64-bit ELF file ends before what its table of segments names."""
    try:
        with file.open("rb") as stream:
            head = stream.read(64)
            size: int = stream.seek(0, os.SEEK_END)
            if len(head) < 64 or not head.startswith(b"\x7fELF\x02"):
                return False
            order = ">" if head[5] == 2 else "<"
            table: int = struct.unpack_from(f"{order}Q", head, 32)[0]
            entry_bytes, count = struct.unpack_from(f"{order}HH", head, 54)
            stream.seek(table)
            entries = stream.read(_SEGMENT_BYTES * count)
    except OSError:
        return False
    if entry_bytes != _SEGMENT_BYTES:
        return False
    end: int = table + _SEGMENT_BYTES * count
    for at in range(0, len(entries) - _SEGMENT_BYTES + 1, _SEGMENT_BYTES):
        offset, _, _, length = struct.unpack_from(f"{order}4Q", entries, at + 8)
        end = max(end, offset + length)
    return end > size
