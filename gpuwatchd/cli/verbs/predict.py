"""``predict``: rate, R², confidence, time left, detector, pattern, framework, suspect."""

from __future__ import annotations

import click

from gpuwatchd.cli import options, output
from gpuwatchd.view.queries import current_state, live_answers
from gpuwatchd.view.queries.subjects import judged_view
from gpuwatchd.view.text import headline, prediction


@click.command("predict", epilog=options.examples("predict", "predict --pid 4711 --json"))
@options.pid_option
@options.user_option
@options.wide_option
@options.exit_code_option
def command(pids: tuple[int, ...], exit_code: bool) -> int:  # noqa: FBT001
    """Show how fast memory grows, how sure that is, and when it will be full.

    Of every GPU and process, in figures; `explain` says of one why, and what to do. From the
    daemon's live verdict; without one, evaluated again from the history.
    """
    flags = options.current()
    if flags.json:
        return output.emit_answered(live_answers.predict(flags, pids), exit_code=exit_code)
    view = judged_view(flags)
    current_state.narrow(view, pids)
    whole = not pids and not flags.user
    out = output.Out(flags)
    for _, sentence in view.warnings:
        out.flow([(f"! {sentence}", "yellow")])
    for place in headline.standings(view.devices):
        prediction.write_device(out, view, place.item, whole=whole, of_users=bool(flags.user))
    return 3 if exit_code and current_state.leaks(view, flags, pids) else 0
