"""What there is to count money for: open alerts, past crashes, idle memory."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

import msgspec

from gpuwatchd.analysis import cost
from gpuwatchd.analysis.cost import totals
from gpuwatchd.core.codes import Ending
from gpuwatchd.core.config import prices as table
from gpuwatchd.core.errors import GpuwatchdError, StoreError
from gpuwatchd.core.model import Cost
from gpuwatchd.core.model.alerts import device_title
from gpuwatchd.view.queries import current_state, state_location

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpuwatchd.analysis.cost import Act, Entry, MemoryBucket, Price, Prices
    from gpuwatchd.core.model import Alert, Device, Holding, ProcessInfo, ProcessKey
    from gpuwatchd.store.live import LiveState
    from gpuwatchd.store.reader import Reader
    from gpuwatchd.store.tables import Checkpoint
    from gpuwatchd.view.query import Query

    Who = tuple[str, ProcessKey | None]
    """UUID of a device, and who on it; None: whoever."""

PERIOD_S: Final = 30 * 86_400.0
"""What is counted where nobody says since when."""
BY: Final[dict[str, Callable[[Entry], str]]] = {
    "gpu": lambda one: one.gpu,
    "user": lambda one: one.user or "(unknown)",
    "job": lambda one: one.job or "(no job)",
    "incident": lambda one: one.title,
}
"""What a bill is added up by."""


class Bill:
    """What was found."""

    def __init__(self, prices: Prices, since_s: float, now_s: float) -> None:
        self.prices = prices
        self.since_s = since_s
        self.now_s = now_s
        self.entries: list[Entry] = []
        self.acts: list[Act] = []
        """What was ended, restarted or requeued; it is in no entry."""
        self.devices: dict[str, Device] = {}
        self.used: dict[str, Price | None] = {}
        """UUID -> the price that was counted with."""
        self.source = "database"
        self.warnings: list[tuple[str, str]] = []

    def of(self, what: str) -> list[Entry]:
        """Return the entries of one kind."""
        return [entry for entry in self.entries if entry.what == what]

    def engineer(self) -> tuple[int | None, float | None]:
        """Return hours of people for lost runs, and what they cost in the user's currency."""
        rate = self.prices.section.engineer_per_hour
        if rate is None:
            return None, None
        runs = len({(entry.key, entry.until_at_s) for entry in self.of("lost")})
        return runs, runs * rate

    def old_prices(self) -> list[tuple[str, str]]:
        """Return code and sentence of each price that is too old to be trusted as it is."""
        by_basis = {price.basis: price for price in self.used.values() if price is not None}
        return [
            ("old-price", f"a price is {price.age_days} days old: {basis}; set [cost] prices")
            for basis, price in by_basis.items()
            if price.is_old
        ]


def gather(query: Query, since_s: float, acts_until_s: float | None = None) -> Bill:
    """Return everything that cost, or would cost, since an instant.

    With ``acts_until_s`` also what was done from then until that instant, and what it saved.

    Raises
    ------
    GpuwatchdError
        When there is neither a history nor a live state.
    """
    from gpuwatchd.view.queries import history_query  # noqa: PLC0415 - 77 ms: SQLite comes with it

    prices = cost.Prices(query.load_config().config.cost, table.builtin())
    state, warnings = current_state.read_state()
    running = state is not None and current_state.alive(state)
    now_s = state_location.now_s()
    bill = Bill(prices, since_s, now_s)
    bill.warnings += warnings
    if state is not None:
        bill.devices.update({item.device.uid: item.device for item in state.devices})
    try:
        with history_query.reader() as history:
            bill.devices = {device.uid: device for device in history.devices()} | bill.devices
            counter = _Counter(query, bill, state if running else None, history)
            counter.count(state)
            if acts_until_s is not None:
                bill.acts += counter.acts(history, min(acts_until_s, now_s))
    except StoreError as error:
        current_state.require_state(state, error, "no cost is known")
        bill.source = "state-file"
        words = f"only the present state is counted, not the past: {error.message}"
        bill.warnings.append(("no-history", words))
        _Counter(query, bill, state if running else None, None).count(state)
    if not running:
        at = "only the history has it" if state is None else "this is its last state"
        bill.warnings.append(("daemon-absent", f"the daemon is not running: {at}"))
    if prices.off:
        bill.warnings.append(("off", 'money is not counted: [cost] mode = "off"'))
    if prices.problem:
        bill.warnings.append(("currency", prices.problem))
    return bill


def of_alerts(query: Query, keys: set[str], now_s: float) -> Bill | None:
    """Return what some alerts have cost; None where nothing is known of it."""
    try:
        bill = gather(query, now_s - PERIOD_S) if keys else None
    except GpuwatchdError:
        return None
    if bill is not None:
        bill.entries = [entry for entry in bill.entries if entry.key in keys]
    return bill


def up_to_now(query: Query, alerts: Sequence[Alert]) -> list[Alert]:
    """Return alerts, the open ones with what they have cost until now, not until their message."""
    if not any(alert.kind == "leak" and alert.state in current_state.SHOWN for alert in alerts):
        return list(alerts)
    try:
        bill = gather(query, state_location.now_s() - PERIOD_S)
    except GpuwatchdError:
        return list(alerts)
    return [counted(bill, alert) for alert in alerts]


def counted(bill: Bill, alert: Alert) -> Alert:
    """Return an open alert with what it has cost by a bill.

    Unchanged where nothing can be counted, and where the last message knew money and we do not.
    """
    if alert.kind != "leak" or alert.state not in current_state.SHOWN:
        return alert
    mine = [entry for entry in bill.of("at-risk") if entry.key == alert.key]
    found = cost.summed(mine)
    said = alert.cost
    if not mine or (said is not None and said.spent_usd is not None and found.usd is None):
        return alert
    until_now = Cost(
        spent_usd=found.usd,
        at_risk_usd=found.ahead_usd,
        gpu_hours=found.gpu_hours,
        at_risk_gpu_hours=found.ahead_gpu_hours,
        since_at_s=mine[0].since_at_s,
        since=mine[0].since,
        basis=mine[0].basis,
        currency=bill.prices.currency,
        per_usd=bill.prices.per_usd or 1.0,
    )
    return msgspec.structs.replace(alert, cost=until_now)


class _Counter:
    """Counts, with what is open."""

    def __init__(
        self, query: Query, bill: Bill, live: LiveState | None, history: Reader | None
    ) -> None:
        self._flags = query
        self._bill = bill
        self._live = live
        self._history = history
        self._checkpoints: list[Checkpoint] = []
        self._infos: dict[ProcessKey, ProcessInfo] = {}
        self._of_idle: list[Alert] = []
        # A GPU with many alerts is asked about the same time again and again.
        self._held = cache(self._read_held)
        self._shared = cache(self._read_shared)
        self._counted = Counted()

    def count(self, state: LiveState | None) -> None:
        """Add every entry to the bill."""
        # Those on a process first: what is told of its device is then the same hours. What is at
        # risk or lost before what is held: the same hours, too.
        for alert in sorted(
            self._alerts(state),
            key=lambda one: (one.kind == "held", one.subject.process is None, one.opened_at_s),
        ):
            if alert.kind == "held":
                self._of_idle.append(alert)
                self._past_holding(alert)
            elif alert.kind == "leak":
                self._leak(alert)
        if state is not None:
            until_s = state.taken_at_s if self._live is None else self._bill.now_s
            for holding in state.holdings:
                self._holding(holding, until_s)
        # A job may be on devices that were asked for and on others.
        bill = self._bill
        bill.entries = [entry for entry in bill.entries if self._wanted(entry.device_uid)]
        bill.used = {uid: price for uid, price in bill.used.items() if self._wanted(uid)}

    def acts(self, history: Reader, until_s: float) -> list[Act]:
        """Return what was ended, restarted or requeued, after everything else was counted."""
        from gpuwatchd.view.queries import act_savings  # noqa: PLC0415 - 26 ms: SQLite comes with it

        context = act_savings.ActContext(
            history,
            cost.UsageProvider(self._shared, self._price),
            self._bill.devices,
            self._infos,
            self._checkpoints,
            [(alert, told_of(alert)) for alert in self._of_idle],
            self._wanted,
        )
        return act_savings.acts_of(context, self._bill.since_s, until_s)

    def _alerts(self, state: LiveState | None) -> list[Alert]:
        """Return the alerts of the period; the live state has the open ones as they are now."""
        history, bill = self._history, self._bill
        alerts: dict[tuple[str, float], Alert] = {}
        if history is not None:
            self._checkpoints = history.checkpoints()
            self._infos = {info.key: info for info in history.processes(bill.since_s)}
            alerts = {
                (alert.key, alert.opened_at_s): alert for alert in history.alerts(bill.since_s)
            }
        if state is not None:
            for item in state.devices:
                self._infos.update(
                    {process.info.key: process.info for process in item.processes or ()}
                )
            alerts.update({(alert.key, alert.opened_at_s): alert for alert in state.alerts})
        return list(alerts.values())

    def _wanted(self, uid: str) -> bool:
        device = self._bill.devices.get(uid)
        return not self._flags.gpu or (device is not None and self._flags.wants(device))

    def _leak(self, alert: Alert) -> None:
        if alert.state in current_state.SHOWN:
            self._at_risk(alert)
        elif alert.resolved_at_s is not None and alert.died:
            self._lost(alert, alert.resolved_at_s)
        elif alert.resolved_at_s is not None and alert.ended_code is Ending.PROCESS_ENDED:
            self._saved(alert, alert.resolved_at_s)

    def _at_risk(self, alert: Alert) -> None:
        finding, now_s = alert.finding, self._bill.now_s
        until_s = now_s if self._live is not None else max(finding.judged_at_s, alert.changed_at_s)
        had = self._stint(alert, until_s, lasts=True)
        if had is None:
            return
        eta = finding.eta
        left_s = None if eta is None else finding.judged_at_s + eta.mid_s - until_s
        text = "" if eta is not None else "there is no forecast of when memory is full"
        like = self._like("at-risk", alert, until_s, text)
        self._add(totals.entries_of(had, like, left_s=left_s))

    def _lost(self, alert: Alert, end_s: float) -> None:
        had = self._stint(alert, end_s)
        if had is not None:
            self._add(totals.entries_of(had, self._like("lost", alert, end_s, alert.ended)))

    def _saved(self, alert: Alert, end_s: float) -> None:
        eta, history = alert.finding.eta, self._history
        if eta is None or history is None or alert.subject.process is None:
            return
        told = [
            delivery.sent_at_s
            for delivery in history.deliveries(alert.key)
            if delivery.state == "sent" and not delivery.dry_run and delivery.sent_at_s is not None
            and delivery.sent_at_s >= alert.opened_at_s
        ]  # fmt: skip
        if not told:
            return
        had = self._stint(alert, end_s, spent=False)
        if had is None:
            return
        low_at_s = alert.finding.judged_at_s + eta.low_s
        text = "a message was sent, and it ended before memory was full"
        like = self._like("saved", alert, end_s, text)
        self._add(totals.saved(had, like, told_at_s=told, low_at_s=low_at_s))

    def _stint(
        self, alert: Alert, until_s: float, *, lasts: bool = False, spent: bool = True
    ) -> cost.ChargedUsage | None:
        """Return what an alert's subject had, without what was counted before; None for nothing.

        ``spent``: its hours are what is counted, so that nothing else may count them.
        """
        from gpuwatchd.store.tables import last_saved_s  # noqa: PLC0415 - 18 ms: SQLite comes with it

        onset_s = alert.finding.onset_at_s
        begun_s: float | None = alert.opened_at_s if onset_s is None else onset_s
        members = self._counted.fresh(alert, begun_s or 0.0, until_s)
        if not members:
            return None
        keys = [key for _, key in members if key is not None]
        starts = [key.started_at_s for key in keys if key.started_at_s is not None]
        if keys:
            begun_s = min(starts) if len(starts) == len(keys) else None
        had = cost.charged_usage(
            members,
            cost.UsageProvider(self._shared if keys else self._watched, self._price),
            started_at_s=begun_s,
            saved_at_s=last_saved_s(self._checkpoints, keys, until_s),
            until_s=until_s,
            lasts=lasts,
        )
        if not had.parts:
            had = self._as_told(alert, until_s)
        elif not keys:
            had = had._replace(since="first-seen")
        if spent:
            from_s = alert.opened_at_s if had.since_at_s is None else had.since_at_s
            self._counted.note(members, from_s, until_s)
        return had

    def _as_told(self, alert: Alert, until_s: float) -> cost.ChargedUsage:
        """Return what the daemon said of an alert, or that nothing is known of its hours.

        For where the history has nothing of it.
        """
        uid, told = alert.subject.device_uid, alert.cost
        price = self._price(uid, until_s, until_s)
        if told is None:
            part = cost.Part(None, None, price)
            return cost.ChargedUsage(((uid, part),), alert.opened_at_s, "first-seen", until_s)
        mine, whole = told.usd_per_hour, None if price is None else price.running_usd_per_hour
        share = mine / whole if mine is not None and whole else None
        part = cost.Part(told.gpu_hours, share, price)
        return cost.ChargedUsage(((uid, part),), told.since_at_s, told.since, until_s)

    def _holding(self, holding: Holding, until_s: float) -> None:
        bill, since_s, info = self._bill, holding.since_s, holding.process
        uid, held = holding.device_uid, holding.held_bytes
        begun_s = None if since_s is None else max(since_s, bill.since_s)
        if begun_s is not None:
            left = self._counted.left((uid, None if info is None else info.key), begun_s, until_s)
            if left is None:
                return
            begun_s, until_s = left
        device = bill.devices.get(uid)
        total = None if device is None else device.memory_total_bytes
        hours = None
        if begun_s is not None and held is not None and total:
            hours = min(1.0, held / total) * max(0.0, until_s - begun_s) / 3600.0
        like = cost.Entry(
            what="held",
            key=holding.id,
            title=f"{holding.kind}: {'nobody' if info is None else info.attribution}",
            device_uid=uid,
            gpu="",
            user="" if info is None else info.user or "",
            job="" if info is None else info.place or "",
            until_at_s=until_s,
            gpu_hours=None,
            usd=None,
            said=holding.evidence,
        )
        part = cost.Part(hours, None, self._price(uid, begun_s or until_s, until_s))
        stint = cost.ChargedUsage(((uid, part),), begun_s, "first-seen", until_s)
        self._add(totals.entries_of(stint, like))

    def _past_holding(self, alert: Alert) -> None:
        over_s = alert.resolved_at_s
        if over_s is None or alert.subject.process is None:
            return  # What is open is among what the daemon lists now.
        for who in told_of(alert):
            left = self._counted.left(who, max(alert.opened_at_s, self._bill.since_s), over_s)
            if left is not None:
                self._was_held(alert, who, *left)

    def _was_held(self, alert: Alert, who: Who, from_s: float, until_s: float) -> None:
        device = self._bill.devices.get(who[0])
        total = None if device is None else device.memory_total_bytes

        def rows(uid: str, since_s: float, until_s: float) -> list[MemoryBucket]:
            return cost.with_rest(self._held(uid, since_s, until_s), total)

        had = cost.charged_usage(
            [who],
            cost.UsageProvider(rows, self._price),
            started_at_s=from_s,
            saved_at_s=None,
            until_s=until_s,
            lasts=False,
        )
        self._counted.note([who], from_s, until_s)
        self._add(totals.entries_of(had, self._like("held", alert, until_s, alert.finding.reason)))

    def _like(self, what: totals.What, alert: Alert, until_s: float, text: str) -> Entry:
        about, key = alert.about, alert.subject.process
        info = None if key is None else self._infos.get(key)
        user = about.user if about is not None else (info.user if info else "")
        job = about.job if about is not None else (info.place if info else "")
        return cost.Entry(
            what=what, key=alert.key, title=alert.title or alert.key,
            device_uid=alert.subject.device_uid, gpu="", user=user or "", job=job or "",
            until_at_s=until_s, gpu_hours=None, usd=None, said=text,
        )  # fmt: skip

    def _add(self, entries: list[Entry]) -> None:
        for entry in entries:
            device = self._bill.devices.get(entry.device_uid)
            gpu = entry.device_uid if device is None else str(device_title(device))
            self._bill.entries.append(msgspec.structs.replace(entry, gpu=gpu))

    def _read_held(self, uid: str, since_s: float, until_s: float) -> list[MemoryBucket]:
        return [] if self._history is None else self._history.occupancy(uid, since_s, until_s)

    def _read_shared(self, uid: str, since_s: float, until_s: float) -> list[MemoryBucket]:
        """Return who held what, whole hours as one: their minutes are shared already."""
        history = self._history
        return [] if history is None else history.occupancy_by_hour(uid, since_s, until_s)

    def _watched(self, uid: str, since_s: float, until_s: float) -> list[MemoryBucket]:
        history = self._history
        rows = [] if history is None else history.device_rows(uid, since_s, until_s, 60.0)
        return [
            cost.MemoryBucket(row.at_s + minute * 60.0, None, None)
            for row in rows
            for minute in range(max(1, round(row.width_s / 60.0)))
        ]

    def _price(self, uid: str, since_s: float, until_s: float) -> Price | None:
        bill, history = self._bill, self._history
        device = bill.devices.get(uid)
        if device is None:
            return None
        section = bill.prices.section
        power_w = None
        if section.mode == "owned" and section.electricity_per_kwh is not None and history:
            power_w = history.power_w(device.parent_uid or uid, since_s, until_s)
        price = bill.prices.of(device, bill.devices, now_s=bill.now_s, power_w=power_w)
        bill.used[uid] = price
        return price


# Which hours of whom are counted already: none of a device costs twice.


def told_of(alert: Alert) -> list[Who]:
    """Return each device and process that an alert is about; of a job, those of its ranks."""
    subjects = alert.cost.members if alert.cost is not None else ()
    return list(
        dict.fromkeys(
            (subject.device_uid, subject.process) for subject in subjects or (alert.subject,)
        )
    )


class Counted:
    """Remembers what was counted, from when until when."""

    def __init__(self) -> None:
        self._leaks: set[Who] = set()
        self._spans: dict[Who, list[tuple[float, float]]] = {}

    def note(self, whose: Iterable[Who], begun_s: float, until_s: float) -> None:
        """Remember that these were counted between two instants, epoch seconds."""
        for who in whose:
            self._spans.setdefault(who, []).append((begun_s, until_s))

    def fresh(self, alert: Alert, begun_s: float, until_s: float) -> list[Who]:
        """Return whom a leak is about and who is not counted yet; each process comes once.

        A leak on a device as a whole counts where nothing else on it does in that time.
        """
        pairs = [
            who
            for who in told_of(alert)
            if who not in self._leaks
            and not (who[1] is None and self._is_counted(who[0], begun_s, until_s))
        ]
        self._leaks.update(who for who in pairs if who[1] is not None)
        return pairs

    def left(self, who: Who, begun_s: float, until_s: float) -> tuple[float, float] | None:
        """Return what of a time is not counted yet of who holds memory; None for nothing."""
        spans = {*self._spans.get(who, ()), *self._spans.get((who[0], None), ())}
        for from_s, to_s in sorted(spans):
            if to_s <= begun_s or from_s >= until_s:
                continue
            if from_s <= begun_s:
                begun_s = to_s
            else:
                until_s = from_s
        return (begun_s, until_s) if begun_s < until_s else None

    def _is_counted(self, uid: str, begun_s: float, until_s: float) -> bool:
        return any(
            from_s < until_s and to_s > begun_s
            for who, spans in self._spans.items()
            for from_s, to_s in spans
            if who[0] == uid
        )
