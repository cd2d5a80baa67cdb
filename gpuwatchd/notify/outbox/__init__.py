"""Messages on their way: one table of rows, one machine of states.

A row is one message on one channel. Whatever is sent is a row: notices and reminders of alerts,
digests, what a fallback sends in place of another channel, and what waited for the end of quiet
hours or for a channel that was down.

=======  ==============================  =======  ============================================
from     event                           to       transition
=======  ==============================  =======  ============================================
(none)   decided, for now or for later   pending  by the caller, or *sending* at once
pending  handed to its channel           sending  :func:`~.states.claimed`, before the attempt
sending  the channel has accepted it     sent     :func:`~.states.sent`
sending  the channel refused for now     pending  :func:`~.states.refused`: tried again later
sending  the channel refused for good    failed   :func:`~.states.refused`
sending  two days of attempts in vain    failed   :func:`~.states.refused`
sending  the daemon died                 pending  :func:`~.states.inherited`: tried again soon
sending  a reload, and no answer since   pending  by :class:`~.outbox.Outbox`, when the lease ends
sending  not begun: full, or a reload    pending  by :class:`~.outbox.Outbox`, at once
(any)    it arrives after all            sent     :func:`~.states.sent`, by a channel that hung
pending  it is overtaken, over before    expired  :func:`~.states.expired`, chosen by
         it was sent, or sent elsewhere           :func:`~.states.plan`, :func:`~.states.fallbacks`
pending  the wall clock was set          pending  :func:`~.states.clock_moved`
pending  quiet hours were changed        pending  :func:`~.states.with_quiet_hours`
failed   nobody else has told it         (new     :func:`~.states.redirected`, to the next
         (pending: for too long)         row)     fallback
failed   new settings, or a new start    pending  :func:`~.states.revived`
=======  ==============================  =======  ============================================

In the history a row that is *sending* is pending with a lease, and one that has *expired* is failed
with a code that says why it was not sent.

**At least once.** A row is in the history before anything is tried, in one transaction with the
alert and the decision that it comes from. Each attempt is claimed there first (a lease; of what
leaves at once, in that same transaction), and its end is written when the channel has spoken. A
daemon that dies in between leaves the lease behind: the next one holds the lock, so the lease is
void, and the message is sent again under its old id. So one crash can double a message, never lose
it.
"""
